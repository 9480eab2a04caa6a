"""Tables of numbers and categories: UCI Adult and Covertype."""

from pathlib import Path

import numpy as np

from cavity_experiments.sources.encoding import encoded
from cavity_experiments.sources.reading import Table, check, csv_file, data_directory, npz_file, openml

_ADULT_NUMERIC = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_ADULT_CATEGORICAL = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)
# Rows, and rows with an income above 50K, of the training file and of the test file.
_ADULT_TRAIN = (32_561, 7_841)
_ADULT_TEST = (16_281, 3_846)
# `fnlwgt` of the first row of either file, from which the order of a table with both is known.
_ADULT_FIRST_TRAIN, _ADULT_FIRST_TEST = 77_516, 226_802

_COVERTYPE_QUANTITIES = (
    "Elevation",
    "Aspect",
    "Slope",
    "Horizontal_Distance_To_Hydrology",
    "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways",
    "Hillshade_9am",
    "Hillshade_Noon",
    "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points",
)
_COVERTYPE_ROWS = 581_012
# Rows of each cover type and of each wilderness area, and the first row, which shows whether columns are unscaled.
_COVERTYPE_TYPES = (211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510)
_COVERTYPE_AREAS = (260_796, 29_884, 253_364, 36_968)
_COVERTYPE_FIRST = (2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279)
_LODGEPOLE_PINE = 2


def adult(training_rows: np.ndarray | None = None) -> Table:
    """UCI Adult (census income): is a person's income above 50K?

    All 48,842 rows: the 32,561 of the training file, then the 16,281 of the test file. Features are six
    standardised numeric columns, then one 0/1 column for each level of the eight categorical ones
    (`workclass=Private`), where "?" for missing is a level. Levels are those of the whole table, so the
    columns do not depend on a split.

    Args:
        training_rows: Row indices (or a boolean mask) whose means and standard deviations standardise the
            numeric columns, so that test rows do not leak into the features. All rows if None.

    Returns:
        A table with x in float64, shape [48842, 108], and y = 1 for an income above 50K.

    Raises:
        DataUnavailable: If the files are missing and OpenML cannot be reached.
        ValueError: If a file is not the expected one, or `training_rows` cannot standardise.
    """
    directory = data_directory()
    if directory is None:
        raw = _adult_from_openml()
    else:
        train = _adult_file(directory / "adult" / "adult_train.csv.gz", _ADULT_TRAIN)
        test = _adult_file(directory / "adult" / "adult_test.csv.gz", _ADULT_TEST)
        raw = {column: np.concatenate([train[column], test[column]]) for column in train}

    x, columns = encoded(raw, _ADULT_NUMERIC, _ADULT_CATEGORICAL, training_rows)
    num_train, num_rows = _ADULT_TRAIN[0], len(x)
    return Table(
        name="adult",
        x=x,
        y=(raw["income"] == ">50K").astype(np.int64),
        columns=columns,
        train=np.arange(num_train),
        test=np.arange(num_train, num_rows),
    )


