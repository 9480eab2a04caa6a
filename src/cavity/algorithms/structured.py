"""The bound of a structured model in a variational family, the estimate of its gradient, and the start.

SFVI and SFVI-Avg share this: the client's computation in an exchange, and defaults that depend on the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, UInt32

from cavity.algorithms.ascent import AscentState
from cavity.algorithms.bound import Globals, client_gradient, unit_noise
from cavity.algorithms.pvi import PVI
from cavity.algorithms.scale_free import GlobalAxes, LocalAxes
from cavity.core import Data, LatentModel, LocalUnits
from cavity.core.fields import require_kind
from cavity.core.types import Leaf
from cavity.distributions.full import FullGaussian
from cavity.distributions.structured import DenseGlobal, GlobalGaussian, LocalGaussian, MeanFieldGlobal
from cavity.errors import CavityError
from cavity.models.numpyro.latent_model import NumpyroModel

MANY_GLOBALS = 200  # from which q(Z_G) has no correlations by default
MANY_COUPLINGS = 20_000  # entries of a unit's C_u from which there is no C_u by default
SMALL_UNIT = 3  # latents of a unit up to which importance samples are drawn by default
SAMPLES = 20
INITIALISED_GLOBALS = 50  # up to which the start is found by Laplace's method by default
EXCHANGE_STREAM = 0x5F71


class Exchange(eqx.Module):
    """What all clients receive in one exchange.

    Attributes:
        noise: of Z_G, one row per draw.
        key: of the units' noise.
        scale: of the step size.
    """

    noise: Float[Leaf, "s e"]
    key: UInt32[Leaf, 2]
    scale: Float[Leaf, ""]


class LocalState(LocalUnits):
    """What stays at a client: q(Z_L | Z_G), its optimiser's state, and the variables in which the optimiser steps."""

    q: LocalGaussian
    ascent: AscentState
    axes: LocalAxes | None = None

    def resized(self, num_units: int) -> LocalState:
        return resized(self, num_units)


class ClientTask(eqx.Module):
    """A client's problem in one exchange."""

    shared: Globals
    own: LocalState
    exchange: Exchange
    data: Data


