"""A site's rows as it has them: cells by column, numbered so that a message can point at one.

Cells of a CSV file stay text until the study says what they are; those of a data frame are what they are there.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cavity.errors import DataError

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class Table:
    """Columns of cells.

    Attributes:
        columns: name -> one cell per row.
        rows: the number of each row, as its owner counts.
        counted_as: what is counted: the lines of a file, the header being line 1, or the rows of a frame, from 0.
        broken: lines that do not have as many fields as the header; they are in no column.
    """

    columns: Mapping[str, Sequence[Any]]
    rows: Sequence[int]
    counted_as: str = "row"
    broken: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


def read_csv(path: str | os.PathLike[str]) -> Table:
    """A CSV file with a header, in UTF-8, separated by commas, semicolons or tabs. Raises DataError."""
    path = Path(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _read(path, file.read())
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not text in UTF-8; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(f"{path}: it cannot be read as CSV ({error})") from None


def _read(path: Path, text: str) -> Table:
    first = text.split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)  # a comma where there is none of them
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise DataError(f"{path}: there is no header; the first line must name the columns")
    if twice := {name for name in header if header.count(name) > 1}:
        raise DataError(
            f"{path}: the header has the column {sorted(twice)[0]!r} twice; every column needs its own name"
        )
    cells, rows, broken, line = [], [], [], reader.line_num + 1
    for fields in reader:
        if len(fields) == len(header):
            cells.append(fields)
            rows.append(line)
        elif fields:
            broken.append(line)
        line = reader.line_num + 1  # a quoted field may have gone over several
    columns = {name: [fields[i] for fields in cells] for i, name in enumerate(header)}
    return Table(columns, rows, "line", tuple(broken))


def as_table(value: Any) -> Table:
    """A table from a dict of columns or a data frame (pandas, polars)."""
    if isinstance(value, Table):
        return value
    if isinstance(value, Mapping):
        given = dict(value)
    elif hasattr(value, "columns"):
        given = {name: value[name] for name in value.columns}
    else:
        raise DataError(f"data must be a dict of columns or a data frame, not a {type(value).__name__}")
    columns = {str(name): _cells(str(name), column) for name, column in given.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"its columns differ in their numbers of rows: {lengths}")
    return Table(columns, range(next(iter(lengths.values()), 0)))


def _cells(name: str, column: Any) -> Sequence[Any]:
    array = np.asarray(column)
    if array.ndim != 1:
        raise DataError(f"column '{name}' must have one value per row; it has the shape {array.shape}")
    if array.dtype.kind == "M":
        return [None if text == "NaT" else text for text in array.astype(str).tolist()]  # as ISO 8601
    return (array.astype("timedelta64[us]") if array.dtype.kind == "m" else array).tolist()
