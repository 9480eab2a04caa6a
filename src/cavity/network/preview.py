"""Arrays that a client would send, as lines of text with the names of parameters beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jaxtyping import PyTree

DIGITS = 6  # of a number in a table


def labelled(title: str, value: PyTree, names: Sequence[str]) -> Iterator[str]:
    """Each array of a message: a table if it has one number or one row per parameter, else its numbers in a line.

    Args:
        title: in front of the name of each array.
        value: a tree of arrays.
        names: of the parameters.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        array, name = np.asarray(leaf), f"{title} {jax.tree_util.keystr(path).lstrip('.')}"
        if array.shape == (len(names),):
            yield f"  {name}, one number per parameter ({DIGITS} significant digits):"
            yield from _table(
                ["parameter", ""], [[own, _number(value)] for own, value in zip(names, array, strict=True)]
            )
        elif array.shape == (len(names), len(names)):
            yield f"  {name}, one row and one column per parameter ({DIGITS} significant digits):"
            rows = [[own, *map(_number, row)] for own, row in zip(names, array, strict=True)]
            yield from _table(["parameter", *names], rows)
        else:
            yield f"  {name} {array.tolist()}"


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for first, *rest in (header, *rows):
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        yield f"    {'  '.join(cells)}".rstrip()


def _number(value: float) -> str:
    return f"{value:.{DIGITS}g}"
