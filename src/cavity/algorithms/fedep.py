"""FedEP (Guo et al., 2023): expectation propagation over clients, with tilted inference that scales to networks.

| paper | here |
| --- | --- |
| q_global | `inputs.posterior` |
| q_k | `inputs.entry.factor` |
| q_-k = q_global / q_k | `cavity` |
| tilted inference (section 2.2.2) | a solver: `SGMCMC` with covariance I, M, L or V; `PowerEP`, `MomentMatching` |
| delta q_k | `delta` |
| optim(delta eta) (section 2.2.3) | `optimiser`, on natural parameters |

An optimiser on deltas acts per entry by default, with its memory in the entry, so that the posterior stays the prior
times the factors. The paper has one at the server too, on the mean of a round's deltas, and with it the product of
factors is no longer the posterior; `server_optimiser` does that, and the difference is an entry of the server's own. If
a client leaves, its factor is removed, but its effect on the state of the server's optimiser stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from cavity.aggregation.damping import Fixed
from cavity.aggregation.entries import IMPROPER_ALONE, EntryServer, without
from cavity.aggregation.propriety import HALVINGS_ALONE, MAX_HALVINGS, proper_scale
from cavity.algorithms.ascent import Ascent, AscentState, MakeOptimiser
from cavity.algorithms.cavities import OwnFactor, Removal
from cavity.algorithms.factors import FactorAlgorithm, FactorClient, check_parts
from cavity.core import (
    ClientPart,
    Damping,
    Data,
    Distribution,
    Divergence,
    Entries,
    LatentModel,
    Loss,
    Model,
    Problem,
    ServerPart,
    Solution,
    Solver,
)
from cavity.core.fields import is_traced, require_kind
from cavity.core.host import is_proper, to_host
from cavity.core.messages import Change, ClientInput, ClientUpdate, Reply, ServerState, Stacked
from cavity.core.types import Leaf
from cavity.distributions import DiagonalGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.natural import product
from cavity.divergences.kl import KL
from cavity.errors import ProtocolError, UnsuitableError
from cavity.losses.nll import NegativeLogLikelihood
from cavity.models.numpyro.globals_only import as_rows

REMAINDER = "(optimiser)"  # the entry of what the server's optimiser adds to the factors


class Entry(eqx.Module):
    """A client's factor, and the state of its optimiser."""

    factor: Distribution
    memory: PyTree


class OptimiserState(eqx.Module):
    """The method's own state, where the server has an optimiser."""

    damping: PyTree
    memory: PyTree


class OptimisedFactors(Entries):
    """One factor per client, each with the state of an optimiser that acts on its deltas.

    Attributes:
        prior: whose power 0 is the unit factor.
        optimiser: of each entry; None multiplies the factor by delta ** exponent.
    """

    prior: Distribution
    optimiser: Ascent | None

    def initial(self) -> Entry:
        return self.entry_of(self.prior**0.0)

    def entry_of(self, factor: Distribution) -> Entry:
        """An entry with this factor and the initial state of its optimiser."""
        return Entry(factor, () if self.optimiser is None else self.optimiser.init(factor))

    def merge(self, entry: Entry, delta: Distribution, exponent: float | Leaf) -> Entry:
        if self.optimiser is None:
            return Entry(entry.factor * delta**exponent, entry.memory)
        moved, memory = _step(self.optimiser, entry.factor, entry.memory, delta)
        return Entry(entry.factor * (moved / entry.factor) ** exponent, memory)

    def rebuild(self, prior: Distribution, entries: Sequence[Entry] | Stacked) -> Distribution:
        if not entries:
            return prior
        stacked = isinstance(entries, Stacked)
        return prior * product(Stacked(entries.tree.factor) if stacked else [entry.factor for entry in entries])

    def joint(self) -> Entry:
        if self.optimiser is not None:
            raise ProtocolError(
                "entries that include an optimiser's state cannot be kept by the clients; let the server keep them"
            )
        return self.initial()


