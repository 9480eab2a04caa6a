"""Engine: where the client parts run. Blocks: several synchronous rounds as one program."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import equinox as eqx
from jaxtyping import PyTree

from cavity.core.messages import Message, Reply, Report, ServerState, Stacked
from cavity.core.types import Leaf


class BlockRound(eqx.Module):
    """The record of one round of a block.

    Attributes:
        gaps: of each client.
        exponents: given to each.
        bound: the global bound at the posterior that the clients received.
        report: the clients' reports, stacked.
    """

    gaps: Leaf
    exponents: Leaf
    bound: Leaf
    report: Report


BlockRounds = Sequence[BlockRound] | Stacked


class Engine(abc.ABC):
    """Where the client parts run."""

    @abc.abstractmethod
    def submit(self, message: Message) -> None:
        """Queue a message for its client."""

    @abc.abstractmethod
    def collect(self, num_replies: int) -> list[Reply]:
        """Wait for at most so many replies, and return all that have come; none only if no more can come."""

    @abc.abstractmethod
    def client_states(self) -> dict[str, PyTree]:
        """What the clients keep, for a checkpoint; empty where the clients store it themselves."""

    def advance(self, server: ServerState, num_rounds: int) -> tuple[ServerState, BlockRounds] | None:
        """A block of synchronous rounds as one program; None where this engine or method cannot.

        The block ends before a round with a reply that must be refused, so it may be empty. The loop then continues
        with `submit` and `collect`.
        """
        return None

    def available(self, names: Sequence[str]) -> Sequence[str]:
        """The clients among these that can be asked now. It may wait until there is one; none if `interrupted`."""
        return names

    @property
    def interrupted(self) -> bool:
        """Whether a round should end early, with the replies that it has."""
        return False

    def problem_with(self, posterior: PyTree) -> str | None:
        """Why clients would refuse a posterior, or None. The ledger then refuses the reply that makes it so."""
        return None

    def tell(self, client: str, reason: str) -> None:
        """Send a client in another process the reason why its reply was refused."""
        return

    def refused(self) -> list[str]:
        """The clients whose replies this engine itself has refused since the last call, once for each reply."""
        return []

    @property
    def virtual_seconds(self) -> float | None:
        """The simulated time, if the engine simulates one."""
        return None

    @property
    def compute_seconds(self) -> float | None:
        """The seconds spent so far in client parts, if the engine counts them."""
        return None

    def close(self) -> None:
        """Stop the engine's threads and processes."""
        return
