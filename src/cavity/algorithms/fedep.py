"""FedEP (Guo et al., 2023): expectation propagation over clients, with tilted inference that scales to networks.

| paper | here |
| --- | --- |
| q_global | `brief.posterior` |
| q_k | `brief.row.factor` |
| q_-k = q_global / q_k | `cavity` |
| tilted inference (section 2.2.2) | a solver: `SGMCMC` with spreads I, M, L, V; `PowerEP`, `MomentMatching` |
| delta q_k | `delta` |
| optim(delta eta) (section 2.2.3) | `optimiser`, on natural parameters |

An optimiser on deltas acts per row by default, with its memory in the row, so that the posterior stays the prior times
the factors. The paper has one at the server too, on the mean of a round's deltas, and with it the product of factors is
no longer the posterior; `server_optimiser` does that, and what the product lacks is a row of the server's own. A client
that leaves then takes its factor with it, but not what the server's optimiser remembers of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import PyTree

from cavity import ledger
from cavity.aggregation.damping import Fixed
from cavity.algorithms.ascent import Ascent
from cavity.algorithms.cavities import OwnFactor, Removal
from cavity.algorithms.factors import FactorAlgorithm, check_parts
from cavity.core import Damping, Data, Divergence, LatentModel, Loss, Model, Problem, Solution, Solver
from cavity.core.messages import ClientInput, ClientUpdate, Reply, ServerState, Stacked
from cavity.distributions import DiagonalGaussian
from cavity.distributions.natural import product
from cavity.divergences.kl import KL
from cavity.errors import UnsuitableError
from cavity.losses.nll import NegativeLogLikelihood
from cavity.models.numpyro.globals_only import as_rows

REMAINDER = "(optimiser)"  # the row of what the server's optimiser adds to the factors


class Entry(eqx.Module):
    """A client's factor, and what its optimiser remembers."""

    factor: Any
    memory: PyTree


class Servers(eqx.Module):
    """The method's own state, where the server has an optimiser."""

    damping: PyTree
    memory: PyTree


