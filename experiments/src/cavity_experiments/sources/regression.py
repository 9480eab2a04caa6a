"""Numbers to be predicted: nine UCI sets with their standard splits, and the temperature at weather stations."""

import numpy as np

from cavity_experiments.sources.reading import Table, check, csv_file, local_file, npz_file

# Rows, features, splits, training rows of a split, and the target of the first row.
_UCI = {
    "boston": (506, 13, 20, 455, 24.0),
    "concrete": (1_030, 8, 20, 927, 79.99),
    "energy": (768, 8, 20, 691, 15.55),
    "kin8nm": (8_192, 8, 20, 7_373, 0.53652416),
    "naval": (11_934, 16, 20, 10_741, 0.95),
    "power": (9_568, 4, 20, 8_611, 480.48),
    "protein": (45_730, 9, 5, 41_157, 17.284),
    "wine_red": (1_599, 11, 20, 1_439, 5.0),
    "yacht": (308, 6, 20, 277, 0.11),
}
UCI_REGRESSION = tuple(_UCI)

_STATIONS_FILE = "weather_stations/us_gsod_20180501.csv.gz"
_STATIONS_FEATURES = ("longitude", "latitude", "elevation_m")
_STATIONS_TARGET = "temp_mean_f_20180501"
# Rows, distinct places, and the sum of the temperatures in tenths of a degree.
_STATIONS_ROWS, _STATIONS_PLACES, _STATIONS_TENTHS = 2_133, 1_987, 1_319_890
_TEST_SHARE = 0.1


def uci_splits(name: str) -> int:
    """How many standard splits a set of `uci_regression` has: 20, and 5 for protein."""
    return _properties(name)[2]


def uci_regression(name: str, split: int) -> Table:
    """A UCI regression set with one of the 90/10 splits of Hernandez-Lobato and Adams (2015) and Gal (2016).

    Columns are raw, and named x1, x2, ... in the order of the source. Two of naval's are constant, which
    `standardised` makes 0. A column of boston is built on race; the set is here for comparison with papers alone.

    Args:
        name: boston, concrete, energy, kin8nm, naval (compressor decay), power, protein, wine_red or yacht.
        split: from 0 to `uci_splits(name)` - 1.

    Returns:
        A table with x and y in float64, and the split's rows as `train` and `test`.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If there is no such set or split, or the file is not the expected one.
    """
    num_rows, num_features, num_splits, num_train, first = _properties(name)
    if not 0 <= split < num_splits:
        raise ValueError(f"{name} has the splits 0 to {num_splits - 1}; there is no split {split}")
    path = local_file("uci_regression", f"uci_regression/{name}.npz")
    shapes = {
        "X": (num_rows, num_features),
        "y": (num_rows,),
        "train_idx": (num_splits, num_train),
        "test_idx": (num_splits, num_rows - num_train),
    }
    raw = npz_file(path, shapes, on_openml=False)
    check(path, "the target of the first row", raw["y"][0].item(), first)
    train, test = (np.sort(raw[part][split].astype(np.int64)) for part in ("train_idx", "test_idx"))
    together = np.sort(np.concatenate([train, test]))
    check(path, f"whether split {split} has every row once", bool(np.all(together == np.arange(num_rows))), True)
    columns = tuple(f"x{j}" for j in range(1, num_features + 1))
    return Table(name, raw["X"].astype(np.float64), raw["y"].astype(np.float64), columns, train, test)


def us_stations(split: int = 0) -> Table:
    """How warm was it on 1 May 2018? 2,133 reports of weather stations in the United States.

    The target is the daily mean temperature in degrees Fahrenheit (NOAA, Global Summary of the Day); the features
    are longitude and latitude in degrees, and elevation in metres. Some 140 stations report twice, about 1 degree
    apart, so a tenth of the 1,987 places is held out, with all their reports: no test row has a twin to learn from.

    Args:
        split: which tenth, by chance; any number from 0.

    Returns:
        A table with x in float64, shape [2133, 3], and the rows that `split` gives as `train` and `test`.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("us_stations", _STATIONS_FILE)
    raw = csv_file(path, ("usaf", *_STATIONS_FEATURES, _STATIONS_TARGET), _STATIONS_ROWS, on_openml=False)
    x = np.column_stack([raw[column].astype(np.float64) for column in _STATIONS_FEATURES])
    y = raw[_STATIONS_TARGET].astype(np.float64)
    check(path, "the sum of temperatures, in tenths", round(10 * float(y.sum())), _STATIONS_TENTHS)
    _, place = np.unique(x[:, :2], axis=0, return_inverse=True)
    check(path, "the number of places", int(place.max()) + 1, _STATIONS_PLACES)
    order = np.random.default_rng(split).permutation(_STATIONS_PLACES)
    is_test = np.isin(place, order[: round(_TEST_SHARE * _STATIONS_PLACES)])
    return Table("us_stations", x, y, _STATIONS_FEATURES, np.flatnonzero(~is_test), np.flatnonzero(is_test))


def _properties(name: str) -> tuple[int, int, int, int, float]:
    if name not in _UCI:
        raise ValueError(f"there is no regression set {name!r}; there are: {', '.join(_UCI)}")
    return _UCI[name]
