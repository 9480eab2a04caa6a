"""Real data sets, one function each.

Files are read from the folder that the environment variable CAVITY_DATA names. Without it, the sets that
OpenML has come through scikit-learn's `fetch_openml`, which keeps a copy of its own. A set that cannot be
had raises `DataUnavailable`; a file that is there but is not the data set raises a DataError.
"""

from cavity_experiments.sources.banking import bank, credit
from cavity_experiments.sources.catalogue import CATALOGUE, Entry
from cavity_experiments.sources.encoding import imputed
from cavity_experiments.sources.grouped import Columns, epilepsy, guatemala, length_of_stay
from cavity_experiments.sources.hospitals import HospitalTable, eicu_demo, heart_disease
from cavity_experiments.sources.images import fashion_mnist, mnist
from cavity_experiments.sources.multilevel import (
    Contraception,
    Radon,
    SixCities,
    Toenail,
    contraception,
    radon,
    six_cities,
    toenail,
)
from cavity_experiments.sources.multisite import crabs, long_covid, trauma
from cavity_experiments.sources.newsgroups import Newsgroups, newsgroups
from cavity_experiments.sources.omniglot import Omniglot, omniglot_small
from cavity_experiments.sources.reading import DataUnavailable, Table, data_directory
from cavity_experiments.sources.regression import UCI_REGRESSION, uci_regression, uci_splits, us_stations
from cavity_experiments.sources.scaling import Scaling, standardised
from cavity_experiments.sources.small_binary import australian, banana, magic, pima, titanic, twonorm
from cavity_experiments.sources.tables import adult, covertype

__all__ = [
    "CATALOGUE",
    "UCI_REGRESSION",
    "Columns",
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
    "Toenail",
    "adult",
    "australian",
    "banana",
    "bank",
    "contraception",
    "covertype",
    "crabs",
    "credit",
    "data_directory",
    "eicu_demo",
    "epilepsy",
    "fashion_mnist",
    "guatemala",
    "heart_disease",
    "imputed",
    "length_of_stay",
    "long_covid",
    "magic",
    "mnist",
    "newsgroups",
    "omniglot_small",
    "pima",
    "radon",
    "six_cities",
    "standardised",
    "titanic",
    "toenail",
    "trauma",
    "twonorm",
    "uci_regression",
    "uci_splits",
    "us_stations",
]
