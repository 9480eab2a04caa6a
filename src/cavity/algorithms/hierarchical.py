"""PVI where factors share variational parameters: federated sparse Gaussian processes, Algorithm 2.

| paper | here |
| --- | --- |
| phi | what `posterior.shared` is over |
| t_k(theta given phi) t_k(phi) | `inputs.entry` |
| q without k (in the paper also normalised given phi) | `cavity = posterior / entry` |
| alpha | `alpha`, on the KL of variational parameters only |
| - | `pull`, a correction over phi: the information about phi that a factor does not represent
(`solvers/shared_descent.py`) |

An update replaces its client's entry. With damping, the entry moves a share of the way to it, linearly in V, S^-1, S^-1
m and the natural parameters of phi. So fixed points do not depend on damping. The posterior is
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
        damping: none by default, as in the paper, for sequential schedules. A synchronous schedule needs `Fixed(1 /
            number of clients)`, because every client moves phi for all clients.
        alpha: in (0, 1], the weight of KL(q(phi) : p(phi)) for variational parameters; if factors are not surrogates
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
            "entries that are replaced instead of multiplied cannot be kept by the clients; let the server keep them"
        )

    def initial_posterior(
        self, prior: Hierarchical, posterior: Hierarchical, entries: Mapping[str, Hierarchical]
    ) -> Hierarchical:
        return self.rebuild(prior, list(entries.values()))  # a union has a place for each

    def remaining(self, server: ServerState, entries: dict[str, Hierarchical]) -> dict[str, Hierarchical]:
        """The entries of the other clients, changed so that the mean of q(phi) stays the same, except for the prior's
        share in it.

        All clients have moved this mean. Dividing by the entry would undo every change of its client's visits, and far
        more if the entry has little precision. From the unchanged mean the others refine to the posterior without the
        client.
        """
        if not entries or not self.model.has_surrogate_factors:
            return entries
        back = server.posterior.shared.mean - self.rebuild(server.prior, list(entries.values())).shared.mean

        def moved(q: DiagonalGaussian) -> DiagonalGaussian:
            return DiagonalGaussian(q.precision_mean + q.precision * np.asarray(back), q.precision)

        return {name: replace(entry, shared=moved(entry.shared)) for name, entry in entries.items()}
