"""What carries bytes between the server and its clients, whoever does it: Flower on a network, a list in a test."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class PostLost(Exception):
    """What was under way will not arrive; the post has to be opened again."""


@dataclass(frozen=True)
class Delivery:
    """What became of a letter: the answer to it, or why there is none.

    Attributes:
        letter: the number that `send` gave it.
        content: of the answer; None where there is none.
        problem: why not.
    """

    envelope: str
    content: bytes | None
    problem: str = ""


class Transport(abc.ABC):
    """Carries messages to addresses, and replies back. It may lose, delay and repeat them."""

    @abc.abstractmethod
    def reachable(self) -> dict[str, str | None]:
        """The addresses that are connected now, and whose each is, where it is known (by a registered key)."""

    @abc.abstractmethod
    def send(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, str]:
        """Send a message to each address; the number of each message, for those that could be sent.

        Args:
            messages: address -> content.
            seconds: to live; after that a message that was not answered is lost.
        """

    @abc.abstractmethod
    def fetch(self, numbers: Iterable[str]) -> list[Delivery]:
        """The replies to these messages that have come, each once; without waiting."""