class FedEP(FactorAlgorithm):
    """Expectation propagation with one factor per client, for any model, solver and optimiser.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        solver: finds the tilted distribution.
        damping: the server's choice of exponents, after the optimiser's.
        loss: the negative log likelihood.
        divergence: what a solver by energy sees; the moments of the tilted distribution minimise KL(tilted : q).
        removed: the own factor.
        optimiser: of each row.
        server_optimiser: of the mean of a round's deltas; None keeps the posterior the product of its rows.
    """

    reserved_names: ClassVar[frozenset[str]] = frozenset({REMAINDER})

    model: Model
    solver: Solver
    damping: Damping
    loss: Loss
    divergence: Divergence
    removed: Removal
    optimiser: Ascent | None
    server_optimiser: Ascent | None

    def __init__(
        self,
        model: Model | LatentModel,
        *,
        solver: Solver | None = None,
        optimiser: Callable[[Any], Any] | None = None,
        step_size: float = 1.0,
        server_optimiser: Callable[[Any], Any] | None = None,
        server_step_size: float = 1.0,
        damping: Damping | None = None,
        removed: Removal | None = None,
    ):
        """The parts.

        Args:
            model: the model.
            solver: None is EP by quadrature where the model allows, else a chain with a scaled identity.
            optimiser: from a step size to an optax transformation, on each row's deltas; None is plain damping.
            step_size: of the optimiser, or the damping's exponent.
            server_optimiser: the paper's, on the mean of a round's deltas.
            server_step_size: its step size.
            damping: after the optimiser; None is none.
            removed: None is the own factor.
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
    def is_product(self) -> bool:
        return True

    @property
    def entries_multiply(self) -> bool:
        return self.optimiser is None and self.server_optimiser is None

    @property
    def in_blocks(self) -> bool:
        return self.server_optimiser is None

    @property
    def halvings_alone(self) -> int:
        return super().halvings_alone if self.optimiser is None else ledger.HALVINGS_ALONE

    def initial_entry(self) -> Entry:
        return self.entry_of(self.prior**0.0)

    def entry_of(self, factor: Any) -> Entry:
        """A factor whose optimiser has seen nothing yet."""
        return Entry(factor, () if self.optimiser is None else self.optimiser.init(factor))

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> Problem:
        return super().problem(_factor_of(inputs), local, data)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: Problem, solution: Solution
    ) -> tuple[ClientUpdate, PyTree]:
        return super().update(_factor_of(inputs), local, problem, solution)

    def merge(self, row: Entry, delta: Any, exponent: Any) -> Entry:
        if self.optimiser is None:
            return Entry(row.factor * delta**exponent, row.memory)
        moved, memory = _step(self.optimiser, row.factor, row.memory, delta)
        return Entry(row.factor * (moved / row.factor) ** exponent, memory)

    def rebuild(self, prior: Any, rows: Sequence[Entry] | Stacked) -> Any:
        if not rows:
            return prior
        return prior * product(Stacked(rows.tree.factor) if isinstance(rows, Stacked) else [r.factor for r in rows])

    def initial_method(self, num_clients: int) -> PyTree:
        if self.server_optimiser is None:
            return super().initial_method(num_clients)
        return Servers(self.damping.init(), self.server_optimiser.init(self.prior))

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        """With a server's optimiser, the rest between its posterior and the product of the rows is a row of its own."""
        if self.server_optimiser is None:
            return super().absorb(server, replies)
        rows = dict(server.entries)
        for reply in replies:
            rows[reply.client] = self.merge(rows[reply.client], reply.update.delta, 1.0)
        posterior, memory, exponent = self._moved(server, replies, ledger.MAX_HALVINGS)
        if exponent < 1 and len(replies) > 1:
            bad = [reply.client for reply in replies if not self._moved(server, [reply], ledger.HALVINGS_ALONE)[2]]
            if bad:
                reasons = dict.fromkeys(bad, "its change alone makes the posterior improper")
                return ledger.without(reasons, server, replies, lambda others: self.absorb(server, others))
        if not exponent:
            refused = dict.fromkeys((reply.client for reply in replies), 0.0)
            return ledger.Change(server.posterior, server.entries, server.method, refused)
        rows.pop(REMAINDER, None)
        rest = posterior / self.rebuild(server.prior, list(rows.values()))
        rows[REMAINDER] = Entry(rest, ())
        exponents = dict.fromkeys((reply.client for reply in replies), exponent)
        return ledger.Change(posterior, rows, Servers(server.method.damping, memory), exponents)

    def _moved(self, server: ServerState, replies: Sequence[Reply], halvings: int) -> tuple[Any, Any, float]:
        """The server's step, halved until it is proper: where it ends, its memory, and the share taken; else 0."""
        mean = product([reply.update.delta for reply in replies]) ** (1.0 / len(replies))
        moved, memory = _step(self.server_optimiser, server.posterior, server.method.memory, mean)  # pyright: ignore[reportArgumentType]
        exponent, posterior = 1.0, moved
        for _ in range(halvings):
            if ledger.is_proper(posterior):
                return posterior, memory, exponent
            exponent /= 2
            posterior = server.posterior * (moved / server.posterior) ** exponent
        return server.posterior, memory, 0.0

    def taking_over(
        self, server: ServerState, count_rows: Callable[[], Mapping[str, float]], precision_per_row: float
    ) -> ServerState:
        """Go on from a point that all clients' rows have found together: each has its share in it.

        Factors of 1 would count the rows twice: once in the point, and again in the factors to come.
        """
        num_rows = count_rows()
        rows = {
            name: self.entry_of(identity(self.prior, server.posterior.location, precision_per_row * num_rows[name]))
            for name in server.clients
        }
        rows = ledger.to_host(rows)
        prior = ledger.to_host(self.prior)
        return replace(
            server,
            prior=prior,
            entries=rows,
            posterior=self.rebuild(prior, list(rows.values())),
            method=ledger.to_host(self.initial_method(len(rows))),
            version=server.version + 1,
        )


def identity(prior: Any, location: Any, precision: Any) -> Any:
    """The factor N(location, I / precision), in the family of the prior."""
    with jax.enable_x64(True):
        location = jnp.asarray(location, float)
        unit = DiagonalGaussian(location, jnp.ones_like(location))  # mean `location`, precision 1
        return prior.with_moments_of(unit) ** precision


def _factor_of(inputs: ClientInput) -> ClientInput:
    return replace(inputs, entry=inputs.entry.factor)


def _step(optimiser: Ascent, start: Any, memory: Any, delta: Any) -> tuple[Any, Any]:
    """One step of the optimiser with the delta as its gradient; in double precision where the server's leaves are."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((start, delta))):
        return optimiser.step(start, memory, delta)
    with jax.enable_x64(True):
        return ledger.to_host(_jitted_step(optimiser, start, memory, delta))


@eqx.filter_jit
def _jitted_step(optimiser: Ascent, start: Any, memory: Any, delta: Any) -> tuple[Any, Any]:
    return optimiser.step(start, memory, delta)


def _default_solver(model: Model, loss: Loss, divergence: Divergence) -> Solver:
    from cavity.solvers import SGMCMC, PowerEP, SGDIterates

    try:
        PowerEP().check(model, loss, divergence)
    except UnsuitableError:
        return SGMCMC(SGDIterates(0.01, momentum=0.9))
    return PowerEP()
