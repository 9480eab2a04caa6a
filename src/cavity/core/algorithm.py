"""Both halves of a method, who works when, and where."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from cavity import ledger
from cavity.core.messages import ClientInput, ClientUpdate, Message, Reply, Report, ServerState, Stacked
from cavity.core.model import Data
from cavity.core.solver import Solver
from cavity.errors import UnsuitableError


class Damping(eqx.Module):
    """The server's choice of the exponent of each delta; a product that is improper is its second concern."""

    @abc.abstractmethod
    def init(self) -> PyTree:
        """The state before the first reply."""

    @abc.abstractmethod
    def choose(self, state: PyTree, gaps: Any, staleness: Any) -> tuple[Any, PyTree]:
        """The exponents of some replies. It may be traced: a block of rounds is one program.

        Args:
            state: what `init`, `choose` or `backed_off` returned.
            gaps: the last one of every member, these replies' included; infinite before a member's first.
            staleness: for each reply, the age in versions of what it answers.
        """

    @abc.abstractmethod
    def backed_off(self, state: PyTree) -> PyTree:
        """The state after the exponents were halved because the product was improper."""


class Algorithm(eqx.Module):
    """Both halves of a method. The client's: `problem` and `answer`, around a solve. The server's: `absorb`."""

    model: eqx.AbstractVar[Any]  # a Model, or a LatentModel
    solver: eqx.AbstractVar[Solver]
    absorbs_together: ClassVar[bool] = False  # whether `absorb` needs all replies that a plan waits for at once
    reserved_names: ClassVar[frozenset[str]] = frozenset()  # of entries of the server's own, which no client may have
    absorbs_in_double: ClassVar[bool] = True  # whether `absorb` is given answers in float64; else as they came

    @property
    @abc.abstractmethod
    def prior(self) -> Any:
        """What the posterior is before any data."""

    @abc.abstractmethod
    def initial_entry(self) -> PyTree:
        """The entry of a client that has not replied; None for methods without entries."""

    @abc.abstractmethod
    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Any:
        """The client's problem for one message; traced, and vectorised over clients."""

    @abc.abstractmethod
    def update(self, inputs: ClientInput, local: PyTree, problem: Any, solution: Any) -> tuple[ClientUpdate, PyTree]:
        """The client's change and report, and its new local state; traced, and vectorised over clients."""

    @abc.abstractmethod
    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        """The server's change for these replies, each applied exactly once."""

    @abc.abstractmethod
    def merge(self, entry: PyTree, delta: PyTree, exponent: Any) -> PyTree:
        """A client's entry after its delta was accepted with this exponent."""

    @abc.abstractmethod
    def initial_method(self, num_clients: int) -> PyTree:
        """The method's own state at the server (damping, optimiser)."""

    @abc.abstractmethod
    def initial_local(self, data: Data) -> PyTree:
        """What a client keeps to itself between rounds; None for most methods."""

    @abc.abstractmethod
    def shared(self, server: ServerState) -> PyTree:
        """What a message carries besides posterior and entry; None for most methods."""

    def remark_on(self, delta: PyTree, data: Data) -> str | None:
        """What a client's owner should know of an answer before it leaves; None for most methods."""
        return None

    def free_energy(self, server: ServerState, posterior: Any) -> float:
        """The global bound at the posterior that the last round's clients answered, in nats; NaN if not known."""
        return float("nan")

    def log_likelihood(self, theta: PyTree, data: Data) -> Any:
        """What these rows add to the log of the density that the posterior stands for, beside the prior; traced.

        Raises UnsuitableError where it stands for none that is a product over rows of what all parties share.
        """
        raise UnsuitableError(
            f"{type(self).__name__} has no likelihood of a client's rows given what all clients share; importance "
            "weights are for PVI, and FedGVI with multiples of KL"
        )

    def settled(self, method: PyTree) -> bool | None:
        """Whether the server's own state says that the run has converged; None where the clients' residuals do."""
        return None

    def convergence(self, posterior: Any, method: PyTree) -> str | None:
        """For a summary, whether it has converged by `settled`, and if not, what to do; None where residuals say so."""
        return None

    @property
    def owned(self) -> frozenset[str]:
        """Names of entries whose owner is the server: nothing crosses a wire for them."""
        return frozenset()

    @property
    def default_rounds(self) -> int:
        """After how many rounds a run ends at the latest, if its user does not say."""
        return 100

    @property
    def default_block(self) -> int:
        """How many rounds are run as one program, if the user does not say."""
        return 1

    def resized(self, local: PyTree, num_units: int) -> PyTree:
        """A client's local state for so many units, those at the end being padding."""
        return local

    @property
    def scout(self) -> Algorithm | None:
        """A method that finds where this one starts, run before it on what its `model.of` makes of the data."""
        return None

    def starting_at(self, found: Any) -> Algorithm:
        """The same method, starting at what its scout has found."""
        return self


