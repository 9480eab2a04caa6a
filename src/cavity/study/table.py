"""A site's rows: cells by column, with row numbers for messages, and each column parsed once.

Cells of a CSV file are texts; those of a data frame are Python values. A study says how a column is parsed. The first
step that needs a column parses it; all later steps (checks, sums, the formula's matrix) use the same array.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from cavity.errors import DataError
from cavity.study.columns import Column, ParsedColumn

DELIMITERS = ",;\t"
SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # the first bytes of files that Excel writes
OTHER_FORMATS = {
    **dict.fromkeys((".xlsx", ".xlsm", ".xls", ".ods", ".numbers"), "a spreadsheet cannot be read"),
    **dict.fromkeys((".sav", ".dta", ".sas7bdat", ".xpt", ".rds", ".rdata"), "a file of a statistics program"),
    **dict.fromkeys((".parquet", ".feather", ".arrow", ".json", ".db", ".sqlite"), "this is not a CSV file"),
    **dict.fromkeys((".gz", ".zip", ".bz2", ".xz", ".7z"), "a compressed file cannot be read"),
}


@dataclass(frozen=True)
class Table:
    """Columns of cells.

    Attributes:
        columns: name -> one cell per row.
        rows: the number of each row, as its owner counts.
        counted_as: what is counted: the lines of a file, the header being line 1, or the rows of a frame, from 0.
        broken: lines that do not have as many fields as the header; they are in no column.
    """

    columns: Mapping[str, Sequence[object]]
    rows: Sequence[int]
    counted_as: str = "row"
    broken: tuple[int, ...] = ()
    _parsed: dict[Column, ParsedColumn] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def parsed(self, column: Column) -> ParsedColumn:
        """The values of a column that the table has. Its cells are parsed on the first call only.

        Args:
            column: what the study declares about it.
        """
        if column not in self._parsed:
            self._parsed[column] = column.parse(self.columns[column.name])
            self._parsed[column].values.flags.writeable = False
        return self._parsed[column]


@runtime_checkable
class DataFrame(Protocol):
    """What Cavity needs of a data frame (pandas, polars)."""

    @property
    def columns(self) -> Iterable[object]:
        """The names of the columns."""
        ...

    def __getitem__(self, name: object, /) -> object:
        """One column."""
        ...


def read_csv(path: str | os.PathLike[str]) -> Table:
    """Read a CSV file with a header, in UTF-8, separated by commas, semicolons or tabs.

    Args:
        path: of the file.

    Returns:
        The table; its rows are numbered by the lines of the file.

    Raises:
        DataError: the file is not such a CSV file.
    """
    path = Path(path)
    if kind := OTHER_FORMATS.get(path.suffix.lower()):
        raise DataError(f"{path}: {kind}; save it as CSV in UTF-8, and give that file")
    try:
        with open(path, "rb") as file:
            if file.read(4) in SPREADSHEETS:
                raise DataError(f"{path}: a spreadsheet cannot be read; save it as CSV in UTF-8, and give that file")
        with open(path, encoding="utf-8-sig", newline="") as file:
            return _read(path, file.read())
    except FileNotFoundError:
        raise DataError(f"{path}: file not found; check the path") from None
    except IsADirectoryError:
        raise DataError(f"{path}: this is a folder; give a CSV file in it") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: the file is not text in UTF-8; save it as CSV in UTF-8") from None
    except csv.Error as error:
        raise DataError(
            f"{path}: the file cannot be read as CSV ({error}); check for a quote without its end"
        ) from None


def _read(path: Path, text: str) -> Table:
    first = text.split("\n", 1)[0]
    delimiter = max(DELIMITERS, key=first.count)  # a comma if there is none of them
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(reader, [])]
    if not any(header):
        raise DataError(f"{path}: no header; the first line must name the columns")
    if twice := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{path}: the header has column {sorted(twice)[0]!r} twice; every column needs its own name")
    if len(header) == 1 and "|" in header[0]:
        raise DataError(f"{path}: the header is {header[0]!r}; separate columns by commas, semicolons or tabs")
    cells, rows, broken, line = [], [], [], reader.line_num + 1
    for fields in reader:
        if len(fields) == len(header):
            cells.append(fields)
            rows.append(line)
        elif fields:
            broken.append(line)
        line = reader.line_num + 1  # a quoted field may span several lines
    columns = {name: [fields[i] for fields in cells] for i, name in enumerate(header)}
    return Table(columns, rows, "line", tuple(broken))


def as_table(value: object) -> Table:
    """A table from a dict of columns or a data frame (pandas, polars). A table is returned as it is.

    Args:
        value: the data.

    Returns:
        The table; its rows are numbered from 0.

    Raises:
        DataError: it is neither, or its columns differ in length.
    """
    match value:
        case Table():
            return value
        case Mapping():
            given = dict(value)
        case DataFrame():
            given = {name: value[name] for name in value.columns}
        case _:
            hint = (
                "; read the file first, for example with pandas.read_csv"
                if isinstance(value, (str, os.PathLike))
                else ""
            )
            raise DataError(f"data must be a dict of columns or a data frame, not a {type(value).__name__}{hint}")
    columns = {str(name): _cells(str(name), column) for name, column in given.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different numbers of rows: {lengths}")
    return Table(columns, range(next(iter(lengths.values()), 0)))


def _cells(name: str, column: object) -> Sequence[object]:
    array = np.asarray(column)
    if array.ndim != 1:
        raise DataError(f"column '{name}' must have one value per row; it has shape {array.shape}")
    if array.dtype.kind == "M":
        return [None if text == "NaT" else text for text in array.astype(str).tolist()]  # as ISO 8601
    return (array.astype("timedelta64[us]") if array.dtype.kind == "m" else array).tolist()