class StructuredInference(eqx.Module):
    """The bound of a model in a family, and how its gradient is estimated; what SFVI and SFVI-Avg share.

    Attributes:
        model: with global latents, local ones or none, and learned parameters or none.
        start: q(Z_G) and theta before any data.
        num_draws: draws of Z_G per gradient.
        num_samples: importance samples per unit, the K of the locally enhanced bound; 1 is the paper's.
        coupled: whether the mean of q(Z_L | Z_G) depends on Z_G.
        dense: whether it has correlations between the latents of a unit.
        widens: whether its standard deviations depend on Z_G too (not in the paper).
        local_scale: its standard deviations before any data.
        batch_size: rows per gradient; None takes all. Where every row is a unit, their latents are drawn with them.
        initialise: whether the start is found by Laplace's method first, and steps are taken in units of q.
        located: whether the start has been found.
    """

    model: LatentModel
    start: Globals
    num_draws: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    coupled: bool = eqx.field(static=True)
    dense: bool = eqx.field(static=True)
    widens: bool = eqx.field(static=True)
    local_scale: float
    batch_size: int | None = eqx.field(static=True, default=None)
    initialise: bool = eqx.field(static=True, default=False)
    located: bool = eqx.field(static=True, default=False)

    @property
    def laplace(self) -> PVI | None:
        """Laplace's method for the model without its local latents; None where the start has been found."""
        if not self.initialise or self.located:
            return None
        model = _numpyro(self.model)
        assert model is not None  # `structured_inference` has checked it
        from cavity.models.mixed.marginal import integrated_out  # loaded when a model is initialised
        from cavity.models.mixed.rules import Rule
        from cavity.solvers.laplace import Laplace

        return PVI(integrated_out(model, Rule(order=1)), solver=Laplace())

    def starting_at(self, found: FullGaussian) -> StructuredInference:
        """The same, with q(Z_G) set to the approximation of Laplace's method."""
        with jax.enable_x64(True):
            q = self.start.q.starting_at(found)
        return replace(self, start=Globals(q, self.start.theta), located=True)

    def axes(self, shared: GlobalGaussian) -> GlobalAxes | None:
        """The variables in which the server's optimiser steps from this start."""
        return GlobalAxes.of(shared) if self.initialise else None

    def own_axes(self, own: LocalGaussian, shared: GlobalGaussian) -> LocalAxes | None:
        """The variables in which a client's optimiser steps from this start."""
        return LocalAxes.of(own, shared) if self.initialise else None

    def initial_q(self, data: Data) -> LocalGaussian:
        """q(Z_L | Z_G) of a client before any data; empty for a model with an inference network."""
        q = self._vague_q(data)
        if not self.located or self.model.local_size(data) == 0:
            return q
        from cavity.models.mixed.conditional import conditional_modes

        mean, root, slope = conditional_modes(self.model, self.start.theta, self.start.q.mean, data)
        scale = jnp.diagonal(root, axis1=1, axis2=2)
        return replace(
            q,
            mean=mean,
            log_scale=jnp.log(scale),
            coupling=None if q.coupling is None else slope,
            below=None if q.below is None else jnp.tril(root / scale[..., None], -1),
        )

    def _vague_q(self, data: Data) -> LocalGaussian:
        assert data.units is not None
        encoded = jax.eval_shape(self.model.encode, self.start.theta, data)
        return LocalGaussian.start(
            len(data.units.weight),
            self.model.local_size(data) if encoded is None else 0,
            self.model.num_global,
            coupled=self.coupled,
            dense=self.dense,
            widens=self.widens,
            scale=self.local_scale,
            dtype=self.start.q.mean.dtype,
        )

    def gradient(
        self, key: PRNGKeyArray, client: ClientTask, *, joint_scale: Leaf | None = None
    ) -> tuple[Float[Array, ""], Globals, LocalGaussian]:
        """The client's part of the bound and of its gradient, and the gradient in the client's own parameters."""
        row_key, unit_key, model_key = jax.random.split(key, 3)
        data, q = client.data, client.own.q
        units = data.units
        assert units is not None
        if self.batch_size is not None and self.model.independent_rows:
            return self._gradient_of_some_units(row_key, unit_key, model_key, client, joint_scale)
        if self.batch_size is not None:
            from cavity.solvers.gradient import mini_batch

            rows = mini_batch(row_key, data, self.batch_size)
            data = Data(rows.batch, rows.weight, rows.num_rows, units)
        exchange = jax.random.wrap_key_data(jnp.asarray(client.exchange.key))
        shape = (self.num_draws, self.num_samples, self.model.local_size(data))
        noise = unit_noise(unit_key, exchange, units, shape, q.mean.dtype)
        return client_gradient(
            self.model, client.shared, q, jnp.asarray(client.exchange.noise), noise, data, model_key, joint_scale
        )

    def _gradient_of_some_units(
        self,
        row_key: PRNGKeyArray,
        unit_key: PRNGKeyArray,
        model_key: PRNGKeyArray,
        client: ClientTask,
        joint_scale: Leaf | None,
    ) -> tuple[Float[Array, ""], Globals, LocalGaussian]:
        """The same from `batch_size` units drawn with replacement; those that were not drawn have a gradient of 0."""
        data, own, size = client.data, client.own.q, self.batch_size
        assert data.units is not None
        assert size is not None
        places = jax.random.randint(row_key, (size,), 0, data.num_rows)
        parts = (data.batch, data.weight, data.units.batch, data.units.weight)
        # the barrier prevents XLA from gathering again wherever a row is used
        batch, weight, labels, present = jax.lax.optimization_barrier(
            jax.tree.map(lambda leaf: jnp.asarray(leaf)[places], parts)
        )
        some = Data(batch, weight, jnp.asarray(size), Data(labels, present, jnp.asarray(size)))
        dtype = client.shared.q.mean.dtype
        shape = (self.num_draws, self.num_samples, self.model.local_size(data))
        assert some.units is not None
        noise = unit_noise(
            unit_key, jax.random.wrap_key_data(jnp.asarray(client.exchange.key)), some.units, shape, dtype
        )
        q = jax.tree.map(lambda leaf: leaf[places], own)
        found = client_gradient(
            self.model, client.shared, q, jnp.asarray(client.exchange.noise), noise, some, model_key, joint_scale
        )
        scale = jnp.asarray(data.num_rows, dtype) / size
        bound, gradient, to_units = jax.tree.map(lambda leaf: scale * leaf, found)
        spread = jax.tree.map(lambda leaf, some: jnp.zeros_like(leaf).at[places].add(some), own, to_units)
        return bound, gradient, spread

    def exchange(self, seed: int | Leaf, version: int | Leaf, scale: float | Leaf) -> Exchange:
        """The noise of Z_G in one exchange, from the seed and the version alone, and the scale of its steps."""
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), EXCHANGE_STREAM), version)
        noise_key, unit_key = jax.random.split(key)
        q = self.start.q
        noise = jax.random.normal(noise_key, (self.num_draws, q.noise_size), q.mean.dtype)
        return Exchange(noise, jax.random.key_data(unit_key), jnp.asarray(scale, q.mean.dtype))


