"""PVI where factors share variational parameters: federated sparse Gaussian processes, Algorithm 2.

| paper | here |
| --- | --- |
| phi | what `posterior.shared` is over |
| t_k(theta given phi) t_k(phi) | `inputs.entry` |
| q without k (normalised given phi in the paper alone) | `cavity = posterior / entry` |
| alpha | `alpha`, on the KL of variational parameters alone |
| - | `pull`, over phi too, the part of phi that a factor does not represent (`solvers/shared_descent.py`) |

An update replaces its client's entry. Damped, the entry goes a share of the way to it: V, S^-1 and S^-1 m in a straight
line, and natural parameters of phi likewise, so that fixed points are what they are without damping. The posterior is
the prior times the entries: a product over phi, and the union of all pseudo-observations, which every client sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.damping import Fixed
from cavity.aggregation.entries import EntryConvergence, EntryServer
from cavity.core import (
    Algorithm,
    ClientPart,
    Convergence,
    Damping,
    Data,
    Declaration,
    Entries,
    Solver,
)
from cavity.core.fields import as_number, require
from cavity.core.messages import ClientInput, ClientUpdate, Report, ServerState, Stacked
from cavity.core.shared_model import SharedModel, SharedProblem, SharedSolution
from cavity.core.types import Leaf
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.hierarchical import Hierarchical, joint
from cavity.distributions.pseudo import Observations
from cavity.errors import CavityError, ProtocolError


class HierarchicalPVI(Algorithm):
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
    def client(self) -> SharedClient:
        return SharedClient(self.solver, self.model, self.alpha)

    @property
    def server(self) -> EntryServer:
        return EntryServer(SharedFactors(self.model, self.prior), self.damping, in_blocks=False)

    @property
    def declaration(self) -> Declaration:
        return Declaration(unit_factor(self.model, self.prior))

    @property
    def convergence(self) -> Convergence:
        return EntryConvergence()

    def remark_on(self, delta: Hierarchical, data: Data) -> str | None:
        return self.model.remark_on(delta.conditional, data)


def unit_factor(model: SharedModel, prior: Hierarchical) -> Hierarchical:
    """The entry of a client that has not replied."""
    return Hierarchical(prior.shared**0.0, model.no_factor(), prior.pull)


class SharedClient(ClientPart):
    """The client part: a factor given phi, and one over phi. Attributes as in `HierarchicalPVI`."""

    solver: Solver
    model: SharedModel
    alpha: Float[Array, ""]

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> SharedProblem:
        posterior, entry = jax.tree.map(jnp.asarray, (inputs.posterior, inputs.entry))
        return SharedProblem(self.model, posterior / entry, posterior, entry, data, self.alpha)

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


class SharedFactors(Entries):
    """One factor per client, given phi and over phi; an update replaces it.

    Attributes:
        model: a SharedModel.
        prior: over phi, and a union of no pseudo-observations.
    """

    model: SharedModel
    prior: Hierarchical

    def initial(self) -> Hierarchical:
        return unit_factor(self.model, self.prior)

    def merge(self, entry: Hierarchical, delta: Hierarchical, exponent: float | Leaf) -> Hierarchical:
        return entry.towards(delta, exponent)

    def rebuild(self, prior: Hierarchical, entries: Sequence[Hierarchical] | Stacked) -> Hierarchical:
        return joint(prior, [entries[i] for i in range(len(entries))]) if entries else prior

    def joint(self) -> Hierarchical:
        raise ProtocolError(
            "entries that are replaced and not multiplied cannot be kept by the clients; let the server hold them"
        )

    def initial_posterior(
        self, prior: Hierarchical, posterior: Hierarchical, entries: Mapping[str, Hierarchical]
    ) -> Hierarchical:
        return self.rebuild(prior, list(entries.values()))  # a union has a place for each

    def remaining(self, server: ServerState, entries: dict[str, Hierarchical]) -> dict[str, Hierarchical]:
        """The entries of the others, with the mean of q(phi) where it was but for the prior's share in it.

        Whatever moved it moved it for all. Divided out, an entry would take along all that its client's visits have
        changed, many times over where it has little precision. The others then refine from there to where they would
        have come without it.
        """
        if not entries or not self.model.has_surrogate_factors:
            return entries
        back = server.posterior.shared.mean - self.rebuild(server.prior, list(entries.values())).shared.mean

        def moved(q: DiagonalGaussian) -> DiagonalGaussian:
            return DiagonalGaussian(q.precision_mean + q.precision * np.asarray(back), q.precision)

        return {name: replace(entry, shared=moved(entry.shared)) for name, entry in entries.items()}
