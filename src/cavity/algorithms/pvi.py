"""Partitioned variational inference (Ashman et al., 2022), Algorithm 1.

| paper | here |
| --- | --- |
| q^(i-1) | `brief.posterior` |
| t_k^(i-1) | `brief.row`, this client's factor |
| q^(i-1) / t_k^(i-1) | `cavity` |
| q_k^(i) | `solution.tilted`, the maximiser of the local free energy (2) |
| Delta_k^(i) | `delta` |
| F_k(q) of property 2.2 | `free_energy`, at the posterior received |
| rho | the exponent that the server's damping chooses |

The paper's client also divides, t_k = (q_k / q) t_k; here the server does, in its ledger, with the same delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import PyTree

from cavity.distributions.natural import product
from cavity.divergences.kl import KL
from cavity.interfaces import Damping, Data, Divergence, Loss, Model, Problem, RowAlgorithm, Solution, Solver
from cavity.losses.nll import NegativeLogLikelihood
from cavity.server.damping import Adaptive
from cavity.solvers.default import default_solver
from cavity.state import Answer, Brief, Report, Stacked


class PVI(RowAlgorithm):
    """PVI for any model, solver and damping; free of hyperparameters by default.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        solver: finds the tilted distribution; None chooses by the model (closed form, else natural gradient).
        damping: the server's choice of exponents.
        loss: the negative log likelihood, unless the method is to be generalised.
        divergence: KL, unless the method is to be generalised.
    """

    model: Model
    solver: Solver
    damping: Damping
    loss: Loss
    divergence: Divergence

    def __init__(
        self,
        model: Model,
        *,
        solver: Solver | None = None,
        damping: Damping | None = None,
        loss: Loss | None = None,
        divergence: Divergence | None = None,
    ):
        self.model = model
        self.loss = NegativeLogLikelihood() if loss is None else loss
        self.divergence = KL() if divergence is None else divergence
        self.solver = default_solver(model) if solver is None else solver
        self.damping = Adaptive() if damping is None else damping
        self.solver.check(model, self.loss, self.divergence)

    @property
    def prior(self) -> Any:
        return self.model.prior

    def empty_row(self) -> Any:
        return self.prior**0.0  # t_m = 1

    def initial_local(self, data: Data) -> PyTree:
        return None

    def problem(self, brief: Brief, local: PyTree, data: Data) -> Problem:
        cavity = brief.posterior / brief.row
        return Problem(self.model, self.loss.at(cavity), self.divergence, cavity, brief.posterior, data)

    def answer(self, brief: Brief, local: PyTree, problem: Problem, solution: Solution) -> tuple[Answer, PyTree]:
        delta = solution.tilted / brief.posterior
        report = Report(
            residual=solution.tilted.kl(brief.posterior),
            free_energy=-solution.expected_loss - brief.posterior.cross(brief.row),
            steps=solution.steps,
            converged=solution.converged,
        )
        return Answer(delta, report), local

    def merge(self, row: Any, delta: Any, exponent: Any) -> Any:
        return row * delta**exponent

    def rebuild(self, prior: Any, rows: Sequence[Any] | Stacked) -> Any:
        return prior * product(rows) if rows else prior
