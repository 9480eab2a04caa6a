"""Algorithm: a method, as a client part and a server part.

One exchange, in the words of this file:

    inputs          = posterior, the client's entry, shared            # ledger.dispatch
    problem         = client.problem(inputs, local, data)              # at the client, traced
    solution        = client.solver on the problem
    update, local   = client.update(inputs, local, problem, solution)
    update, spent   = client.release.apply(private key, update, ...)   # privacy; most methods have none
    change          = server.absorb(state, replies)                    # at the server, each reply exactly once

A method with factors keeps one entry per client (`Entries`), and its posterior is a function of prior and entries. A
method without entries makes the next posterior from all replies of a round.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from cavity.core.messages import Change, ClientInput, ClientUpdate, Reply, ServerState, Stacked
from cavity.core.model import Data, Model
from cavity.core.solver import Solver
from cavity.core.types import Leaf
from cavity.errors import UnsuitableError


class Release(eqx.Module):
    """What happens to an update before it leaves the client: clipping, noise, a charge to a privacy budget.

    The key comes from a secret of the client and never from the study's seed, which the server knows. What has been
    spent is stored before the reply leaves, and stays spent if the server refuses the reply.
    """

    @abc.abstractmethod
    def initial(self, data: Data) -> PyTree:
        """What has been spent before the first update."""

    @abc.abstractmethod
    def apply(self, key: PRNGKeyArray, update: ClientUpdate, spent: PyTree, data: Data) -> tuple[ClientUpdate, PyTree]:
        """The update that is sent, and what has been spent with it. Traced, and vectorised over clients."""


class ClientPart(eqx.Module):
    """What runs at a client: pure functions, traced and vectorised over clients."""

    solver: eqx.AbstractVar[Solver]

    def initial_local(self, data: Data) -> PyTree:
        """What the client keeps between rounds (local latents); None for most methods."""
        return None

    @abc.abstractmethod
    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> PyTree:
        """The client's problem for one message."""

    @abc.abstractmethod
    def update(
        self, inputs: ClientInput, local: PyTree, problem: PyTree, solution: PyTree
    ) -> tuple[ClientUpdate, PyTree]:
        """The update and the new local state, from the solver's solution."""

    @property
    def release(self) -> Release | None:
        """What happens to an update before it leaves; None sends it as it is."""
        return None


class LocalUnits(eqx.Module):
    """Local state with one set of numbers per unit, which an engine may pad."""

    @abc.abstractmethod
    def resized(self, num_units: int) -> LocalUnits:
        """The same for so many units, those at the end being padding."""


class Entries(eqx.Module):
    """What the ledger keeps per client, and the posterior as a function of it."""

    @abc.abstractmethod
    def initial(self) -> PyTree:
        """The entry of a client that has not replied: the unit factor."""

    @abc.abstractmethod
    def merge(self, entry: PyTree, delta: PyTree, exponent: float | Leaf) -> PyTree:
        """A client's entry after its delta was accepted with this exponent."""

    @abc.abstractmethod
    def rebuild(self, prior: PyTree, entries: Sequence[PyTree] | Stacked) -> PyTree:
        """The posterior of prior and entries. It may be traced, with the entries stacked."""

    def joint(self) -> PyTree:
        """The server's joint entry where each client holds its own; raises ProtocolError where that is impossible."""
        return self.initial()

    def initial_posterior(self, prior: PyTree, posterior: PyTree, entries: Mapping[str, PyTree]) -> PyTree:
        """The posterior after initial entries were added: unchanged for a product."""
        return posterior

    def remaining(self, server: ServerState, entries: dict[str, PyTree]) -> dict[str, PyTree]:
        """The entries from which the others refine after one client has left."""
        return entries


class BlockState(eqx.Module):
    """The part of the server's state that a round changes, with entries stacked (None for methods without)."""

    posterior: PyTree
    entries: PyTree
    method: PyTree


class Absorbed(eqx.Module):
    """What became of one round of a block.

    Attributes:
        state: after the round.
        exponents: of each client.
        bound: the global bound at the posterior that the clients received.
        usable: whether the ledger would accept every reply; if not, the block ends before this round.
    """

    state: BlockState
    exponents: Float[Array, " clients"]
    bound: Float[Array, ""]
    usable: Bool[Array, ""]


