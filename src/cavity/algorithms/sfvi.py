"""Structured federated variational inference (Hassan, Salomone and Mengersen, 2023), Algorithm 1.

| paper | here |
| --- | --- |
| eta_G, theta | `Globals`, the server's posterior |
| eps_G | `Exchange.noise`, sent with every message |
| eta_Lj, and its optimiser | `LocalState`, which never leaves the client |
| g_j^eta, g_j^theta | `ClientUpdate.delta`, of the form of `Globals`; with the bound's value, all that is sent |
| the gradient of log p(Z_G) - log q(Z_G) | `server_gradient`, added by the server (S4; Algorithm 1 leaves it out) |

One exchange is one gradient. A client's step on its own latents is committed together with its reply, so a repeated
message takes no second step. If only some clients take part in a round, the sum of their gradients is divided by their
share of all clients. This is unbiased, since they are drawn at random.

The paper has no stopping rule; ours is in `settling`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from cavity.algorithms.ascent import Ascent, AscentState, MakeOptimiser
from cavity.algorithms.bound import Globals, server_gradient
from cavity.algorithms.scale_free import GlobalAxes
from cavity.algorithms.settling import Settling, SettlingConvergence, Watch
from cavity.algorithms.structured import ClientTask, Exchange, LocalState, StructuredInference, structured_inference
from cavity.algorithms.structured_parts import Starting, StructuredClient, StructuredServer
from cavity.core import Data, Divergence, LatentModel, Loss, Model, Solver
from cavity.core.messages import ClientInput, ClientUpdate, Report
from cavity.core.types import Leaf
from cavity.distributions.full import FullGaussian
from cavity.distributions.structured import LocalGaussian

MAX_STEPS = 20_000  # exchanges, where the method ends by itself
BLOCK = 50  # exchanges that then run as one program
FIRST_BATCH, NUM_BATCHES = 20, 16  # exchanges, of the first judgement


class Learner(eqx.Module):
    """The server's own state.

    Attributes:
        ascent: that of its optimiser.
        bound: its last estimate.
        watch: statistics of its trend.
        axes: the variables in which the optimiser steps.
    """

    ascent: AscentState
    bound: Float[Leaf, ""]
    watch: Watch
    axes: GlobalAxes | None = None


class ClientGradient(eqx.Module):
    """What a client computes in one exchange.

    Attributes:
        bound: the client's part of the bound.
        shared: its gradient in what all clients share.
        own: its gradient in the client's own parameters.
    """

    bound: Float[Array, ""]
    shared: Globals
    own: LocalGaussian


class GradientState(eqx.Module):
    """The gradient, and whether it has been computed."""

    gradient: ClientGradient
    done: Bool[Array, ""]


class OneGradient(Solver):
    """The client's gradient, once; `structured` says how it is drawn."""

    unrolled: ClassVar[int | None] = 1
    structured: StructuredInference

    def steps_for(self, num_rows: np.ndarray) -> int:
        return 1

    def check(self, model: Model, loss: Loss, divergence: Divergence) -> None:
        return

    def init(self, problem: ClientTask) -> GradientState:
        shapes = jax.eval_shape(self.structured.gradient, jax.random.key(0), problem)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return GradientState(ClientGradient(*zeros), jnp.asarray(False))

    def step(self, key: PRNGKeyArray, problem: ClientTask, state: GradientState) -> GradientState:
        return GradientState(ClientGradient(*self.structured.gradient(key, problem)), jnp.asarray(True))

    def done(self, state: GradientState) -> Bool[Array, ""]:
        return state.done

    def result(self, problem: ClientTask, state: GradientState) -> ClientGradient:
        return state.gradient


