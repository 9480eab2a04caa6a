"""A model whose local latents are integrated out by Laplace's method: a likelihood of Z_G only.

    log p(y_u | Z_G)  ~  log p(y_u, z_u | Z_G) + l/2 log 2 pi - 1/2 log det(-H_u)       at the mode z_u given Z_G

with H_u the Hessian in the l latents of unit u. It is exact for Gaussian units. The modes of all units are found in
parallel, and the last two Newton steps are differentiated: the first of them gives correct first derivatives in Z_G,
the second one correct second derivatives.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, LatentModel, pad
from cavity.core.fields import as_number
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.errors import CavityError
from cavity.models.numpyro.globals_only import OnGlobals, prior_in
from cavity.models.numpyro.latent_model import NumpyroModel

LOG_2PI = 1.8378770664093453
FIRST = 1e-3  # where the search starts: at 0 NumPyro's Binomial has a kink and a wrong gradient
MODE_STEPS = 30
DAMPING = 1e-3  # of the first step, as a share of the curvature
MAX_DAMPING = 1e9


def unit_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], start: Float[Array, "u l"], data: Data
) -> Float[Array, "u l"]:
    """The mode of each unit's latents given Z_G, by Newton's method with damping per unit."""

    def value(local: Array) -> Array:
        found = model.log_joint(theta, z, local, data, jax.random.key(0))
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    def step(_: int | Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        local, best, damping = state
        gradient, curvature = unit_derivatives(model, theta, z, local, data)
        trial = local + _solve(_raised(curvature, damping), gradient)
        there = value(trial)
        better = there >= best
        local = jnp.where(better[:, None], trial, local)
        damping = jnp.clip(jnp.where(better, damping / 10.0, damping * 4.0), 0.0, MAX_DAMPING)
        return local, jnp.where(better, there, best), damping

    first = (start, value(start), jnp.full(start.shape[:1], DAMPING, start.dtype))
    return jax.lax.fori_loop(0, MODE_STEPS, step, first)[0]


def unit_derivatives(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], local: Float[Array, "u l"], data: Data
) -> tuple[Float[Array, "u l"], Float[Array, "u l l"]]:
    """Gradient and negative Hessian of each unit's log joint density in its own latents; units do not mix."""

    def slope(local: Array) -> Array:
        return jax.grad(lambda local: jnp.sum(model.log_joint(theta, z, local, data, jax.random.key(0))))(local)

    def along(direction: Array) -> Array:
        return jax.jvp(slope, (local,), (jnp.broadcast_to(direction, local.shape),))[1]

    columns = jax.vmap(along)(jnp.eye(local.shape[1], dtype=local.dtype))
    return slope(local), -jnp.moveaxis(columns, 0, 2)


def _raised(curvature: Float[Array, "u l l"], damping: Float[Array, " u"]) -> Float[Array, "u l l"]:
    """The curvature made positive definite: absolute eigenvalues, increased by a share of them."""
    values, vectors = jnp.linalg.eigh(curvature)
    raised = jnp.abs(values) * (1.0 + damping[:, None]) + jnp.finfo(values.dtype).tiny
    return jnp.einsum("uij,uj,ukj->uik", vectors, raised, vectors)


def _solve(matrix: Float[Array, "u l l"], right: Float[Array, "u l"]) -> Float[Array, "u l"]:
    return right / matrix[..., 0] if right.shape[1] == 1 else jnp.linalg.solve(matrix, right[..., None])[..., 0]


def log_marginal(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], start: Float[Array, "u l"], data: Data
) -> Float[Array, " u"]:
    """Log p(y_u | Z_G) of each unit by Laplace's method; twice differentiable in Z_G."""
    num_local = start.shape[1]
    if num_local == 0:
        return model.log_joint(theta, z, start, data, jax.random.key(0))
    fixed = jax.lax.stop_gradient
    local = fixed(unit_modes(model, fixed(theta), fixed(z), start, fixed(data)))
    for _ in range(2):
        gradient, curvature = unit_derivatives(model, theta, z, local, data)
        local = local + _solve(curvature, gradient)
    joint = model.log_joint(theta, z, local, data, jax.random.key(0))
    _, curvature = unit_derivatives(model, theta, z, local, data)
    log_det = jnp.log(curvature[:, 0, 0]) if num_local == 1 else jnp.linalg.slogdet(curvature)[1]
    return joint + 0.5 * num_local * LOG_2PI - 0.5 * log_det