class EntryAlgorithm(Algorithm):
    """A method with one entry per client, whose posterior is rebuilt from prior and entries after every change.

    Only the parts that differ are left abstract; a client that keeps local latents says so in `initial_local`.
    """

    damping: eqx.AbstractVar[Damping]
    absorbs_together: ClassVar[bool] = True  # one that came later would be damped and refused differently

    @abc.abstractmethod
    def rebuild(self, prior: Any, entries: Sequence[PyTree] | Stacked) -> Any:
        """The posterior as a function of prior and entries: a product, or a union. It may be traced, on stacks."""

    def remaining(self, server: ServerState, entries: dict[str, PyTree]) -> dict[str, PyTree]:
        """The entries of whoever stays when one has left, as a start of their refinement; as they are, for most."""
        return entries

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        return ledger.absorb_into_entries(self, server, replies)

    @property
    def in_blocks(self) -> bool:
        """Whether `absorb` is the ledger's own, so that rounds can run as one program."""
        return True

    @property
    def entries_multiply(self) -> bool:
        """Whether an entry is its factor and no more, so that one can stand for all where clients hold theirs."""
        return True

    @property
    def halvings_alone(self) -> int:
        """How often the exponent of one fresh reply may be halved for a proper posterior before it is refused."""
        return ledger.HALVINGS_ALONE

    def initial_method(self, num_clients: int) -> PyTree:
        return self.damping.init()

    def shared(self, server: ServerState) -> PyTree:
        return None

    def free_energy(self, server: ServerState, posterior: Any) -> float:
        return ledger.free_energy(server, posterior)


