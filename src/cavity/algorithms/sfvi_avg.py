"""SFVI-Avg (Hassan et al., 2023, Algorithm 2): each client takes many steps by itself, then q(Z_G) is averaged.

A client's N_j units represent all N units,

    L^(j) = log p(Z_G) - log q(Z_G) + (N / N_j) * (log p(y_j, Z_L | Z_G) - log q(Z_L | Z_G)),

and the server takes the Wasserstein barycentre of the clients' q(Z_G), and the mean of their theta.

The printed algorithm scales log p(y_j, Z_L | Z_G) alone. Then q(Z_L | Z_G) fits a power of the local posterior: it is
too narrow, and scales of random effects shrink. `as_printed=True` does that, for comparison. Besides, q(Z_L | Z_G) is
centred at the client's own mean of Z_G; when the server replaces this mean by the average, mu_u moves by C_u times the
difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, UInt32

from cavity.aggregation.barycentre import diagonal_barycentre, full_barycentre
from cavity.algorithms.ascent import Ascent, AscentState, MakeOptimiser
from cavity.algorithms.bound import Globals, server_gradient
from cavity.algorithms.scale_free import AllAxes
from cavity.algorithms.settling import Settling, SettlingConvergence, Watch
from cavity.algorithms.structured import (
    ClientTask,
    Exchange,
    LocalState,
    StructuredInference,
    resized,
    structured_inference,
)
from cavity.algorithms.structured_parts import Starting, StructuredClient, StructuredServer
from cavity.core import Data, Divergence, LatentModel, LocalUnits, Loss, Model, Solver
from cavity.core.fields import as_count, as_number, require
from cavity.core.messages import ClientInput, ClientUpdate, Report
from cavity.core.types import Leaf
from cavity.distributions.full import FullGaussian
from cavity.distributions.structured import DenseGlobal, GlobalGaussian, LocalGaussian, MeanFieldGlobal
from cavity.errors import CavityError


class LocalFitState(LocalUnits):
    """What stays at a client: q(Z_L | Z_G), the mean of Z_G that it is centred at, and the state of its optimiser.

    Attributes:
        q: of its latents.
        centre: the mean of Z_G that q is centred at.
        axes: the variables in which the optimiser steps.
        optimiser: the leaves of its optimiser's state, if it is kept from round to round.
        per_unit: which of these leaves have numbers for each unit.
    """

    q: LocalGaussian
    centre: Float[Leaf, " g"]
    axes: AllAxes | None = None
    optimiser: tuple[Leaf, ...] = ()
    per_unit: tuple[int, ...] = eqx.field(static=True, default=())

    def resized(self, num_units: int) -> LocalFitState:
        axes = self.axes and AllAxes(self.axes.shared, resized(self.axes.own, num_units))
        optimiser = tuple(
            _cut_or_padded(leaf, num_units) if i in self.per_unit else leaf for i, leaf in enumerate(self.optimiser)
        )
        return replace(self, q=resized(self.q, num_units), axes=axes, optimiser=optimiser)


MAX_ROUNDS = 50  # where the method ends by itself
NUM_BATCHES = 8  # rounds, for the first judgement


class Averages(eqx.Module):
    """The server's own state: the last estimate of the bound (the mean of the clients'), and its trend."""

    bound: Float[Leaf, ""]
    watch: Watch


class Round(eqx.Module):
    """What all clients receive in one round: its number, and the scale of its step sizes."""

    version: UInt32[Leaf, ""]
    scale: Float[Leaf, ""]


class Task(eqx.Module):
    """A client's problem in one round: start, data, axes of the optimiser, and scale of its steps."""

    start: ClientTask
    axes: AllAxes | None
    scale: Float[Array, ""]


class LocalAscentState(eqx.Module):
    """The state of a client's own ascent."""

    shared: Globals
    q: LocalGaussian
    ascent: AscentState
    bound: Float[Array, ""]
    steps: Int[Array, ""]


