"""What all data sets share: the table they come in, the folder, the file formats, OpenML, and the checks."""

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cavity.errors import CavityError, DataError


class DataUnavailable(CavityError):
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


def local_file(name: str, file: str) -> Path:
    """Where a file of a set is that comes from the folder alone."""
    directory = data_directory()
    if directory is None:
        raise DataUnavailable(
            f"data set {name!r}: CAVITY_DATA is not set, and the set is not downloaded. Set the environment variable "
            f"CAVITY_DATA to a folder that holds {file}; `cavity data list` says where each set comes from"
        )
    return directory / file


def csv_file(path: Path, columns: Iterable[str], num_rows: int, on_openml: bool = True) -> dict[str, np.ndarray]:
    """Columns of a gzipped file with a header, as text."""
    header, *rows = csv.reader(_unzipped(path, on_openml).decode("utf-8").splitlines())
    check(path, "the set of columns", set(header), set(columns))
    check(path, "the number of rows", len(rows), num_rows)
    return {name: np.array(values) for name, values in zip(header, zip(*rows, strict=True), strict=True)}


def idx_file(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array in the IDX format: 0, 0, 8 (for bytes), the number of axes, their lengths, the values."""
    content = _unzipped(path)
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
    check(path, f"the header for shape {shape}", content[: len(header)].hex(), header.hex())
    check(path, "the number of bytes", len(content), len(header) + int(np.prod(shape)))
    return np.frombuffer(content, dtype=np.uint8, offset=len(header)).reshape(shape)


def npz_file(path: Path, shapes: dict[str, tuple[int, ...]], on_openml: bool = True) -> dict[str, np.ndarray]:
    """The named arrays of a file that `numpy.savez` wrote."""
    _require(path, on_openml)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in shapes}
    except (OSError, EOFError, TypeError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a complete npz file with the arrays {', '.join(shapes)}: {error}") from error
    for name, shape in shapes.items():
        check(path, f"the shape of {name}", arrays[name].shape, shape)
    return arrays


def openml(name: str, version: int, as_frame: bool) -> Any:
    """What scikit-learn's `fetch_openml` returns for the data set."""
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


def check(origin: object, what: str, found: object, expected: object) -> None:
    """Raise a DataError unless what was found is what the data set has."""
    if found != expected:
        raise DataError(f"{origin} is not the expected data set: {what} is {found}, not {expected}")


def _unzipped(path: Path, on_openml: bool = True) -> bytes:
    _require(path, on_openml)
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DataError(f"{path} is not a complete gzip file: {error}") from error


def _require(path: Path, on_openml: bool = True) -> None:
    if not path.is_file():
        remedies = ["put the file there", "name another folder"]
        if on_openml:
            remedies.append("unset CAVITY_DATA to download the data set from OpenML through scikit-learn")
        raise DataUnavailable(
            f"{path} is missing. CAVITY_DATA names the folder {path.parents[1]}; "
            f"{', '.join(remedies[:-1])}, or {remedies[-1]}"
        )
