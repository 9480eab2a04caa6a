"""Transport: carries bytes between the server and its clients. Flower on a network, a simulated one in tests."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class TransportLost(Exception):
    """Messages under way will not arrive; the transport has to be opened again."""


@dataclass(frozen=True)
class Delivery:
    """The result of one message: the response to it, or why there is none.

    Attributes:
        number: the number that `send` gave the message.
        content: of the response; None where there is none.
        problem: why there is no response.
    """

    number: str
    content: bytes | None
    problem: str = ""


class Transport(abc.ABC):
    """Carries messages to addresses, and responses back. It may lose, delay and repeat them."""

    @abc.abstractmethod
    def reachable(self) -> dict[str, str | None]:
        """The addresses that are connected now, each with its client's name if known (by a registered key)."""

    @abc.abstractmethod
    def send(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, str]:
        """Send one message to each address.

        Args:
            messages: address -> content.
            seconds: time to live; a message without a response by then is lost.

        Returns:
            Address -> the number of its message, for those that could be sent.
        """

    @abc.abstractmethod
    def fetch(self, numbers: Iterable[str]) -> list[Delivery]:
        """The responses to these messages that have arrived, each once; does not wait."""