def conditional_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data
) -> tuple[Array, Array, Array]:
    """Laplace's approximation of q(Z_u | Z_G) at a client: modes [u l], roots of covariances [u l l], slopes [u l g].

    The slope is how the mode moves with Z_G. Rows and units are padded, so that few shapes are compiled.
    """
    assert data.units is not None
    num_units = len(data.units.weight)
    rows, units = (1 << (n - 1).bit_length() for n in (len(data.weight), num_units))
    if num_units == len(data.weight):  # where every row is a unit, it stays one
        units = rows
    modes, roots, slopes = _conditional_modes(model, theta, z, pad(data, rows, units))
    return modes[:num_units], roots[:num_units], slopes[:num_units]


@eqx.filter_jit
def _conditional_modes(
    model: LatentModel, theta: PyTree, z: Float[Array, " g"], data: Data
) -> tuple[Array, Array, Array]:
    data = jax.tree.map(jnp.asarray, data)
    assert data.units is not None
    start = jnp.full((len(data.units.weight), model.local_size(data)), FIRST, z.dtype)
    local = unit_modes(model, theta, z, start, data)
    for _ in range(2):  # the search ends when its value changes by rounding only
        gradient, curvature = unit_derivatives(model, theta, z, local, data)
        local = local + _solve(_raised(curvature, jnp.zeros(len(local), local.dtype)), gradient)

    def move(z: Array) -> Array:
        gradient, curvature = unit_derivatives(model, theta, z, local, data)
        return local + _solve(curvature, gradient)

    _, curvature = unit_derivatives(model, theta, z, local, data)
    covariance = jnp.linalg.inv(_raised(curvature, jnp.zeros(len(local), z.dtype)))
    return local, jnp.linalg.cholesky(0.5 * (covariance + jnp.swapaxes(covariance, 1, 2))), jax.jacfwd(move)(z)


class Marginal(OnGlobals):
    """A NumPyro model with its units integrated out, as a likelihood of all rows of a client together."""

    latent: NumpyroModel
    prior: Gaussian
    corrected: bool = eqx.field(static=True)
    correction_weight: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f"Z[{i}]" for i in range(self.latent.num_global))

    def of(self, data: Data) -> Data:
        """A client's data in the form of this model."""
        assert data.units is not None
        units = Data(None, data.units.weight, data.units.num_rows)
        return Data(self.with_flag(data.batch), np.asarray(data.weight, float), data.num_rows, units)

    def log_prob(self, theta: Float[Array, " d"], data: Data) -> Float[Array, ""]:
        units = data.units
        assert units is not None

        def of_rows(z: Array, columns: PyTree) -> Array:
            rows = replace(data, batch=columns)
            start = jnp.full((len(units.weight), self.latent.local_size(rows)), FIRST, z.dtype)
            each = log_marginal(self.latent, self.latent.theta, z, start, rows)
            return jnp.sum(jnp.where(jnp.asarray(units.weight) > 0, each, 0.0))

        return self.or_correction(theta, data.batch, jnp.sum(jnp.asarray(data.weight)), of_rows)

    def server_entries(self) -> dict[str, Data]:
        unit = Data(None, np.ones(1), np.asarray(1))
        return {name: replace(row, units=unit) for name, row in super().server_entries().items()}

    def empty_batch(self) -> dict[str, np.ndarray]:
        return {name: np.zeros((1, *column.shape[1:]), column.dtype) for name, column in self.latent.example.items()}

    def prepare(self, batch: PyTree) -> PyTree:
        raise CavityError("this model takes data that `of` has prepared from a client's data")


def marginal(model: NumpyroModel) -> Marginal:
    """The model without its local latents."""
    prior, corrected = prior_in(FullGaussian, model)
    return Marginal(latent=model, prior=prior, corrected=corrected)