class LocalAscent(Solver):
    """`num_steps` steps on the client's own version of the bound, with noise of its own.

    Attributes:
        structured: family and estimator.
        ascent: the optimiser, over the steps of all rounds.
        num_steps: m, per round.
        total: N, the units (or rows, for a model without local latents) of all clients.
        as_printed: scale only the joint density.
    """

    structured: StructuredInference
    ascent: Ascent
    num_steps: Int[Array, ""] = eqx.field(converter=as_count)
    total: Float[Array, ""] = eqx.field(converter=as_number)
    as_printed: bool = eqx.field(static=True)

    def steps_for(self, num_rows: np.ndarray) -> int:
        return int(self.num_steps)

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        return

    def init(self, problem: Task) -> LocalAscentState:
        start = problem.start
        shared, q = start.shared, start.own.q
        before, first = start.own.ascent, self.ascent.init((shared, q))
        return LocalAscentState(
            shared=shared,
            q=q,
            ascent=AscentState(before.count, before.leaves or first.leaves),
            bound=jnp.zeros((), shared.q.mean.dtype),
            steps=jnp.asarray(0),
        )

    def step(self, key: PRNGKeyArray, problem: Task, state: LocalAscentState) -> LocalAscentState:
        noise_key, unit_key, client_key = jax.random.split(key, 3)
        structured, size = self.structured, self._size(problem.start.data)
        dtype = state.shared.q.mean.dtype
        scale = (self.total / size).astype(dtype)
        noise = jax.random.normal(noise_key, (structured.num_draws, state.shared.q.noise_size), dtype)
        exchange = Exchange(noise, jax.random.key_data(unit_key), problem.scale)
        now = ClientTask(state.shared, LocalState(state.q, state.ascent), exchange, problem.start.data)
        inner = scale if self.as_printed else None
        client_bound, client_part, local_part = structured.gradient(client_key, now, joint_scale=inner)
        outer = jnp.ones((), dtype) if self.as_printed else scale
        server_bound, server_part = server_gradient(structured.model, state.shared, noise)
        shared_gradient = jax.tree.map(lambda mine, ours: mine + outer * ours, server_part, client_part)
        gradient = (shared_gradient, jax.tree.map(lambda leaf: outer * leaf, local_part))
        here = (state.shared, state.q)
        (shared, q), ascent = self.ascent.step(here, state.ascent, gradient, problem.axes, problem.scale)
        return LocalAscentState(shared, q, ascent, server_bound + outer * client_bound, state.steps + 1)

    def _size(self, data: Data) -> Array:
        assert data.units is not None
        counted = data.units if self.structured.model.num_local else data
        return jnp.asarray(counted.num_rows, float)

    def done(self, state: LocalAscentState) -> Bool[Array, ""]:
        return state.steps >= self.num_steps

    def result(self, problem: Task, state: LocalAscentState) -> LocalAscentState:
        return state


class SFVIAvg(Starting):
    """SFVI-Avg(m): few rounds, with many local steps in each.

    Attributes:
        model: such as `numpyro_model(...)`, with the same likelihood at every client.
        structured: family and estimator.
        solver: the client's ascent.
        ascent: its optimiser.
        local_steps: m.
        settling: when it ends.
        keeps_optimiser: whether its state is kept from round to round.
    """

    model: LatentModel
    structured: StructuredInference
    solver: Solver
    ascent: Ascent
    local_steps: Int[Array, ""]
    settling: Settling
    keeps_optimiser: bool = eqx.field(static=True)

    def __init__(
        self,
        model: LatentModel,
        *,
        total: int,
        num_rounds: int | None = None,
        local_steps: int = 1000,
        step_size: float = 0.02,
        optimiser: MakeOptimiser | None = None,
        decay: bool = True,
        keeps_optimiser: bool = False,
        as_printed: bool = False,
        **options: Any,
    ):
        """The parts.

        Args:
            model: the model.
            total: N, the number of units (rows, for a model without local latents) of all clients together.
            num_rounds: the number of rounds; the step size decreases to zero over all their steps. None stops when the
                bound and the posterior have settled, after at most 50 rounds.
            local_steps: m.
            step_size: of the optimiser.
            optimiser: from a step size to an optax transformation; None is Adam.
            decay: whether the step size falls.
            keeps_optimiser: whether the optimiser's state is kept at the client from round to round; otherwise it is
                reset in each round, and the first steps of an adaptive optimiser are as long for noise as for a
                gradient.
            as_printed: scale only the joint density, as in the paper's Algorithm 2.
            options: those of `structured_inference`.
        """
        if optimiser is None:
            import optax

            optimiser = optax.adam
        require(as_number(total), lambda n: n > 0, "the total number of units or rows must be positive")
        if local_steps < 1:
            raise CavityError(f"local_steps must be at least 1, not {local_steps}")
        self.model = model
        self.structured = structured_inference(model, **options)
        if not self.structured.start.q.has_barycentre:
            raise CavityError("SFVI-Avg averages dense and mean-field families; a barycentre would leave any other")
        self.local_steps, self.keeps_optimiser = as_count(local_steps), keeps_optimiser
        planned = MAX_ROUNDS if num_rounds is None else num_rounds
        self.settling = Settling(planned, 1, NUM_BATCHES, num_rounds is None, decay)
        falls = decay and num_rounds is not None
        self.ascent = Ascent(optimiser, step_size, planned * local_steps if falls else None)
        self.solver = LocalAscent(self.structured, self.ascent, local_steps, total, as_printed)

    def parts(self) -> tuple[AveragingClient, AveragingServer]:
        client = AveragingClient(self.solver, self.structured, self.ascent, self.local_steps, self.keeps_optimiser)
        return client, AveragingServer(self.structured, self.settling)

    @property
    def convergence(self) -> SettlingConvergence:
        return SettlingConvergence(self.settling, "round", 1)

    def starting_at(self, found: FullGaussian) -> SFVIAvg:
        structured = self.structured.starting_at(found)
        return eqx.tree_at(lambda a: (a.structured, a.solver.structured), self, (structured, structured))