def covertype() -> Table:
    """UCI Covertype, two classes: is a patch of forest mostly lodgepole pine?

    The label is y = 1 for cover type 2 (lodgepole pine, 283,301 rows) and y = 0 for the six other types, as in
    the set covtype.binary on which papers on Stein variational gradients compare. Files of that set number
    the two classes their own way, which turns the sign of the coefficients and nothing else.

    Features are the raw columns, not standardised: ten quantities (metres, degrees, and indices of shade from
    0 to 254), then 0/1 columns for four wilderness areas and forty soil types, of which each row has one.

    Returns:
        A table with x in float64, shape [581012, 54], and y in {0, 1}. The source has no split of its own.

    Raises:
        DataUnavailable: If the file is missing and OpenML cannot be reached.
        ValueError: If the file is not the expected one.
    """
    directory = data_directory()
    if directory is None:
        origin = "OpenML's covertype, version 4"
        bunch = openml("covertype", version=4, as_frame=True)
        check(origin, "the shape of the features", bunch.data.shape, (_COVERTYPE_ROWS, 54))
        x, cover = bunch.data.astype(np.float64).to_numpy(), bunch.target.astype(np.int64).to_numpy()
    else:
        origin = directory / "covertype" / "covertype.npz"
        x, cover = _covertype_file(origin)
    types = tuple(np.bincount(cover, minlength=8).tolist())
    check(origin, "the number of rows of each cover type", types, (0, *_COVERTYPE_TYPES))
    check(origin, "the quantities in the first row", tuple(x[0, :10].tolist()), _COVERTYPE_FIRST)
    areas, soils = x[:, 10:14], x[:, 14:]
    check(origin, "the number of rows of each wilderness area", tuple(areas.sum(axis=0).tolist()), _COVERTYPE_AREAS)
    for what, indicators in (("wilderness areas", areas), ("soil types", soils)):
        check(origin, f"the range of the {what} a row has", _range(indicators.sum(axis=1)), (1, 1))
    columns = [f"Wilderness_Area{i}" for i in range(1, 5)] + [f"Soil_Type{i}" for i in range(1, 41)]
    return Table(
        name="covertype",
        x=x,
        y=(cover == _LODGEPOLE_PINE).astype(np.int64),
        columns=(*_COVERTYPE_QUANTITIES, *columns),
    )


def _adult_file(path: Path, counts: tuple[int, int]) -> dict[str, np.ndarray]:
    """Columns of one of the two files, as text."""
    raw = csv_file(path, (*_ADULT_NUMERIC, *_ADULT_CATEGORICAL, "income"), counts[0])
    check(path, "the number of incomes above 50K", int(np.sum(raw["income"] == ">50K")), counts[1])
    return raw


def _adult_from_openml() -> dict[str, np.ndarray]:
    """The same columns from OpenML, which writes NaN for "?" and may have the test rows first."""
    origin = "OpenML's adult, version 2"
    frame = openml("adult", version=2, as_frame=True).frame
    frame = frame.rename(columns={name: name.replace("-", "_") for name in frame.columns} | {"class": "income"})
    check(origin, "the set of columns", set(frame.columns), {*_ADULT_NUMERIC, *_ADULT_CATEGORICAL, "income"})
    check(origin, "the number of rows", len(frame), _ADULT_TRAIN[0] + _ADULT_TEST[0])
    raw = {column: frame[column].to_numpy() for column in _ADULT_NUMERIC}
    for column in (*_ADULT_CATEGORICAL, "income"):
        text = frame[column].astype(object)
        raw[column] = text.where(text.notna(), "?").to_numpy().astype(str)
    if raw["fnlwgt"][0] == _ADULT_FIRST_TEST:
        raw = {column: np.roll(values, -_ADULT_TEST[0]) for column, values in raw.items()}
    first = (int(raw["fnlwgt"][0]), int(raw["fnlwgt"][_ADULT_TRAIN[0]]))
    check(origin, "fnlwgt in the first row of each part", first, (_ADULT_FIRST_TRAIN, _ADULT_FIRST_TEST))
    check(
        origin,
        "the number of incomes above 50K in the training part",
        int(np.sum(raw["income"][: _ADULT_TRAIN[0]] == ">50K")),
        _ADULT_TRAIN[1],
    )
    return raw


def _covertype_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The 54 columns and the cover type, 1 to 7, from a file that has areas and soils as codes from 0."""
    n = _COVERTYPE_ROWS
    shapes = {"quant": (n, 10), "quant_names": (10,), "wilderness": (n,), "soil": (n,), "label": (n,)}
    raw = npz_file(path, shapes)
    check(path, "the list of quantities", tuple(raw["quant_names"].tolist()), _COVERTYPE_QUANTITIES)
    for name, num_codes in (("wilderness", 4), ("soil", 40)):
        check(path, f"the range of {name}", _range(raw[name]), (0, num_codes - 1))
    x = np.zeros((n, 54))
    x[:, :10] = raw["quant"]
    x[np.arange(n), 10 + raw["wilderness"]] = 1
    x[np.arange(n), 14 + raw["soil"]] = 1
    return x, raw["label"]


def _range(values: np.ndarray) -> tuple[int | float, int | float]:
    return values.min().item(), values.max().item()
