"""The baseline of federated sparse Gaussian processes, Algorithm 1: shared variational parameters by averaging.

In turn, a client fits its factor where phi is, and takes J gradient steps on factor and phi together, as if phi were
its own; the server takes

    phi <- phi + (N_k / N) (phi_k - phi)

The factor was fitted at phi_k and is used at the average, and what other clients know of phi is pulled towards whoever
came last: for large J inducing inputs drift. It is here to be compared with `HierarchicalPVI`.

The average depends on the order of visits and not on the rows alone, so it is kept in a row of the server's own, which
is the whole of q(phi); a client that leaves takes its factor with it, but not what phi remembers of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity import ledger
from cavity.aggregation.damping import Fixed
from cavity.core import Damping, Data, EntryAlgorithm, Solver
from cavity.core.fields import as_number, require
from cavity.core.messages import ClientInput, ClientUpdate, Reply, Report, ServerState, Stacked
from cavity.core.shared_model import SharedModel, SharedProblem, SharedSolution
from cavity.distributions.hierarchical import Hierarchical, certain, joint
from cavity.distributions.pseudo import Observations
from cavity.errors import CavityError

AVERAGE = "(average)"  # the row of the server's own


class InducingUpdate(eqx.Module):
    """A client's factor, where it has taken phi, and how many rows it speaks for."""

    factor: Hierarchical
    phi: Float[Any, " d"]
    num_rows: Float[Any, ""]


class InducingAverage(EntryAlgorithm):
    """Sequential PVI whose shared variational parameters are averaged.

    Attributes:
        model: a SharedModel.
        solver: gradient steps, `still_steps` of them at the phi that there is, and then J.
        num_rows: N, of all clients together.
        damping: none.
    """

    reserved_names: ClassVar[frozenset[str]] = frozenset({AVERAGE})

    model: SharedModel[Hierarchical, Observations]
    solver: Solver
    num_rows: Float[Array, ""]
    damping: Damping

    def __init__(
        self, model: SharedModel[Hierarchical, Observations], num_rows: float | int, *, solver: Solver | None = None
    ):
        import optax

        from cavity.solvers.shared_descent import SharedDescent

        self.model = model
        self.num_rows = as_number(num_rows)
        require(self.num_rows, lambda rows: rows > 0, "the number of rows of all clients must be positive")
        by_default = SharedDescent(optax.adam, num_steps=1500, point=True, still_steps=500)
        self.solver = by_default if solver is None else solver
        if not getattr(self.solver, "point", False):
            raise CavityError("what is averaged is a point; give SharedDescent(..., point=True)")
        self.damping = Fixed(1.0)

    @property
    def prior(self) -> Hierarchical:
        return Hierarchical(certain(self.model.start), self.model.prior.conditional)

    @property
    def entries_multiply(self) -> bool:
        return False

    @property
    def in_blocks(self) -> bool:
        return False

    def initial_entry(self) -> Hierarchical:
        return Hierarchical(self.model.prior.shared**0.0, self.model.no_factor())

    def initial_local(self, data: Data) -> PyTree:
        return None

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> SharedProblem:
        posterior, row = jax.tree.map(jnp.asarray, (inputs.posterior, inputs.entry))
        return SharedProblem(self.model, posterior / row, posterior, row, data, jnp.ones(()))

    def update(
        self, inputs: ClientInput, local: PyTree, problem: SharedProblem, solution: SharedSolution[Hierarchical]
    ) -> tuple[ClientUpdate, PyTree]:
        before, cavity = problem.posterior, problem.cavity
        phi = (cavity.shared * solution.factor.shared).mean
        factor = Hierarchical(problem.factor.shared, solution.factor.conditional)
        moved = self.model.moved(phi, before.conditional, cavity.conditional, factor.conditional)
        pulled = 0.5 * jnp.sum(self.model.prior.shared.precision * (phi - before.shared.mean) ** 2)
        report = Report(moved + pulled, -solution.objective, solution.steps, solution.converged)
        return ClientUpdate(InducingUpdate(factor, phi, jnp.sum(jnp.asarray(problem.data.weight))), report), local

    def remark_on(self, delta: InducingUpdate, data: Data) -> str | None:
        return self.model.remark_on(delta.factor.conditional, data)

    def merge(self, row: Hierarchical, delta: InducingUpdate, exponent: Any) -> Hierarchical:
        return row.towards(delta.factor, exponent)

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> ledger.Change:
        rows, average = dict(server.entries), np.asarray(server.posterior.shared.mean)
        for reply in replies:
            found: Any = reply.update.delta
            rows[reply.client] = self.merge(rows[reply.client], found, 1.0)
            average = average + found.num_rows / np.asarray(self.num_rows) * (found.phi - average)
        empty = ledger.to_host(self.initial_entry())
        # what the prior, a point at the start, has to be multiplied with to be one at the average
        rows[AVERAGE] = replace(empty, shared=certain(average) / server.prior.shared)
        posterior = self.rebuild(server.prior, list(rows.values()))
        return ledger.Change(posterior, rows, server.method, dict.fromkeys((reply.client for reply in replies), 1.0))

    def rebuild(self, prior: Any, rows: Sequence[Any] | Stacked) -> Any:
        return joint(prior, [rows[i] for i in range(len(rows))]) if rows else prior