class EntryFactorClient(ClientPart):
    """The client part of PVI on the factor of its entry."""

    solver: Solver
    inner: FactorClient

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Problem:
        return self.inner.problem(replace(inputs, entry=inputs.entry.factor), local, data)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: Problem, solution: Solution
    ) -> tuple[ClientUpdate, PyTree]:
        return self.inner.update(replace(inputs, entry=inputs.entry.factor), local, problem, solution)


class OptimisedServer(ServerPart):
    """An optimiser on the mean of a round's deltas. Its posterior divided by the product of factors is an entry of the
    server.

    Attributes:
        entries: the clients' factors, and the difference.
        damping: of the clients' factors.
        optimiser: of the server.
        prior: of the posterior's family.
    """

    entries: ServerHeld
    damping: Damping
    optimiser: Ascent
    prior: Distribution

    def initial_state(self, num_clients: int) -> OptimiserState:
        return OptimiserState(self.damping.init(), self.optimiser.init(self.prior))

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        replies = [replace(reply, update=to_host(reply.update)) for reply in replies]
        posterior, memory, scale = self._moved(server, replies, MAX_HALVINGS)
        if scale < 1 and len(replies) > 1:
            bad = [reply.client for reply in replies if not self._moved(server, [reply], HALVINGS_ALONE)[2]]
            if bad:
                reasons = dict.fromkeys(bad, IMPROPER_ALONE)
                return without(reasons, server, replies, lambda others: self.absorb(server, others))
        if not scale:
            refused = dict.fromkeys((reply.client for reply in replies), 0.0)
            return Change(server.posterior, server.entries, server.method, refused)
        entries, part = dict(server.entries), self.entries
        for reply in replies:
            entries[reply.client] = part.merge(entries[reply.client], reply.update.delta, 1.0)
        entries.pop(REMAINDER, None)
        entries[REMAINDER] = Entry(posterior / part.rebuild(server.prior, list(entries.values())), ())
        exponents = dict.fromkeys((reply.client for reply in replies), scale)
        return Change(posterior, entries, OptimiserState(server.method.damping, memory), exponents)

    def _moved(
        self, server: ServerState, replies: Sequence[Reply], most: int
    ) -> tuple[Distribution, AscentState, float]:
        """The optimiser's step, halved until the posterior is proper.

        Returns:
            The new posterior, the optimiser's state, and the share of the step that was taken (0 if none is proper).
        """
        mean = product([reply.update.delta for reply in replies]) ** (1.0 / len(replies))
        moved, memory = _step(self.optimiser, server.posterior, server.method.memory, mean)

        def at(scale: float | Leaf) -> Distribution:
            return moved if scale == 1.0 else server.posterior * (moved / server.posterior) ** scale

        scale = float(proper_scale(lambda scale: is_proper(at(scale)), most))
        return (at(scale) if scale else server.posterior), memory, scale


class ServerHeld(Entries):
    """Entries that only the server can hold."""

    inner: Entries

    def initial(self) -> PyTree:
        return self.inner.initial()

    def merge(self, entry: PyTree, delta: PyTree, exponent: float | Leaf) -> PyTree:
        return self.inner.merge(entry, delta, exponent)

    def rebuild(self, prior: PyTree, entries: Sequence[PyTree] | Stacked) -> PyTree:
        return self.inner.rebuild(prior, entries)

    def joint(self) -> PyTree:
        raise ProtocolError(
            "with an optimiser at the server the clients cannot keep the entries, because its state is an entry too; "
            "let the server keep them"
        )


