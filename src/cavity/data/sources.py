"""Real data sets, one function each.

Files are read from the folder that the environment variable CAVITY_DATA names. Without it, the sets that
OpenML has come through scikit-learn's `fetch_openml`, which keeps a copy of its own. A set that cannot be
had raises `DataUnavailable`; a file that is there but is not the data set raises a DataError.
"""

import csv
import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cavity.errors import DataError

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
# `fnlwgt` of the first row of either file, by which the order of a table with both is told.
_ADULT_FIRST_TRAIN, _ADULT_FIRST_TEST = 77_516, 226_802

_MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


class DataUnavailable(RuntimeError):
    """A data set could be had neither from CAVITY_DATA nor from OpenML."""


@dataclass(frozen=True, eq=False)
class Table:
    """A data set for regression or classification.

    Attributes:
        name: The data set's name.
        x: Features without an intercept, shape [n, p].
        y: Targets, shape [n]; class indices from 0 for classification.
        columns: Names of the p features.
        train: Row indices of the source's own training part, or None where it has none.
        test: Row indices of the source's own test part, or None where it has none.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    columns: tuple[str, ...]
    train: np.ndarray | None = None
    test: np.ndarray | None = None


def data_directory() -> Path | None:
    """The folder that CAVITY_DATA names, or None where it is unset or empty."""
    name = os.environ.get("CAVITY_DATA")
    return Path(name).expanduser() if name else None


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

    numeric = np.column_stack([raw[column].astype(np.float64) for column in _ADULT_NUMERIC])
    columns = list(_ADULT_NUMERIC)
    blocks = [_standardise(numeric, training_rows)]
    for column in _ADULT_CATEGORICAL:
        levels, codes = np.unique(raw[column], return_inverse=True)
        blocks.append(np.eye(len(levels))[codes])
        columns += [f"{column}={level}" for level in levels]
    num_train, num_rows = _ADULT_TRAIN[0], len(numeric)
    return Table(
        name="adult",
        x=np.hstack(blocks),
        y=(raw["income"] == ">50K").astype(np.int64),
        columns=tuple(columns),
        train=np.arange(num_train),
        test=np.arange(num_train, num_rows),
    )


def mnist() -> Table:
    """MNIST handwritten digits.

    Returns:
        A table with x the pixels in [0, 1], float32, shape [70000, 784], row by row from the top left; y the
        digit; and the official split, 60,000 training images before 10,000 test images.

    Raises:
        DataUnavailable: If the files are missing and OpenML cannot be reached.
        ValueError: If a file is not the expected one.
    """
    directory = data_directory()
    if directory is None:
        bunch = _openml("mnist_784", version=1, as_frame=False)
        images, labels = np.asarray(bunch.data), np.asarray(bunch.target).astype(np.int64)
        origin = "OpenML's mnist_784"
    else:
        folder = directory / "mnist"
        origin = str(folder)
        sizes = {"train": 60_000, "t10k": 10_000}
        labels = [_idx_file(folder / f"{part}-labels-idx1-ubyte.gz", (n,)) for part, n in sizes.items()]
        images = [_idx_file(folder / f"{part}-images-idx3-ubyte.gz", (n, 28, 28)) for part, n in sizes.items()]
        images = np.concatenate(images).reshape(-1, 784)
        labels = np.concatenate(labels).astype(np.int64)
    _check(origin, "the shape of the images", images.shape, (70_000, 784))
    for part, rows, expected in (
        ("training", slice(60_000), _MNIST_TRAIN),
        ("test", slice(60_000, None), _MNIST_TEST),
    ):
        counts = tuple(np.bincount(labels[rows], minlength=10).tolist())
        _check(origin, f"the count of each digit in the {part} part", counts, expected)
    pixels = images.astype(np.float32)
    pixels /= 255
    return Table(
        name="mnist",
        x=pixels,
        y=labels,
        columns=tuple(f"pixel_{i:03d}" for i in range(784)),
        train=np.arange(60_000),
        test=np.arange(60_000, 70_000),
    )


def _adult_file(path: Path, counts: tuple[int, int]) -> dict[str, np.ndarray]:
    """Columns of one of the two files, as text."""
    header, *rows = csv.reader(_unzipped(path).decode("utf-8").splitlines())
    _check(path, "the set of columns", set(header), {*_ADULT_NUMERIC, *_ADULT_CATEGORICAL, "income"})
    _check(path, "the number of rows", len(rows), counts[0])
    raw = {name: np.array(values) for name, values in zip(header, zip(*rows, strict=True), strict=True)}
    _check(path, "the number of incomes above 50K", int(np.sum(raw["income"] == ">50K")), counts[1])
    return raw


def _adult_from_openml() -> dict[str, np.ndarray]:
    """The same columns from OpenML, which writes NaN for "?" and may have the test rows first."""
    origin = "OpenML's adult, version 2"
    frame = _openml("adult", version=2, as_frame=True).frame
    frame = frame.rename(columns={name: name.replace("-", "_") for name in frame.columns} | {"class": "income"})
    _check(origin, "the set of columns", set(frame.columns), {*_ADULT_NUMERIC, *_ADULT_CATEGORICAL, "income"})
    _check(origin, "the number of rows", len(frame), _ADULT_TRAIN[0] + _ADULT_TEST[0])
    raw = {column: frame[column].to_numpy() for column in _ADULT_NUMERIC}
    for column in (*_ADULT_CATEGORICAL, "income"):
        text = frame[column].astype(object)
        raw[column] = text.where(text.notna(), "?").to_numpy().astype(str)
    if raw["fnlwgt"][0] == _ADULT_FIRST_TEST:
        raw = {column: np.roll(values, -_ADULT_TEST[0]) for column, values in raw.items()}
    first = (int(raw["fnlwgt"][0]), int(raw["fnlwgt"][_ADULT_TRAIN[0]]))
    _check(origin, "fnlwgt in the first row of each part", first, (_ADULT_FIRST_TRAIN, _ADULT_FIRST_TEST))
    _check(
        origin,
        "the number of incomes above 50K in the training part",
        int(np.sum(raw["income"][: _ADULT_TRAIN[0]] == ">50K")),
        _ADULT_TRAIN[1],
    )
    return raw


def _standardise(numeric: np.ndarray, training_rows: np.ndarray | None) -> np.ndarray:
    """Columns minus the mean, over the standard deviation (divisor n), of the training rows."""
    rows = np.arange(len(numeric)) if training_rows is None else np.arange(len(numeric))[np.asarray(training_rows)]
    if len(np.unique(rows)) != len(rows):
        raise ValueError("training_rows repeats rows; pass distinct row indices, or a mask of booleans")
    if len(rows) < 2:
        raise ValueError(f"training_rows has {len(rows)} rows; at least two are needed to standardise")
    mean, scale = numeric[rows].mean(axis=0), numeric[rows].std(axis=0)
    if np.any(scale == 0):
        raise ValueError(f"numeric columns {np.flatnonzero(scale == 0).tolist()} are constant in training_rows")
    return (numeric - mean) / scale


def _idx_file(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array in the IDX format: 0, 0, 8 (for bytes), the number of axes, their lengths, the values."""
    content = _unzipped(path)
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    _check(path, f"the header for shape {shape}", content[: len(header)].hex(), header.hex())
    _check(path, "the number of bytes", len(content), len(header) + int(np.prod(shape)))
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)


def _unzipped(path: Path) -> bytes:
    if not path.is_file():
        raise DataUnavailable(
            f"{path} is missing. CAVITY_DATA names the folder {path.parents[1]}; put the file there, name "
            f"another folder, or unset CAVITY_DATA to download the data set from OpenML through scikit-learn"
        )
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error


def _openml(name: str, version: int, as_frame: bool) -> Any:
    remedy = "or set the environment variable CAVITY_DATA to a folder that holds the data sets"
    try:
        import pandas  # noqa: F401  (fetch_openml parses with it)
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        raise DataUnavailable(
            f"data set {name!r}: CAVITY_DATA is not set, and to download it from OpenML {error.name} is "
            f"needed, which is not installed. Install it with: pip install 'cavity[data]'; {remedy}"
        ) from error
    try:
        return fetch_openml(name, version=version, as_frame=as_frame, parser="auto")
    except (OSError, ValueError) as error:
        raise DataUnavailable(
            f"data set {name!r}: CAVITY_DATA is not set, and version {version} could not be downloaded from "
            f"OpenML ({error}). Connect to the network, {remedy}"
        ) from error


def _check(origin: object, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise DataError(f"{origin} is not the expected data set: {what} is {found}, not {expected}")
