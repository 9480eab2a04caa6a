"""ClientSource: clients that are loaded when they are needed, because they are too many to hold at once."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from jaxtyping import PyTree


class ClientSource(abc.ABC):
    """Where the data of very many clients come from."""

    @property
    @abc.abstractmethod
    def names(self) -> Sequence[str]:
        """All clients."""

    @abc.abstractmethod
    def load(self, names: Sequence[str]) -> Sequence[PyTree]:
        """The data of some clients, in their order, in any form that `cavity.run` takes from a dict.

        It is called from another thread, one chunk ahead.
        """

    def num_rows(self, name: str) -> int | None:
        """How many rows a client has, if that is known without loading them; else None.

        Clients of similar size are then loaded together.
        """
        return None
