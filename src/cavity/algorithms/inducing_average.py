"""The baseline of federated sparse Gaussian processes, Algorithm 1: shared variational parameters by averaging.

One client at a time fits its factor at the current phi, and then takes J gradient steps on factor and phi together. The
server takes

    phi <- phi + (N_k / N) (phi_k - phi)

The factor was fitted at phi_k but is used at the average, and the average favours the client that was visited last, so
for large J inducing inputs drift. It is included for comparison with `HierarchicalPVI`.

The average depends on the order of visits and not on the entries alone, so it is kept in an entry of the server's own,
which is the whole of q(phi); if a client leaves, its factor is removed, but its effect on phi stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.aggregation.entries import EntryConvergence
from cavity.algorithms.hierarchical import SharedFactors, unit_factor
from cavity.core import (
    Algorithm,
    ClientPart,
    Convergence,
    Data,
    Declaration,
    Entries,
    ServerPart,
    Solver,
)
from cavity.core.fields import as_number, require
from cavity.core.host import to_host
from cavity.core.messages import Change, ClientInput, ClientUpdate, Reply, Report, ServerState, Stacked
from cavity.core.shared_model import SharedModel, SharedProblem, SharedSolution
from cavity.core.types import Leaf
from cavity.distributions.hierarchical import Hierarchical, certain
from cavity.distributions.pseudo import Observations
from cavity.errors import CavityError

AVERAGE = "(average)"  # the server's own entry


class InducingUpdate(eqx.Module):
    """A client's factor, its phi, and its number of rows."""

    factor: Hierarchical
    phi: Float[Leaf, " d"]
    num_rows: Float[Leaf, ""]


class InducingAverage(Algorithm):
    """Sequential PVI whose shared variational parameters are averaged.

    Attributes:
        model: a SharedModel.
        solver: gradient steps: `still_steps` with phi fixed, then J.
        num_rows: N, of all clients together.
    """

    model: SharedModel[Hierarchical, Observations]
    solver: Solver
    num_rows: Float[Array, ""]

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

    @property
    def prior(self) -> Hierarchical:
        return Hierarchical(certain(self.model.start), self.model.prior.conditional)

    @property
    def client(self) -> AveragingClient:
        return AveragingClient(self.solver, self.model)

    @property
    def server(self) -> AveragingServer:
        return AveragingServer(AveragedFactors(SharedFactors(self.model, self._unit)), self.num_rows)

    @property
    def _unit(self) -> Hierarchical:
        return Hierarchical(self.model.prior.shared, self.model.prior.conditional)

    @property
    def declaration(self) -> Declaration:
        factor = unit_factor(self.model, self._unit)
        phi = np.asarray(self.model.start)
        return Declaration(InducingUpdate(factor, phi, np.zeros((), phi.dtype)))

    @property
    def convergence(self) -> Convergence:
        return EntryConvergence()

    def remark_on(self, delta: InducingUpdate, data: Data) -> str | None:
        return self.model.remark_on(delta.factor.conditional, data)


class AveragingClient(ClientPart):
    """The client part: fit the factor at the current phi, then take gradient steps on factor and phi together."""

    solver: Solver
    model: SharedModel

    def problem(self, inputs: ClientInput, local: PyTree, data: Data) -> SharedProblem:
        posterior, entry = jax.tree.map(jnp.asarray, (inputs.posterior, inputs.entry))
        return SharedProblem(self.model, posterior / entry, posterior, entry, data, jnp.ones(()))

    def update(
        self, inputs: ClientInput, local: PyTree, problem: SharedProblem, solution: SharedSolution[Hierarchical]
    ) -> tuple[ClientUpdate, PyTree]:
        before, cavity = problem.posterior, problem.cavity
        phi = (cavity.shared * solution.factor.shared).mean
        factor = Hierarchical(problem.factor.shared, solution.factor.conditional)
        moved = self.model.moved(phi, before.conditional, cavity.conditional, factor.conditional)
        drift = 0.5 * jnp.sum(self.model.prior.shared.precision * (phi - before.shared.mean) ** 2)
        report = Report(moved + drift, -solution.objective, solution.steps, solution.converged)
        return ClientUpdate(InducingUpdate(factor, phi, jnp.sum(jnp.asarray(problem.data.weight))), report), local


class AveragedFactors(Entries):
    """One factor per client; an update's factor replaces it."""

    factors: SharedFactors

    def initial(self) -> Hierarchical:
        return self.factors.initial()

    def merge(self, entry: Hierarchical, delta: InducingUpdate, exponent: float | Leaf) -> Hierarchical:
        return self.factors.merge(entry, delta.factor, exponent)

    def rebuild(self, prior: Hierarchical, entries: Sequence[Hierarchical] | Stacked) -> Hierarchical:
        return self.factors.rebuild(prior, entries)

    def joint(self) -> Hierarchical:
        return self.factors.joint()

    def initial_posterior(
        self, prior: Hierarchical, posterior: Hierarchical, entries: Mapping[str, Hierarchical]
    ) -> Hierarchical:
        return self.factors.initial_posterior(prior, posterior, entries)


class AveragingServer(ServerPart):
    """The server part: phi moves to the average, and each client's factor is replaced.

    Attributes:
        entries: the clients' factors, and the average.
        num_rows: N, of all clients together.
    """

    entries: AveragedFactors
    num_rows: Float[Array, ""]

    def initial_state(self, num_clients: int) -> PyTree:
        return None

    def absorb(self, server: ServerState, replies: Sequence[Reply]) -> Change:
        entries, average = dict(server.entries), np.asarray(server.posterior.shared.mean)
        for reply in replies:
            found: InducingUpdate = to_host(reply.update.delta)
            entries[reply.client] = self.entries.merge(entries[reply.client], found, 1.0)
            average = average + found.num_rows / np.asarray(self.num_rows) * (found.phi - average)
        # the quotient of a point mass at the average and the prior, which is a point mass at the start
        entries[AVERAGE] = replace(to_host(self.entries.initial()), shared=certain(average) / server.prior.shared)
        posterior = self.entries.rebuild(server.prior, list(entries.values()))
        return Change(posterior, entries, server.method, dict.fromkeys((reply.client for reply in replies), 1.0))
