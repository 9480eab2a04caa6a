"""PVI where factors share variational parameters: federated sparse Gaussian processes, Algorithm 2.

| paper | here |
| --- | --- |
| phi | what `posterior.shared` is over |
| t_k(theta given phi) t_k(phi) | `brief.row` |
| q without k (normalised given phi in the paper alone) | `cavity = posterior / row` |
| alpha | `alpha`, on the KL of variational parameters alone |
| - | `pull`, over phi too, what a factor leaves unsaid of it (`solvers/shared_descent.py`) |

A reply replaces its client's row. Damped, a row goes a share of the way to it: V, S^-1 and S^-1 m in a straight line,
and natural parameters of phi likewise, so that fixed points are what they are without. The posterior is prior times
rows: a product over phi, and the union of all pseudo-observations, which every client sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.damping import Fixed
from cavity.core import Damping, Data, EntryAlgorithm, Solver
from cavity.core.fields import as_number, require
from cavity.core.messages import ClientInput, ClientUpdate, Report, ServerState, Stacked
from cavity.core.shared_model import SharedModel, SharedProblem, SharedSolution
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.hierarchical import Hierarchical, joint
from cavity.distributions.pseudo import Observations
from cavity.errors import CavityError


class HierarchicalPVI(EntryAlgorithm):
    """PVI for models whose factors share variational parameters, such as `sparse_gp`.

    Attributes:
        model: a SharedModel.
        solver: of a client's problem.
        damping: none in turn, as in the paper; a synchronous schedule wants `Fixed(1 / number of clients)`, for every
            client moves phi for all.
        alpha: in (0, 1], the weight of KL(q(phi) : p(phi)) for variational parameters; where factors do not stand in
            for their rows, of KL(q(phi) : cavity(phi)).
    """

    model: SharedModel[Hierarchical, Observations]
    solver: Solver
    damping: Damping
    alpha: Float[Array, ""]

    def __init__(
        self,
        model: SharedModel[Hierarchical, Observations],
        *,
        alpha: float = 0.1,
        solver: Solver | None = None,
        damping: Damping | None = None,
    ):
        import optax

        from cavity.solvers.shared_descent import SharedDescent

        self.model = model
        self.alpha = as_number(alpha)
        require(self.alpha, lambda alpha: (alpha > 0) & (alpha <= 1), "alpha must lie in (0, 1]")
        self.solver = SharedDescent(optax.adam) if solver is None else solver
        self.damping = Fixed(1.0) if damping is None else damping
        self.solver.check(model, None, None)  # pyright: ignore[reportArgumentType]
        if getattr(self.solver, "point", False):
            raise CavityError("phi has a distribution here; a solver with point=True is for InducingAverage")

    @property
    def prior(self) -> Hierarchical:
        prior = self.model.prior
        return replace(prior, pull=prior.shared**0.0) if self.model.has_surrogate_factors else prior

    @property
    def entries_multiply(self) -> bool:
        return False  # a reply replaces the row, and does not multiply it

    def initial_entry(self) -> Hierarchical:
        prior = self.prior
        return Hierarchical(prior.shared**0.0, self.model.no_factor(), prior.pull)

    def initial_local(self, data: Data) -> PyTree:
        return None

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> SharedProblem:
        posterior, row = jax.tree.map(jnp.asarray, (inputs.posterior, inputs.entry))
        return SharedProblem(self.model, posterior / row, posterior, row, data, self.alpha)

    def update(
        self, inputs: ClientInput, local: PyTree, problem: SharedProblem, solution: SharedSolution[Hierarchical]
    ) -> tuple[ClientUpdate, PyTree]:
        before, cavity, factor = problem.posterior, problem.cavity, solution.factor
        tilted = cavity.shared * factor.shared
        moved = self.model.moved(tilted.mean, before.conditional, cavity.conditional, factor.conditional)
        report = Report(
            gap=tilted.kl(before.shared) + moved,
            free_energy=-solution.objective,
            steps=solution.steps,
            converged=solution.converged,
        )
        return ClientUpdate(factor, report), local

    def remark_on(self, delta: Hierarchical, data: Data) -> str | None:
        return self.model.remark_on(delta.conditional, data)

    def merge(self, row: Hierarchical, delta: Hierarchical, exponent: Any) -> Hierarchical:
        return row.towards(delta, exponent)

    def remaining(self, server: ServerState, rows: dict[str, Any]) -> dict[str, Any]:
        """Those of whoever stays, with the mean of q(phi) where it was but for the prior's share in it.

        Whatever moved it moved it for all. Divided out, a row would take along all that its client's visits have
        changed, many times over where it has little precision. The others then go on from there to where they would
        have come without it.
        """
        if not rows or not self.model.has_surrogate_factors:
            return rows
        back = server.posterior.shared.mean - self.rebuild(server.prior, list(rows.values())).shared.mean
        moved = lambda q: DiagonalGaussian(q.precision_mean + q.precision * np.asarray(back), q.precision)  # noqa: E731
        return {name: replace(row, shared=moved(row.shared)) for name, row in rows.items()}

    def rebuild(self, prior: Any, rows: Sequence[Any] | Stacked) -> Any:
        return joint(prior, [rows[i] for i in range(len(rows))]) if rows else prior