class CombiningAlgorithm(Algorithm):
    """A method without entries: the server makes its next posterior of all replies together (SFVI, averaging).

    Each accepted reply is used exactly once. Everything here may be traced: a block of rounds is one program.
    """

    absorbs_together: ClassVar[bool] = True
    absorbs_in_double: ClassVar[bool] = False  # its program converts them

    @property
    def default_block(self) -> int:
        return max(1, min(1000, self.default_rounds // 10))

    @abc.abstractmethod
    def exchange(self, seed: Any, version: Any, method: PyTree) -> PyTree:
        """What is the same for everybody in one round: noise of the global latents, a key, what the server knows."""

    @abc.abstractmethod
    def combine(
        self, posterior: Any, method: Any, exchange: PyTree, updates: ClientUpdate, share: Any
    ) -> tuple[Any, Any]:
        """The next posterior and method from the answers, stacked, of this share of all clients."""

    @abc.abstractmethod
    def bound(self, method: PyTree) -> Any:
        """The estimate of the global bound in the method's state."""

    def initial_entry(self) -> PyTree:
        return None

    def merge(self, entry: PyTree, delta: PyTree, exponent: Any) -> PyTree:
        return entry

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        return ledger.absorb_together(self, server, replies)

    def shared(self, server: ServerState) -> PyTree:
        return ledger.exchange_of(self, server)

    def free_energy(self, server: ServerState, posterior: Any) -> float:
        return float(self.bound(server.method))


@dataclass(frozen=True)
class Plan:
    """Who starts now, and how many replies to wait for before the next plan."""

    start: tuple[str, ...]
    wait: int


class Schedule(eqx.Module):
    """Who works when."""

    is_synchronous: ClassVar[bool] = False  # whether every plan is everybody: then rounds can run as a block

    @abc.abstractmethod
    def init(self, names: Sequence[str]) -> PyTree:
        """The state before the first plan. Also called when a client joins or leaves."""

    @abc.abstractmethod
    def next(
        self, rng: np.random.Generator, state: PyTree, gaps: Mapping[str, float], idle: Sequence[str]
    ) -> tuple[Plan, PyTree]:
        """The next plan, from the clients' last residuals (infinite before the first reply)."""

    @abc.abstractmethod
    def visits_per_round(self, num_clients: int) -> int:
        """How many accepted replies make a round, the unit of the history and of `rounds=`."""


class ClientSource(abc.ABC):
    """Where clients' data come from, when they are too many to hold at once."""

    @property
    @abc.abstractmethod
    def names(self) -> Sequence[str]:
        """All clients."""

    @abc.abstractmethod
    def load(self, names: Sequence[str]) -> Sequence[Any]:
        """The data of some clients, in their order; for `cavity.run` in any form that it takes from a dict.

        Called from another thread, one chunk ahead.
        """

    def num_rows(self, name: str) -> int | None:
        """How many rows a client has, where that can be told without loading them; else None.

        Clients of similar size then work together, and no small one waits for a large one.
        """
        return None


class BlockRound(eqx.Module):
    """What a block says of one of its rounds.

    Attributes:
        residuals: of each client.
        exponents: given to each.
        free_energy: sum of local free energies plus log Z, at the posterior that the clients answered.
        report: the clients' reports, stacked.
    """

    gaps: Any
    exponents: Any
    free_energy: Any
    report: Report


BlockRounds = Sequence[BlockRound] | Stacked


class Engine(abc.ABC):
    """Where the clients' halves run."""

    @abc.abstractmethod
    def submit(self, message: Message) -> None:
        """Queue a message for its client."""

    @abc.abstractmethod
    def collect(self, num_replies: int) -> list[Reply]:
        """Wait for replies, for at most so many, and return all that are there; none only if no more can come."""

    @abc.abstractmethod
    def client_states(self) -> dict[str, PyTree]:
        """What the clients keep, for a checkpoint; empty where the clients keep it themselves."""

    def advance(self, server: ServerState, num_rounds: int) -> tuple[ServerState, BlockRounds] | None:
        """A block of synchronous rounds as one program; None where this engine or method cannot.

        It ends before a round with a reply that is to be refused, and may so be empty: `submit` and `collect` go on.
        """
        return None

    def available(self, names: Sequence[str]) -> Sequence[str]:
        """Those of these clients that can be asked now. It may wait until there are some; none if `interrupted`."""
        return names

    @property
    def interrupted(self) -> bool:
        """Whether a round is to end early, with the replies that it has."""
        return False

    def problem_with(self, posterior: Any) -> str | None:
        """Why clients would not answer a posterior, or None; the ledger then refuses whoever's reply makes it so."""
        return None

    def tell(self, client: str, reason: str) -> None:
        """Tell a client why its reply was refused, where it is not in this process."""
        return

    def refused(self) -> list[str]:
        """The clients whose answers this engine itself has refused since it was last asked, once for each."""
        return []

    @property
    def virtual_seconds(self) -> float | None:
        """The time in the world that the engine simulates, if it does."""
        return None

    @property
    def compute_seconds(self) -> float | None:
        """The seconds so far in which clients' halves were computed, if the engine counts them."""
        return None

    def close(self) -> None:
        """End what runs beside the program."""
        return
