"""Real data sets, one function each.

Files are read from the folder that the environment variable CAVITY_DATA names. Without it, the sets that
OpenML has come through scikit-learn's `fetch_openml`, which keeps a copy of its own. A set that cannot be
had raises `DataUnavailable`; a file that is there but is not the data set raises a DataError.
"""

from cavity.data.sources.banking import bank, credit
from cavity.data.sources.catalogue import CATALOGUE, Entry
from cavity.data.sources.encoding import imputed
from cavity.data.sources.hospitals import HospitalTable, eicu_demo, heart_disease
from cavity.data.sources.images import fashion_mnist, mnist
from cavity.data.sources.multilevel import Contraception, Radon, SixCities, contraception, radon, six_cities
from cavity.data.sources.newsgroups import Newsgroups, newsgroups
from cavity.data.sources.omniglot import Omniglot, omniglot_small
from cavity.data.sources.reading import DataUnavailable, Table, data_directory
from cavity.data.sources.regression import UCI_REGRESSION, uci_regression, uci_splits, us_stations
from cavity.data.sources.scaling import Scaling, standardised
from cavity.data.sources.small_binary import australian, banana, magic, pima, titanic, twonorm
from cavity.data.sources.tables import adult, covertype

__all__ = [
    "CATALOGUE",
    "UCI_REGRESSION",
    "Contraception",
    "DataUnavailable",
    "Entry",
    "HospitalTable",
    "Newsgroups",
    "Omniglot",
    "Radon",
    "Scaling",
    "SixCities",
    "Table",
    "adult",
    "australian",
    "banana",
    "bank",
    "contraception",
    "covertype",
    "credit",
    "data_directory",
    "eicu_demo",
    "fashion_mnist",
    "heart_disease",
    "imputed",
    "magic",
    "mnist",
    "newsgroups",
    "omniglot_small",
    "pima",
    "radon",
    "six_cities",
    "standardised",
    "titanic",
    "twonorm",
    "uci_regression",
    "uci_splits",
    "us_stations",
]
