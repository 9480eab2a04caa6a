"""Strict reading of the tables of a file: every key is known, of its type and in its range, or it is a problem.

Problems are collected, so that a user sees all of them at once; what a method returns after one is a stand-in.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from cavity.errors import CavityError, StudyError
from cavity.study.line_numbers import line_of, spelled
from cavity.study.schema import Part

NEEDED: Any = object()  # the default of a key that must be there
LARGEST = 2**63  # of a whole number in a file


class Page:
    """A file being read, and what is wrong with it so far."""

    def __init__(self, text: str):
        self.text = text
        self.problems: list[str] = []

    def problem(self, path: tuple[str, ...], message: str) -> None:
        """Note what is wrong with a key."""
        line = line_of(self.text, path)
        key = spelled(path)
        where = key if line is None else f"{key} (line {line})"
        self.problems.append(f"{where}: {message}" if key else message)

    def finish(self) -> None:
        """Raise StudyError if anything was wrong."""
        if self.problems:
            raise StudyError(*self.problems)


class Section:
    """One table: keys are asked for by name, and `close` refuses all others."""

    def __init__(self, page: Page, path: tuple[str, ...], values: Mapping[str, Any]):
        self.page, self.path, self._values = page, path, values
        self._known: list[str] = []

    def problem(self, key: str, message: str) -> None:
        """Note what is wrong with one of this table's keys."""
        self.page.problem((*self.path, key), message)

    def has(self, key: str) -> bool:
        """Whether the file has it."""
        return key in self._values

    def names(self) -> list[str]:
        """The keys that the file has."""
        return list(self._values)

    def is_table(self, key: str) -> bool:
        """Whether the file has a table there."""
        return isinstance(self._values.get(key), dict)

    def text(self, key: str, default: Any = NEEDED) -> Any:
        """A text that is not empty."""
        return self._take(key, default, lambda value: isinstance(value, str) and value.strip() != "", "a text")

    def word(self, key: str, words: Collection[str], default: Any = NEEDED) -> Any:
        """One of some words."""
        value = self._take(key, default, lambda value: isinstance(value, str), f"one of {', '.join(words)}")
        if isinstance(value, str) and value not in words and value is not default:
            self.problem(key, f"there is no {value!r}{_nearest(value, words)}; there is: {', '.join(words)}")
            return None if default is NEEDED else default
        return value

    def whole(self, key: str, default: Any = NEEDED, *, least: int = 0) -> Any:
        """A whole number of at least `least`."""

        def fits(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and least <= value < LARGEST

        return self._take(key, default, fits, f"a whole number of at least {least}")

    def number(self, key: str, default: Any = NEEDED) -> Any:
        """A finite number, as a float."""
        value = self._take(key, default, is_number, "a number")
        return float(value) if is_number(value) else value

    def positive(self, key: str, default: Any = NEEDED) -> Any:
        """A positive finite number, as a float."""
        value = self._take(key, default, lambda value: is_number(value) and value > 0, "a positive number")
        return float(value) if is_number(value) else value

    def texts(self, key: str, default: Any = NEEDED) -> tuple[str, ...]:
        """A list of different texts; whole numbers are taken as texts, since levels are often coded so."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(
                (isinstance(item, str) and item != "") or (isinstance(item, int) and not isinstance(item, bool))
                for item in value
            )

        values = tuple(str(item) for item in self._take(key, default, fits, "a list of texts") or ())
        if twice := sorted({value for value in values if values.count(value) > 1}):
            self.problem(key, f"{twice[0]!r} is there twice")
        return values

    def interval(self, key: str) -> tuple[float, float] | None:
        """A list [smallest, largest], where `-inf` and `inf` leave an end open; None if it is not there."""

        def fits(value: Any) -> bool:
            numbers = isinstance(value, list) and len(value) == 2 and all(is_number(v, finite=False) for v in value)
            return numbers and value[0] < value[1]

        value = self._take(key, None, fits, "a list [smallest, largest] of two numbers")
        return None if value is None else (float(value[0]), float(value[1]))

    def part(self, key: str, make: Mapping[str, Callable[..., Any]], default: Any = NEEDED) -> Any:
        """A word, or a table with one word and a number; `make` has what each word builds, which checks the number."""
        value = self._take(key, default, lambda value: isinstance(value, (str, dict)), "a word or { word = number }")
        if isinstance(value, str):
            part = Part(value)
        elif isinstance(value, dict):
            word, number = next(iter(value.items()), ("", math.nan))
            if len(value) != 1 or not is_number(number):
                self.problem(key, "it must be a word, or one word and its number: { word = number }")
                return None
            part = Part(word, float(number))
        else:
            return value
        if part.word not in make:
            self.problem(key, f"there is no {part.word!r}{_nearest(part.word, make)}; there is: {', '.join(make)}")
            return None
        try:
            make[part.word](*([] if part.number is None else [part.number]))
        except TypeError:
            problem = f"needs a number: {{ {part.word} = ... }}" if part.number is None else "takes no (such) number"
            self.problem(key, f"{part.word!r} {problem}")
        except CavityError as error:
            self.problem(key, str(error))
        return part

    def plain(self, key: str) -> dict[str, Any]:
        """A table of numbers, texts and truth values under names of the user's own."""
        values = self._take(key, {}, lambda value: isinstance(value, dict), "a table")
        for name, value in values.items():
            if not isinstance(value, (str, int, float)):
                self.problem(key, f"{name!r} must be a number, a text, true or false")
        return values

    def section(self, key: str, *, needed: bool = False) -> Section:
        """A table inside of this one; an empty one if it is not there."""
        values = self._take(key, NEEDED if needed else {}, lambda value: isinstance(value, dict), "a table")
        return Section(self.page, (*self.path, key), values or {})

    def each(self) -> Iterator[tuple[str, Section]]:
        """The tables inside of this one, by the names that the user gave them."""
        for name in self._values:
            yield name, self.section(name)

    def close(self) -> None:
        """Refuse keys that were not asked for."""
        for key in self._values:
            if key not in self._known:
                known = ", ".join(self._known)
                self.problem(key, f"there is no such key{_nearest(key, self._known)}; here are: {known}")

    def _take(self, key: str, default: Any, fits: Callable[[Any], bool], what: str) -> Any:
        self._known.append(key)
        if key not in self._values:
            if default is NEEDED:
                self.problem(key, f"it is missing; it must be {what}")
                return None
            return default
        value = self._values[key]
        if fits(value):
            return value
        self.problem(key, f"it must be {what}, not {value!r}")
        return None if default is NEEDED else default


def is_number(value: Any, *, finite: bool = True) -> bool:
    """Whether it is a number, and not a truth value or NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if isinstance(value, int):
        return abs(value) < LARGEST
    return math.isfinite(value) if finite else not math.isnan(value)


def _nearest(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f" (is {near[0]!r} meant?)" if near else ""