class FedEP(FactorAlgorithm):
    """Expectation propagation with one factor per client, for any model, solver and optimiser.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        solver: finds the tilted distribution.
        damping: the server's choice of exponents, after the optimiser's.
        loss: the negative log likelihood.
        divergence: what a solver by energy sees; the moments of the tilted distribution minimise KL(tilted : q).
        removed: the client's own factor.
        optimiser: of each entry.
        server_optimiser: of the mean of a round's deltas; None keeps the posterior the product of its entries.
    """

    optimiser: Ascent | None
    server_optimiser: Ascent | None

    def __init__(
        self,
        model: Model | LatentModel,
        *,
        solver: Solver | None = None,
        optimiser: MakeOptimiser | None = None,
        step_size: float = 1.0,
        server_optimiser: MakeOptimiser | None = None,
        server_step_size: float = 1.0,
        damping: Damping | None = None,
        removed: Removal | None = None,
    ):
        """The parts.

        Args:
            model: the model.
            solver: None is EP by quadrature where the model allows, else a chain with a scaled identity.
            optimiser: from a step size to an optax transformation, on each entry's deltas; None is plain damping.
            step_size: of the optimiser, or the damping's exponent.
            server_optimiser: the paper's, on the mean of a round's deltas.
            server_step_size: its step size.
            damping: applied after the optimiser; by default none.
            removed: None removes the client's own factor.
        """
        model = as_rows(model)
        self.model = model
        self.loss, self.divergence = NegativeLogLikelihood(), KL()
        self.removed = OwnFactor() if removed is None else removed
        self.optimiser = None if optimiser is None else Ascent(optimiser, step_size)
        self.server_optimiser = None if server_optimiser is None else Ascent(server_optimiser, server_step_size)
        plain = Fixed(step_size if optimiser is None else 1.0)
        self.damping = plain if damping is None else damping
        self.solver = _default_solver(model, self.loss, self.divergence) if solver is None else solver
        check_parts(model, self.loss, self.divergence, self.solver)

    @property
    def entries(self) -> OptimisedFactors:
        return OptimisedFactors(self.prior, self.optimiser)

    @property
    def client(self) -> ClientPart:
        return EntryFactorClient(self.solver, self._factor_client)

    @property
    def server(self) -> ServerPart:
        if self.server_optimiser is None:
            return EntryServer(self.entries, self.damping, self.halvings_alone)
        return OptimisedServer(ServerHeld(self.entries), self.damping, self.server_optimiser, self.prior)

    @property
    def halvings_alone(self) -> int:
        return super().halvings_alone if self.optimiser is None else HALVINGS_ALONE

    def start_from_point(
        self, server: ServerState, count_rows: Callable[[], Mapping[str, float]], precision_per_row: float
    ) -> ServerState:
        """The state that starts at a point estimate from the rows of all clients. Each client's factor has its share of
        the point.

        With unit factors the rows would count twice: once in the point, and again in the next factors.
        """
        num_rows = count_rows()
        part, location = self.entries, server.posterior.location
        found = {name: identity(self.prior, location, precision_per_row * num_rows[name]) for name in server.clients}
        entries = to_host({name: part.entry_of(factor) for name, factor in found.items()})
        prior = to_host(self.prior)
        return replace(
            server,
            prior=prior,
            entries=entries,
            posterior=part.rebuild(prior, list(entries.values())),
            method=to_host(self.server.initial_state(len(entries))),
            version=server.version + 1,
        )


def identity(prior: Distribution, location: Leaf, precision: float) -> Gaussian:
    """The factor N(location, I / precision), in the family of the prior."""
    family = require_kind(prior, Gaussian, "a start from a point is for Gaussian families", UnsuitableError)
    with jax.enable_x64(True):
        location = jnp.asarray(location, float)
        unit = DiagonalGaussian(location, jnp.ones_like(location))  # mean `location`, precision 1
        return family.with_moments_of(unit) ** precision


def _step(
    optimiser: Ascent, start: Distribution, memory: AscentState, delta: Distribution
) -> tuple[Distribution, AscentState]:
    """One step of the optimiser with the delta as its gradient; in double precision where the server's leaves are."""
    if any(is_traced(leaf) for leaf in jax.tree.leaves((start, delta))):
        return optimiser.step(start, memory, delta)
    with jax.enable_x64(True):
        return to_host(_jitted_step(optimiser, start, memory, delta))


@eqx.filter_jit
def _jitted_step(
    optimiser: Ascent, start: Distribution, memory: AscentState, delta: Distribution
) -> tuple[Distribution, AscentState]:
    return optimiser.step(start, memory, delta)


def _default_solver(model: Model, loss: Loss, divergence: Divergence) -> Solver:
    from cavity.solvers import SGMCMC, PowerEP, SGDIterates

    try:
        PowerEP().check(model, loss, divergence)
    except UnsuitableError:
        return SGMCMC(SGDIterates(0.01, momentum=0.9))
    return PowerEP()
