"""Strict reading of the tables of a file: every key must be known, of its type and in its range.

Problems are collected, so that a user sees all of them at once. After a problem a method returns the default, or for a
required key a placeholder of the right type; `Page.finish` raises before anything uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

from cavity.errors import CavityError, StudyError
from cavity.study.line_numbers import line_of, spelled
from cavity.study.part import Part
from cavity.study.spelling import did_you_mean

LARGEST = 2**63  # of a whole number in a file
PLACEHOLDER = "unknown"  # for a required text that is missing

# keys that are easily written into another table: a key belongs to the last table above it
HOMES = {
    **dict.fromkeys(("name", "id", "clients", "min_rows", "max_total_rows"), ()),
    **dict.fromkeys(("formula", "family", "weights", "link"), ("model",)),
    **dict.fromkeys(("method", "covariance", "damping", "loss"), ("algorithm",)),
    **dict.fromkeys(("schedule", "rounds", "tolerance", "seed"), ("run",)),
}

T = TypeVar("T")
D = TypeVar("D")
Plain = str | int | float | bool


class Page:
    """A file that is being read, and what is wrong with it so far."""

    def __init__(self, text: str):
        self.text = text
        self.problems: list[str] = []

    def problem(self, path: tuple[str, ...], message: str) -> None:
        """Record what is wrong with a key."""
        line = line_of(self.text, path)
        key = spelled(path)
        where = key if line is None else f"{key} (line {line})"
        self.problems.append(f"{where}: {message}" if key else message)

    def finish(self) -> None:
        """Raise StudyError if anything is wrong."""
        if self.problems:
            raise StudyError(*self.problems)


class Section:
    """One table of a file. Keys are read by name; `close` refuses all others.

    Args:
        page: the file.
        path: the keys that lead to this table.
        values: of the table, as TOML gives them.
    """

    def __init__(self, page: Page, path: tuple[str, ...], values: Mapping[str, object]):
        self.page, self.path, self._values = page, path, values
        self._known: list[str] = []

    def problem(self, key: str, message: str) -> None:
        """Record what is wrong with one of this table's keys."""
        self.page.problem((*self.path, key), message)

    def has(self, key: str) -> bool:
        """Whether the file has the key."""
        return key in self._values

    def names(self) -> list[str]:
        """The keys that the file has."""
        return list(self._values)

    def is_table(self, key: str) -> bool:
        """Whether the value of the key is a table."""
        return _table(self._values.get(key)) is not None

    def is_text(self, key: str) -> bool:
        """Whether the value of the key is a text."""
        return _any_text(self._values.get(key)) is not None

    def text(self, key: str, default: D) -> str | D:
        """A text that is not empty."""
        return self._read(key, _text, "a text", default)

    def required_text(self, key: str) -> str:
        """A text that is not empty."""
        return self._required(key, _text, "a text", PLACEHOLDER)

    def word(self, key: str, words: Collection[str], default: D) -> str | D:
        """One of the given words."""
        value = self._read(key, _any_text, f"one of {', '.join(words)}", None)
        return default if value is None or not self._is_known(key, value, words) else value

    def required_word(
        self,
        key: str,
        words: Collection[str],
        shown: str = "",
        hint: Callable[[str, Collection[str]], str] | None = None,
    ) -> str | None:
        """One of the given words; None after a problem.

        Args:
            key: of this table.
            words: those that are allowed.
            shown: how a message lists them; by default separated by commas.
            hint: from a word and the known ones to a hint at what was meant; by default the one that is most alike.
        """
        value = self._required(key, _any_text, f"one of {shown or ', '.join(words)}", "")
        return value if value and self._is_known(key, value, words, shown, hint) else None

    def whole(self, key: str, default: D, *, least: int = 0) -> int | D:
        """A whole number of at least `least`."""
        return self._read(key, _whole_from(least), f"a whole number of at least {least}", default)

    def required_whole(self, key: str, *, least: int = 0) -> int:
        """A whole number of at least `least`."""
        return self._required(key, _whole_from(least), f"a whole number of at least {least}", least)

    def required_number(self, key: str) -> float:
        """A finite number."""
        return self._required(key, as_number, "a number", 0.0)

    def positive(self, key: str, default: D) -> float | D:
        """A positive finite number."""
        return self._read(key, _positive, "a positive number", default)

    def required_positive(self, key: str) -> float:
        """A positive finite number."""
        return self._required(key, _positive, "a positive number", 1.0)

    def texts(self, key: str, *, required: bool = True) -> tuple[str, ...]:
        """A list of different texts; whole numbers are read as texts, because levels are often coded as numbers."""
        what = "a list of texts"
        values = self._required(key, _texts, what, ()) if required else self._read(key, _texts, what, ())
        if twice := sorted({value for value in values if values.count(value) > 1}):
            self.problem(key, f"{twice[0]!r} is listed twice")
        return values

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers; empty if the file does not have it."""
        return self._read(key, _numbers, "a list of numbers", ())

    def interval(self, key: str) -> tuple[float, float] | None:
        """A list [smallest, largest], where `-inf` and `inf` leave an end open; None if the file does not have it."""
        return self._read(key, _interval, "a list [smallest, largest] of two numbers", None)

    def part(self, key: str, make: Mapping[str, Callable[..., object]], default: Part | None = None) -> Part | None:
        """A name, or a table with one name and a number.

        Args:
            key: of this table.
            make: what each name builds; building it checks the number.
            default: if the file does not have the key; None requires it.
        """
        what = "a name or { name = number }"
        read = self._required(key, _part, what, None) if default is None else self._read(key, _part, what, default)
        if read is None or read is default or not self._is_known(key, read.word, make):
            return default
        try:
            make[read.word](*([] if read.number is None else [read.number]))
        except TypeError:
            problem = f"needs a number: {{ {read.word} = ... }}" if read.number is None else "takes no (such) number"
            self.problem(key, f"{read.word!r} {problem}")
        except CavityError as error:
            self.problem(key, str(error))
        return read

    def plain(self, key: str) -> dict[str, Plain]:
        """A table of numbers, texts and truth values under names that the user chooses."""
        found: dict[str, Plain] = {}
        for name, value in (self._read(key, _table, "a table", None) or {}).items():
            match value:
                case str() | int() | float():
                    found[name] = value
                case _:
                    self.problem(key, f"{name!r} must be a number, a text, true or false")
        return found

    def section(self, key: str, *, required: bool = False) -> Section:
        """A table inside this one; an empty one if the file does not have it."""
        values = self._required(key, _table, "a table", {}) if required else self._read(key, _table, "a table", {})
        return Section(self.page, (*self.path, key), values)

    def each(self) -> Iterator[tuple[str, Section]]:
        """The tables inside this one, by the names that the user gave them."""
        for name in self._values:
            yield name, self.section(name)

    def refuse(self, key: str, message: str) -> None:
        """Record a problem if the file has the key; the key then counts as read."""
        if self.has(key):
            self._known.append(key)
            self.problem(key, message)

    def ignore(self, *keys: str) -> None:
        """Accept these keys without reading them."""
        self._known.extend(keys)

    def close(self, renamed: Mapping[str, str] | None = None) -> None:
        """Refuse keys that were not read.

        Args:
            renamed: keys of earlier versions, with their new names.
        """
        for key in self._values:
            if key in self._known:
                continue
            if new := (renamed or {}).get(key):
                self.problem(key, f"unknown key {key!r}; use {new!r}")
            elif (home := HOMES.get(key)) is not None and (*self.path,) != home:
                place = f"to [{home[0]}]" if home else "above the first table"
                self.problem(key, f"unknown key {key!r} here; it belongs {place}")
            else:
                hint = nearest(key, self._known)
                self.problem(key, f"unknown key {key!r}{hint}; choose one of: {', '.join(self._known)}")

    def _is_known(
        self,
        key: str,
        word: str,
        words: Collection[str],
        shown: str = "",
        hint: Callable[[str, Collection[str]], str] | None = None,
    ) -> bool:
        if word not in words:
            choices = shown or ", ".join(words)
            self.problem(key, f"unknown {key} {word!r}{(hint or nearest)(word, words)}; choose one of: {choices}")
        return word in words

    def _read(self, key: str, read: Callable[[object], T | None], what: str, default: D) -> T | D:
        self._known.append(key)
        if key not in self._values:
            return default
        if (value := read(self._values[key])) is not None:
            return value
        self.problem(key, f"must be {what}, not {self._values[key]!r}")
        return default

    def _required(self, key: str, read: Callable[[object], T | None], what: str, placeholder: D) -> T | D:
        if key not in self._values:
            self.problem(key, f"missing; it must be {what}")
        return self._read(key, read, what, placeholder)


def as_number(value: object, *, finite: bool = True) -> float | None:
    """A number as a float; None if it is something else, a truth value or NaN."""
    match value:
        case bool():
            return None
        case int():
            return float(value) if abs(value) < LARGEST else None
        case float():
            return value if (math.isfinite(value) if finite else not math.isnan(value)) else None
        case _:
            return None


def nearest(word: str, known: Collection[str]) -> str:
    """A hint at the known word that is most like this one, or nothing."""
    return did_you_mean(word, known, 0.5)


def _any_text(value: object) -> str | None:
    match value:
        case str():
            return value
        case _:
            return None


def _text(value: object) -> str | None:
    text = _any_text(value)
    return text if text is not None and text.strip() else None


def _table(value: object) -> dict[str, object] | None:
    match value:
        case dict():
            return {str(key): item for key, item in value.items()}
        case _:
            return None


def _whole_from(least: int) -> Callable[[object], int | None]:
    def read(value: object) -> int | None:
        match value:
            case bool():
                return None
            case int() if least <= value < LARGEST:
                return value
            case _:
                return None

    return read


def _positive(value: object) -> float | None:
    number = as_number(value)
    return number if number is not None and number > 0 else None


def _texts(value: object) -> tuple[str, ...] | None:
    match value:
        case list():
            found = [_level(item) for item in value]
            return None if None in found else tuple(item for item in found if item is not None)
        case _:
            return None


def _numbers(value: object) -> tuple[float, ...] | None:
    match value:
        case list():
            found = [as_number(item) for item in value]
            return None if None in found else tuple(item for item in found if item is not None)
        case _:
            return None


def _level(item: object) -> str | None:
    match item:
        case bool() | "":
            return None
        case str() | int():
            return str(item)
        case _:
            return None


def _interval(value: object) -> tuple[float, float] | None:
    match value:
        case [first, second]:
            low, high = as_number(first, finite=False), as_number(second, finite=False)
            return (low, high) if low is not None and high is not None and low < high else None
        case _:
            return None


def _part(value: object) -> Part | None:
    match value:
        case str():
            return Part(value)
        case dict() if len(value) == 1:
            word, number = next(iter(value.items()))
            found = as_number(number)
            return None if found is None else Part(str(word), found)
        case _:
            return None
