"""Posterior draws as a table in a file: CSV by numpy, Parquet by pyarrow."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Array

from cavity.errors import CavityError
from cavity.fit.local_posterior import latent_names
from cavity.io.checkpoints import write_atomically


def columns_of(draws: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """One column of draws per number.

    Args:
        draws: by parameter, with the draws as leading axis.
    """
    found = {}
    for parameter, values in draws.items():
        flat = np.asarray(values).reshape(len(values), -1)
        found |= dict(zip(latent_names({parameter: values}), flat.T, strict=True))
    return found


def csv_text(columns: Mapping[str, np.ndarray]) -> str:
    """Columns as CSV, with numbers that are read back exactly.

    Args:
        columns: of equal lengths.
    """
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(map(repr, np.asarray(column, float).tolist()) for column in columns.values()), strict=True))
    return page.getvalue()


def write_draws(draws: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write draws in the format of the file's name.

    Args:
        draws: by parameter, with the draws as leading axis.
        path: ends in `.csv` or `.parquet`.
    """
    path, columns = Path(path), columns_of(draws)
    match path.suffix.lower():
        case ".csv":
            content = csv_text(columns).encode()
        case ".parquet":
            content = _parquet(columns)
        case _:
            raise CavityError(f"{path}: draws are written as .csv or .parquet; end the name with one of them")
    write_atomically(path, content)


def _parquet(columns: Mapping[str, np.ndarray]) -> bytes:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise CavityError("Parquet files need pyarrow: pip install pyarrow; or write a .csv file") from None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), sink)
    return sink.getvalue().to_pybytes()
