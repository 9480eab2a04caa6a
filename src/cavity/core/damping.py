"""Damping: the exponent that the server gives to each update."""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import Float, PyTree

from cavity.core.types import Leaf


class Damping(eqx.Module):
    """The server's choice of exponents. That the posterior stays proper is checked afterwards."""

    @abc.abstractmethod
    def init(self) -> PyTree:
        """The state before the first reply."""

    @abc.abstractmethod
    def choose(self, state: PyTree, gaps: Float[Leaf, " clients"], staleness: Leaf) -> tuple[Leaf, PyTree]:
        """The exponents of some replies. It may be traced, since a block of rounds is one program.

        Args:
            state: the state that `init`, `choose` or `backed_off` returned.
            gaps: the last gap of every client, those of these replies included; infinite before a client's first.
            staleness: for each reply, how many versions ago the posterior was current that it answers.

        Returns:
            One exponent for each reply, and the new state.
        """

    @abc.abstractmethod
    def backed_off(self, state: PyTree) -> PyTree:
        """The state after the exponents were halved because the posterior was improper."""
