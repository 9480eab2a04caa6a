"""A sparse Gaussian process on pooled rows, for comparison with federated ones.

For a Gaussian likelihood the bound of Titsias (2009), in which q(u) is optimal,

    log N(y; 0, Q + s^2 I) - sum over rows of (k(x, x) - Q(x, x)) / (2 s^2),    Q = K_xZ K_ZZ^-1 K_Zx

is maximised by L-BFGS. For other likelihoods (Hensman et al., 2015) natural gradient steps of q(u) alternate with Adam
steps of the other parameters. Inducing inputs and hyperparameters are points here; the latter have their prior.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from cavity.core import Data, Likelihood
from cavity.core.fields import Number
from cavity.distributions.hierarchical import Hierarchical, certain
from cavity.distributions.pseudo import PseudoObservations
from cavity.likelihoods.gaussian import GaussianNoise, known_noise
from cavity.models.gp.factor_forms import FactorProblem, OwnRows
from cavity.models.gp.inducing import NATURAL_RATE
from cavity.models.gp.sparse_gp import SparseGP

STEP_SIZE = 1e-2
MEMORY = 20  # of L-BFGS

Found = tuple[Float[Array, " d"], PseudoObservations, Float[Array, ""]]  # phi, the rows' factor, the bound
Carry = tuple[Float[Array, " d"], PseudoObservations, PyTree]  # phi, the rows' factor, the optimiser's state


def central_gp(model: SparseGP, x: PyTree, y: PyTree, *, num_steps: int = 300) -> tuple[Hierarchical, float]:
    """The posterior of pooled rows, for `model.predict`, and the bound on log p(y) in nats.

    Args:
        model: its form of a factor does not matter.
        x: all rows' inputs.
        y: their outcomes.
        num_steps: of L-BFGS; of Adam, for other likelihoods than the Gaussian.
    """
    x, y = (jnp.asarray(column) for column in model.rows((x, y)))
    fit = _by_adam if known_noise(model.likelihood) is None else _by_lbfgs
    phi, rows, bound = fit(model, x, y, num_steps)
    return Hierarchical(certain(phi), rows), float(bound)


def exact_rows(precision: Number, x: Float[Array, "n d"], y: Float[Array, " n"]) -> PseudoObservations:
    """Rows with Gaussian noise as a factor: observations of f with V = X, m = y, S = 1 / precision."""
    precision = jnp.full_like(y, precision)
    return PseudoObservations(x[None], (precision * y)[None], precision[None])


def collapsed_bound(
    model: SparseGP, phi: Float[Array, " p"], x: Float[Array, "n d"], y: Float[Array, " n"]
) -> Float[Array, ""]:
    """The bound of Titsias on log p(y | phi), in nats."""
    inducing, likelihood = model.at(phi)
    noise_sd = _noise(likelihood).noise_sd
    values = inducing.values(exact_rows(noise_sd**-2.0 / inducing.unit, x, y))
    left_over = jnp.sum(inducing.kernel(x)) - jnp.sum(inducing.features(x) ** 2)
    constant = -0.5 * jnp.sum(y**2) / noise_sd**2 - len(y) * (0.5 * jnp.log(2 * jnp.pi) + jnp.log(noise_sd))
    return values.log_partition + constant - 0.5 * left_over / noise_sd**2


def _noise(likelihood: Likelihood) -> GaussianNoise:
    noise = known_noise(likelihood)
    assert noise is not None  # `central_gp` has asked
    return noise


def _log_prior(model: SparseGP, phi: Float[Array, " d"]) -> Float[Array, ""]:
    """The log prior of the hyperparameters alone; inducing inputs are variational parameters without a prior."""
    prior = model.prior.shared
    each = -0.5 * prior.precision * (phi - prior.mean) ** 2
    return jnp.sum(jnp.where(model.is_auxiliary, 0.0, each))


@eqx.filter_jit
def _by_lbfgs(model: SparseGP, x: Array, y: Array, num_steps: int) -> Found:
    def energy(phi: Float[Array, " d"]) -> Float[Array, ""]:
        return -collapsed_bound(model, phi, x, y) - _log_prior(model, phi)

    optimiser, start = optax.lbfgs(memory_size=MEMORY), model.start
    value_and_grad = optax.value_and_grad_from_state(energy)

    def step(carry: tuple[Array, PyTree], _: None) -> tuple[tuple[Array, PyTree], None]:
        phi, memory = carry
        value, gradient = value_and_grad(phi, state=memory)
        updates, memory = optimiser.update(gradient, memory, phi, value=value, grad=gradient, value_fn=energy)
        return (jax.tree.map(jnp.add, phi, updates), memory), None

    if model.prior.shared.dimension:
        (start, _), _ = jax.lax.scan(step, (start, optimiser.init(start)), None, length=num_steps)
    inducing, likelihood = model.at(start)
    precision = _noise(likelihood).noise_precision / inducing.unit
    return start, exact_rows(precision, x, y), collapsed_bound(model, start, x, y)


@eqx.filter_jit
def _by_adam(model: SparseGP, x: Array, y: Array, num_steps: int) -> Found:
    data = Data((x, y), jnp.ones(len(y)), jnp.asarray(len(y)))
    form, nothing = OwnRows(len(y)), PseudoObservations.none(1, 1, x.shape[1], full=False)
    rows = form.start(form.none(0, x.shape[1], 1), model.likelihood, 1.0, data)
    optimiser = optax.adam(optax.cosine_decay_schedule(STEP_SIZE, num_steps))

    def step(carry: Carry, _: None) -> tuple[Carry, None]:
        phi, rows, memory = carry
        inducing, likelihood = model.at(phi)
        rows = form.improved(FactorProblem(inducing, nothing, likelihood, data), rows, NATURAL_RATE)
        gradient = jax.grad(lambda phi: -model.bound(phi, nothing, rows, data) - _log_prior(model, phi))(phi)
        updates, memory = optimiser.update(gradient, memory)
        return (jax.tree.map(jnp.add, phi, updates), rows, memory), None

    start = (model.start, rows, optimiser.init(model.start))
    (phi, rows, _), _ = jax.lax.scan(step, start, None, length=num_steps)
    return phi, rows, model.bound(phi, nothing, rows, data)
