"""Hints at the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

LIKE = 0.6  # of difflib's ratio: from here two names are alike


def meant(word: str, known: Collection[str], least: float = LIKE) -> str | None:
    """The known name that is most like a word, in upper or lower case; None if none is.

    Args:
        word: that is not known.
        known: the names.
        least: the smallest likeness, between 0 and 1.
    """
    by_lower: dict[str, str] = {}
    for name in known:
        by_lower.setdefault(name.strip().lower(), name)
    wanted = word.strip().lower()
    near = [wanted] if wanted in by_lower else difflib.get_close_matches(wanted, list(by_lower), 1, least)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, known: Collection[str], least: float = LIKE) -> str:
    """A hint at the known name that is most like a word, to go into a message; empty if none is.

    >>> did_you_mean("SBP", ["age", "sbp"])
    " (did you mean 'sbp'?)"
    """
    found = meant(word, known, least)
    return "" if found is None else f" (did you mean {found!r}?)"