class AveragingClient(StructuredClient):
    """The client part: many steps on its own version of the bound. Attributes as in `SFVIAvg`."""

    solver: Solver
    structured: StructuredInference
    ascent: Ascent
    local_steps: Int[Array, ""]
    keeps_optimiser: bool = eqx.field(static=True)

    def adopt(self, q: LocalGaussian, shared: Globals) -> LocalFitState:
        ours, own = self.structured.axes(shared.q), self.structured.own_axes(q, shared.q)
        axes = None if ours is None or own is None else AllAxes(ours, own)
        optimiser, per_unit = (), ()
        if self.keeps_optimiser:
            optimiser = self.ascent.init((shared, q)).leaves
            longer = jax.eval_shape(self.ascent.init, (shared, resized(q, len(q.mean) + 1))).leaves
            changed = (leaf.shape != other.shape for leaf, other in zip(optimiser, longer, strict=True))
            per_unit = tuple(i for i, differs in enumerate(changed) if differs)
        return jax.tree.map(np.asarray, LocalFitState(q, shared.q.mean, axes, optimiser, per_unit))

    def problem(self, inputs: ClientInput, local: LocalFitState, data: Data) -> Task:
        # the same density around the new mean
        q = local.q.recentred(inputs.posterior.q.mean - local.centre)
        steps_before = jnp.asarray(inputs.shared.version, jnp.int32) * self.local_steps.astype(jnp.int32)
        own = LocalState(q, AscentState(steps_before, local.optimiser))
        scale = jnp.asarray(inputs.shared.scale)
        nothing = Exchange(jnp.zeros((0, 0), q.mean.dtype), jnp.zeros(2, jnp.uint32), scale)
        return Task(ClientTask(inputs.posterior, own, nothing, data), local.axes, scale)

    def update(
        self, inputs: ClientInput, local: LocalFitState, problem: Task, solution: LocalAscentState
    ) -> tuple[ClientUpdate, LocalFitState]:
        nothing = jnp.full_like(solution.bound, jnp.nan)
        report = Report(gap=nothing, free_energy=solution.bound, steps=solution.steps, converged=jnp.asarray(True))
        kept = replace(
            local,
            q=solution.q,
            centre=solution.shared.q.mean,
            optimiser=solution.ascent.leaves if self.keeps_optimiser else (),
        )
        return ClientUpdate(solution.shared, report), kept


class AveragingServer(StructuredServer):
    """The server part: the barycentre of the clients' q(Z_G), and the mean of their theta."""

    structured: StructuredInference
    settling: Settling

    def adopt(self, shared: Globals) -> Averages:
        """The server's own state that starts here."""
        return Averages(np.asarray(np.nan), self.settling.init(shared.q))

    def exchange(self, seed: Leaf, version: Leaf, method: Averages) -> Round:
        return Round(jnp.asarray(version, jnp.uint32), self.settling.scale(method.watch))

    def combine(
        self, posterior: Globals, method: Averages, exchange: PyTree, updates: ClientUpdate, share: Leaf
    ) -> tuple[Globals, Averages]:
        theirs = updates.delta
        theta = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), theirs.theta)
        bound = jnp.asarray(jnp.mean(updates.report.free_energy), jnp.asarray(method.bound).dtype)
        units = posterior.q if self.structured.initialise and posterior.q.has_correlations else None
        q = barycentre(theirs.q, units)
        return Globals(q, theta), Averages(bound, self.settling.seen(method.watch, q, bound))

    def bound(self, method: Averages) -> Float[Leaf, ""]:
        return method.bound


def _cut_or_padded(leaf: Leaf, num_units: int) -> np.ndarray:
    """The same for so many units; those that are added have zeros."""
    leaf = np.asarray(leaf)
    more = np.zeros((max(num_units - len(leaf), 0), *leaf.shape[1:]), leaf.dtype)
    return np.concatenate([leaf[:num_units], more])


def barycentre(stacked: GlobalGaussian, units: GlobalGaussian | None = None) -> GlobalGaussian:
    """The Wasserstein barycentre of several q(Z_G), stacked, with equal weights.

    The distance of two full covariances depends on the units of each latent. With `units`, a q(Z_G), distances are
    measured in its standard deviations, so the units do not matter; None measures them in the units of the model.
    """
    if not stacked.has_correlations:
        mean, scale = diagonal_barycentre(stacked.mean, jnp.exp(stacked.log_scale))
        return MeanFieldGlobal(mean, jnp.log(scale))
    roots = jax.vmap(lambda q: q.axes)(stacked)
    if units is None:
        mean, root = full_barycentre(stacked.mean, roots)
    else:
        white = jax.vmap(lambda root: jnp.tril(solve_triangular(units.axes, root, lower=True)))(roots)
        mean, root = full_barycentre(stacked.mean, white)
        root = units.axes @ root
    return DenseGlobal.from_root(mean, root)