def structured_inference(
    model: LatentModel,
    *,
    covariance: str | Callable[[Array, Array], GlobalGaussian] | None = None,
    num_draws: int = 1,
    num_samples: int | None = None,
    coupled: bool | None = None,
    dense: bool | None = None,
    widens: bool | None = None,
    local_scale: float = 0.5,
    batch_size: int | None = None,
    dtype: DTypeLike | None = None,
    initialise: bool | None = None,
) -> StructuredInference:
    """The parts with their defaults, by the size of the model.

    `covariance` is the form of q(Z_G): "full", "diagonal", or a function from means and scales to a Gaussian. None is
    full, and diagonal for many global latents.

    With `initialise`, additional rounds first compute Laplace's approximation, which is the start, and steps are in
    units of its standard deviations. So the scale of the model's parameters does not matter. None does so for small
    NumPyro models.
    """
    require_kind(model, LatentModel, "SFVI takes a model with global and local latents (`numpyro_model(...)`)")
    mean, scale = (jnp.asarray(part, dtype) for part in model.start)
    if covariance is None:
        covariance = "diagonal" if model.num_global >= MANY_GLOBALS else "full"
    if isinstance(covariance, str) and covariance not in COVARIANCES:
        raise CavityError(f"unknown covariance {covariance!r}; choose one of: {', '.join(COVARIANCES)}, or a function")
    family = COVARIANCES[covariance] if isinstance(covariance, str) else covariance
    has_units = model.num_local > 0
    sees_all_rows = batch_size is None and not getattr(model, "draws_rows", False)
    if num_samples is None:
        num_samples = SAMPLES if 0 < model.num_local <= SMALL_UNIT and sees_all_rows else 1
    if coupled is None:
        coupled = has_units and model.num_local * model.num_global <= MANY_COUPLINGS
    if dense is None:
        dense = 1 < model.num_local <= 20
    if widens is None:
        widens = coupled and num_samples > 1
    for what, count in (("num_draws", num_draws), ("num_samples", num_samples), ("batch_size", batch_size or 1)):
        if count < 1:
            raise CavityError(f"{what} must be at least 1, not {count}")
    if num_samples > 1 and not sees_all_rows:
        raise CavityError(
            "importance samples need all rows of a unit: the log of an estimate is biased; leave out `num_samples`, or "
            "both `batch_size` and plates that draw rows"
        )
    if initialise is None:
        is_small = model.num_global <= INITIALISED_GLOBALS and model.num_local <= SMALL_UNIT
        initialise = _numpyro(model) is not None and is_small and sees_all_rows
    if initialise and _numpyro(model) is None:
        raise CavityError(f"`initialise` is for NumPyro models, not for {type(model).__name__}; leave it out")
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, mean.dtype), model.theta)
    return StructuredInference(
        model=model,
        start=Globals(family(mean, scale), theta),
        num_draws=num_draws,
        num_samples=num_samples,
        coupled=coupled,
        dense=dense,
        widens=widens,
        local_scale=float(local_scale),
        batch_size=batch_size,
        initialise=initialise,
    )


def _numpyro(model: LatentModel) -> NumpyroModel | None:
    """The model where it is a NumPyro model; None for all others."""
    return model if isinstance(model, NumpyroModel) else None


def dense_family(mean: Array, scale: Array) -> DenseGlobal:
    """All correlations between global latents."""
    return DenseGlobal(mean, jnp.log(scale), jnp.zeros((len(mean), len(mean)), mean.dtype))


def mean_field(mean: Array, scale: Array) -> MeanFieldGlobal:
    """No correlations between global latents."""
    return MeanFieldGlobal(mean, jnp.log(scale))


COVARIANCES: Mapping[str, Callable[[Array, Array], GlobalGaussian]] = {"full": dense_family, "diagonal": mean_field}


def resized(local: PyTree, num_units: int) -> PyTree:
    """The same for so many units; per-unit leaves have at least two axes, and padding repeats the last unit."""

    def fit(leaf: Leaf) -> Leaf:
        if np.ndim(leaf) < 2 or len(leaf) == num_units:
            return leaf
        leaf = np.asarray(leaf)
        return np.concatenate([leaf[:num_units], np.repeat(leaf[-1:], max(num_units - len(leaf), 0), axis=0)])

    return jax.tree.map(fit, local)