class BlockPart(eqx.Module):
    """The server part as a traced function of all clients' updates, so that a block of rounds is one program."""

    @abc.abstractmethod
    def suits(self, server: ServerState, order: tuple[str, ...]) -> bool:
        """Whether a block can start here, with the clients stacked in this order."""

    @abc.abstractmethod
    def shared(self, seed: Array, version: Array, state: BlockState) -> PyTree:
        """What all clients are sent besides posterior and entry."""

    @abc.abstractmethod
    def absorb(self, prior: PyTree, state: BlockState, shared: PyTree, updates: ClientUpdate) -> Absorbed:
        """One round, from the updates of all clients, stacked."""


class ServerPart(eqx.Module):
    """What the server does with replies."""

    entries: eqx.AbstractVar[Entries | None]  # what the ledger keeps per client; None for methods without entries

    @property
    def block(self) -> BlockPart | None:
        """The same as a traced function; None where rounds cannot run as one program."""
        return None

    @abc.abstractmethod
    def initial_state(self, num_clients: int) -> PyTree:
        """The method's own state at the server (damping, optimiser)."""

    def shared(self, server: ServerState) -> PyTree:
        """What a message carries besides posterior and entry; None for most methods."""
        return None

    @abc.abstractmethod
    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        """The change of the server's state for these replies, each applied exactly once."""


@dataclass(frozen=True)
class Declaration:
    """What a client may send. The protocol decodes against it, and refuses anything else.

    Attributes:
        delta: a tree of the structure, shapes and kinds of numbers that an update's delta has. An array whose first
            axis is 0 and that has more axes stands for any length of that axis.
        gap: whether reports have a gap; else NaN is allowed.
        bound: whether the server uses the reports' free energies, so that they must be finite; else NaN is allowed.
    """

    delta: PyTree
    gap: bool = True
    bound: bool = False


class Convergence(eqx.Module):
    """How the progress of a run is judged. By default by the clients' gaps alone."""

    def bound(self, server: ServerState, posterior: PyTree) -> float:
        """The global bound at the posterior that the last round's clients received, in nats; NaN if not known."""
        return float("nan")

    def settled(self, method: PyTree) -> bool | None:
        """Whether the server's own state says that the run has converged; None where the gaps decide."""
        return None

    def describe(self, posterior: PyTree, method: PyTree) -> str | None:
        """For a summary: whether the run has converged by `settled`, and what to do if not; None if gaps decide."""
        return None


@dataclass(frozen=True)
class RunDefaults:
    """What a run does unless its user says otherwise.

    Attributes:
        rounds: the maximum number of rounds.
        rounds_per_block: how many rounds run as one program.
    """

    rounds: int = 100
    rounds_per_block: int = 1


class Algorithm(eqx.Module):
    """A method: a model, a client part and a server part."""

    model: eqx.AbstractVar[Model]

    @property
    @abc.abstractmethod
    def prior(self) -> PyTree:
        """The posterior before any data."""

    @property
    @abc.abstractmethod
    def client(self) -> ClientPart:
        """What runs at a client."""

    @property
    @abc.abstractmethod
    def server(self) -> ServerPart:
        """What the server does with replies."""

    @property
    @abc.abstractmethod
    def declaration(self) -> Declaration:
        """What a client may send."""

    @property
    def convergence(self) -> Convergence:
        """How the progress of a run is judged."""
        return Convergence()

    @property
    def defaults(self) -> RunDefaults:
        """What a run does unless its user says otherwise."""
        return RunDefaults()

    @property
    def initialisation(self) -> Initialisation | None:
        """A stage that runs first and finds where this method starts; None for most methods."""
        return None

    def log_likelihood(self, theta: PyTree, data: Data) -> Float[Array, ""]:
        """What a client's rows add to the log density that the posterior approximates, besides the prior. Traced.

        Raises:
            UnsuitableError: the posterior does not stand for a product of such terms.
        """
        raise UnsuitableError(
            f"{type(self).__name__} has no likelihood of a client's rows given the shared parameters; importance "
            "weights are for PVI, and FedGVI with multiples of KL"
        )

    def remark_on(self, delta: PyTree, data: Data) -> str | None:
        """What a client's owner should know about an update before it is sent; None for most methods."""
        return None


class Initialisation(eqx.Module):
    """A stage that runs before a method, on the same clients, and finds where the method starts."""

    algorithm: eqx.AbstractVar[Algorithm]

    @abc.abstractmethod
    def data(self, data: Data) -> Data:
        """A client's data as the stage's model needs them."""

    @abc.abstractmethod
    def start(self, posterior: PyTree) -> Algorithm:
        """The method, starting at the posterior that the stage has found."""
