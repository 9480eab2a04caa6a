"""A part of a method as a study file names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part by its name in the file, with the one number that it may take: `{ beta = 0.5 }`."""

    word: str
    number: float | int | None = None

    def __str__(self) -> str:
        return self.word if self.number is None else f"{self.word} = {self.number:g}"
