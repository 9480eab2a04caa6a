"""Real data sets, one function each.

Files are read from the folder that the environment variable CAVITY_DATA names. Without it, the sets that
OpenML has come through scikit-learn's `fetch_openml`, which keeps a copy of its own. A set that cannot be
had raises `DataUnavailable`; a file that is there but is not the data set raises a DataError.
"""

from cavity.data.sources.hospitals import HospitalTable, heart_disease
from cavity.data.sources.images import fashion_mnist, mnist
from cavity.data.sources.multilevel import Contraception, Radon, SixCities, contraception, radon, six_cities
from cavity.data.sources.newsgroups import Newsgroups, newsgroups
from cavity.data.sources.reading import DataUnavailable, Table, data_directory
from cavity.data.sources.tables import adult, covertype

__all__ = [
    "Contraception",
    "DataUnavailable",
    "HospitalTable",
    "Newsgroups",
    "Radon",
    "SixCities",
    "Table",
    "adult",
    "contraception",
    "covertype",
    "data_directory",
    "fashion_mnist",
    "heart_disease",
    "mnist",
    "newsgroups",
    "radon",
    "six_cities",
]