class SFVI(Starting):
    """SFVI, and with `num_samples` above 1 its locally enhanced bound.

    Attributes:
        model: such as `numpyro_model(...)`.
        structured: family and estimator.
        ascent: the server's optimiser, and that of each client on its own latents.
        settling: when it ends.
    """

    model: LatentModel
    structured: StructuredInference
    ascent: Ascent
    solver: Solver
    settling: Settling

    def __init__(
        self,
        model: LatentModel,
        *,
        num_steps: int | None = None,
        step_size: float = 0.02,
        optimiser: MakeOptimiser | None = None,
        decay: bool = True,
        **options: Any,
    ):
        """The parts.

        Args:
            model: the model.
            num_steps: exchanges in all; None ends when the bound and the posterior have settled, after 20,000 at most.
            step_size: of the optimiser.
            optimiser: from a step size to an optax transformation; None is Adam.
            decay: whether the step size falls over `num_steps`.
            options: those of `structured_inference`.
        """
        if optimiser is None:
            import optax

            optimiser = optax.adam
        self.model = model
        self.structured = structured_inference(model, **options)
        self.ascent = Ascent(optimiser, step_size, num_steps if decay else None)
        self.solver = OneGradient(self.structured)
        by_itself = num_steps is None
        planned = MAX_STEPS if num_steps is None else num_steps
        self.settling = Settling(planned, FIRST_BATCH, NUM_BATCHES, by_itself, decay, BLOCK)

    def parts(self) -> tuple[SFVIClient, SFVIServer]:
        client = SFVIClient(self.solver, self.structured, self.ascent)
        return client, SFVIServer(self.structured, self.model, self.ascent, self.settling)

    @property
    def convergence(self) -> SettlingConvergence:
        return SettlingConvergence(self.settling, "step", 100)

    def starting_at(self, found: FullGaussian) -> SFVI:
        structured = self.structured.starting_at(found)
        return eqx.tree_at(lambda a: (a.structured, a.solver), self, (structured, OneGradient(structured)))

    @property
    def num_samples(self) -> int:
        """K, the importance samples per unit."""
        return self.structured.num_samples


class SFVIClient(StructuredClient):
    """The client part: one gradient, and one step on the client's own latents. Attributes as in `SFVI`."""

    solver: Solver
    structured: StructuredInference
    ascent: Ascent

    def adopt(self, q: LocalGaussian, shared: Globals) -> LocalState:
        return jax.tree.map(np.asarray, LocalState(q, self.ascent.init(q), self.structured.own_axes(q, shared.q)))

    def problem(self, inputs: ClientInput, local: LocalState, data: Data) -> ClientTask:
        return ClientTask(inputs.posterior, local, inputs.shared, data)

    def update(
        self, inputs: ClientInput, local: LocalState, problem: ClientTask, solution: ClientGradient
    ) -> tuple[ClientUpdate, LocalState]:
        q, ascent = self.ascent.step(local.q, local.ascent, solution.own, local.axes, inputs.shared.scale)
        nothing = jnp.full_like(solution.bound, jnp.nan)
        report = Report(gap=nothing, free_energy=solution.bound, steps=jnp.asarray(1), converged=jnp.asarray(True))
        return ClientUpdate(solution.shared, report), LocalState(q, ascent, local.axes)


class SFVIServer(StructuredServer):
    """The server part: the clients' gradients and its own, and one step of the optimiser. Attributes as in `SFVI`."""

    structured: StructuredInference
    model: LatentModel
    ascent: Ascent
    settling: Settling

    def adopt(self, shared: Globals) -> Learner:
        """The server's own state that starts here."""
        bound, watch = jnp.asarray(jnp.nan, float), self.settling.init(shared.q)
        return jax.tree.map(np.asarray, Learner(self.ascent.init(shared), bound, watch, self.structured.axes(shared.q)))

    def exchange(self, seed: Leaf, version: Leaf, method: Learner) -> Exchange:
        return self.structured.exchange(seed, version, self.settling.scale(method.watch))

    def combine(
        self, posterior: Globals, method: Learner, exchange: Exchange, updates: ClientUpdate, share: Leaf
    ) -> tuple[Globals, Learner]:
        own = server_gradient(self.model, posterior, jnp.asarray(exchange.noise))
        theirs = (updates.report.free_energy, updates.delta)
        bound, gradient = jax.tree.map(lambda mine, them: mine + jnp.sum(them, axis=0) / share, own, theirs)
        moved, ascent = self.ascent.step(posterior, method.ascent, gradient, method.axes, exchange.scale)
        bound = jnp.asarray(bound, jnp.asarray(method.bound).dtype)
        return moved, Learner(ascent, bound, self.settling.seen(method.watch, moved.q, bound), method.axes)

    def bound(self, method: Learner) -> Float[Leaf, ""]:
        return method.bound
