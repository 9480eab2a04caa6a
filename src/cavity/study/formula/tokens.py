"""The tokens of a formula, and errors that show a position.

A formula comes from a file that others wrote. It is split here into tokens of five kinds. No part of it is ever
evaluated as Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cavity.errors import StudyError

MAX_LENGTH = 50_000  # characters
MAX_TOKENS = 10_000
MAX_NAME = 300  # characters
MAX_NUMBER = 100
SHOWN = 100  # characters of a formula in a message

# Quantifiers are possessive (`++`): the time is linear in the length, whatever the text.
TOKEN = re.compile(
    r"""
      (?P<space>\s++)
    | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+(?![\w.]))
    | (?P<name>[\w.]++)
    | `(?P<quoted>(?:[^`\\]|\\.)++)`
    | (?P<operator>\*\*|\|\||%in%|[-+*/:^~|()\[\]{},=])
    """,
    re.VERBOSE | re.DOTALL,
)
# Characters that cannot be written to a file, or that would change what a terminal shows. Tabs, line breaks are spaces.
HIDDEN = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
REASONS = {
    "`": "a name between backticks has no end, or is empty",
    "%": "the only operator between percent signs is %in%",
    "'": "a formula may not have texts; names with spaces go between backticks",
    '"': "a formula may not have texts; names with spaces go between backticks",
    **dict.fromkeys("<>!&", "a comparison is not available; add a column to the data at each site"),
    "$": "write the name of the column alone",
    "#": "a formula may not have comments",
}


@dataclass(frozen=True)
class Token:
    """A token of a formula.

    Attributes:
        kind: "number", "name", "quoted" (a name between backticks), "operator" or "end".
        text: without backticks.
        at: the position of its first character, from 0.
    """

    kind: str
    text: str
    at: int


def tokenize(text: str) -> list[Token]:
    """All tokens, followed by one of the kind "end". Raises StudyError."""
    if len(text) > MAX_LENGTH:
        raise refusal(text, MAX_LENGTH, f"the formula is longer than {MAX_LENGTH} characters")
    if (hidden := HIDDEN.search(text)) is not None:
        raise refusal(text, hidden.start(), f"unexpected {hidden[0]!r}, which cannot be shown")
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            reason = REASONS.get(text[at], "a formula may have columns, numbers, operators and functions of one row")
            raise refusal(text, at, f"unexpected {text[at]!r}; {reason}")
        kind = match.lastgroup or ""
        if kind != "space":
            if len(match[0]) > (MAX_NUMBER if kind == "number" else MAX_NAME):
                raise refusal(text, at, f"this {kind} is too long")
            if len(tokens) == MAX_TOKENS:
                raise refusal(text, at, f"the formula has more than {MAX_TOKENS} words")
            tokens.append(Token(kind, match[kind], at))
        at = match.end()
    return [*tokens, Token("end", "", len(text))]


def refusal(text: str, at: int, reason: str) -> StudyError:
    """An error that shows the position; the first character of a formula is character 1.

    Args:
        text: of the formula.
        at: the position, from 0.
        reason: why it is refused.
    """
    first = max(0, min(at - SHOWN // 2, len(text) - SHOWN))
    piece = text[first : first + SHOWN]
    shown = f"{'...' if first else ''}{piece}{'...' if first + SHOWN < len(text) else ''}"
    near = f" (at {text[at : at + 20]!r})" if at < len(text) else " (its end)"
    return StudyError(f"the formula {shown!r} is refused at character {at + 1}{near}: {reason}")
