"""Programs that an expert would write by hand for one problem: the references of `cavity bench core`.

Nothing here imports Cavity. Each program does the same mathematics as the Cavity call that it is compared with, with
the same numbers of rows, draws and steps, and none of the generality.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PRNGKeyArray


@partial(jax.jit, static_argnames=("num_steps", "batch_size"))
def adam_steps(
    keys: Key[Array, " m"], x: Float[Array, "m n d"], y: Float[Array, "m n"], *, num_steps: int, batch_size: int
) -> tuple[Float[Array, "m d"], Float[Array, "m d"]]:
    """Mean-field logistic regressions under N(0, I): Adam on (mu, log sd), mini-batches, local reparameterisation."""
    num_rows, dimension = x.shape[1:]
    adam = optax.adam(1e-2)

    def client(key: PRNGKeyArray, x: Float[Array, "n d"], y: Float[Array, " n"]) -> tuple[Array, Array]:
        def objective(parameters: tuple[Array, Array], key: PRNGKeyArray) -> Array:
            mean, log_sd = parameters
            batch_key, noise_key = jax.random.split(key)
            rows = jax.random.randint(batch_key, (batch_size,), 0, num_rows)
            x_rows, y_rows = x[rows], y[rows]
            spread = jnp.sqrt(x_rows**2 @ jnp.exp(2 * log_sd))
            f = x_rows @ mean + spread * jax.random.normal(noise_key, (batch_size,), x.dtype)
            loss = num_rows / batch_size * jnp.sum(jax.nn.softplus(f) - y_rows * f)
            return loss + jnp.sum(0.5 * (mean**2 + jnp.exp(2 * log_sd)) - log_sd)

        def step(state: tuple, key: PRNGKeyArray) -> tuple[tuple, None]:
            parameters, moments = state
            updates, moments = adam.update(jax.grad(objective)(parameters, key), moments)
            return (optax.apply_updates(parameters, updates), moments), None

        start = (jnp.zeros(dimension, x.dtype), jnp.zeros(dimension, x.dtype))
        return jax.lax.scan(step, (start, adam.init(start)), jax.random.split(key, num_steps))[0][0]

    return jax.vmap(client)(keys, x, y)


@jax.jit
def matrix_products(pairs: list[tuple[Array, Array]]) -> list[Array]:
    """Nothing but the products."""
    return [a @ b for a, b in pairs]


@partial(jax.jit, static_argnames=("num_rounds", "num_steps"))
def newton_rounds(
    x: Float[Array, "m n d"], y: Float[Array, "m n"], nodes: Array, weights: Array, *, num_rounds: int, num_steps: int
) -> tuple[Array, Array, Array, Array]:
    """Synchronous PVI of a logistic regression under N(0, I), full covariance, undamped.

    Each client takes `num_steps` natural-gradient steps of size 1 by quadrature over its predictors. Returns the
    natural parameters of the posterior, and for each round the largest change KL(tilted : posterior) and the free
    energy.
    """
    num_clients, _, dimension = x.shape

    def moments(h: Array, precision: Array) -> tuple[Array, Array, Array]:
        root = jnp.linalg.cholesky(precision)
        covariance = jax.scipy.linalg.cho_solve((root, True), jnp.eye(dimension, dtype=h.dtype))
        return covariance @ h, covariance, root

    def expected_loss(mean: Array, variance: Array, y: Array) -> Array:
        f = mean[:, None] + jnp.sqrt(variance)[:, None] * nodes
        return jnp.sum((jax.nn.softplus(f) - y[:, None] * f) @ weights)

    def client(q: Pair, factor: Pair, x: Array, y: Array) -> tuple[Pair, Array, Array]:
        cavity = (q[0] - factor[0], q[1] - factor[1])

        def step(i: Array, state: tuple[Pair, Array]) -> tuple[Pair, Array]:
            tilted, first_loss = state
            mean, covariance, _root = moments(*tilted)
            variance = jnp.sum((x @ covariance) * x, axis=1)
            loss, (slope, bend) = jax.value_and_grad(expected_loss, argnums=(0, 1))(x @ mean, variance, y)
            hessian = (x * (2 * bend)[:, None]).T @ x
            moved = (cavity[0] + hessian @ mean - x.T @ slope, cavity[1] + hessian)
            return moved, jnp.asarray(jnp.where(i == 0, loss, first_loss))

        tilted, first_loss = jax.lax.fori_loop(0, num_steps, step, (q, jnp.zeros((), x.dtype)))
        mean, covariance, root = moments(*tilted)
        old_mean, old_covariance, old_root = moments(*q)
        log_ratio = 2 * jnp.sum(jnp.log(jnp.diagonal(root)) - jnp.log(jnp.diagonal(old_root)))
        shift = mean - old_mean
        change = 0.5 * (jnp.sum(q[1] * covariance) - dimension + log_ratio + shift @ q[1] @ shift)
        local = -first_loss - _expected_log_factor(factor, old_mean, old_covariance)
        return (tilted[0] - cavity[0], tilted[1] - cavity[1]), change, local

    def one_round(state: tuple[Pair, Pair], _: None) -> tuple[tuple[Pair, Pair], tuple[Array, Array]]:
        q, factors = state
        factors, changes, local = jax.vmap(client, in_axes=(None, 0, 0, 0))(q, factors, x, y)
        free_energy = jnp.sum(local) + _log_normaliser(*q)
        return (_times(prior, factors), factors), (jnp.max(changes), free_energy)

    prior, empty = _standard_normal(dimension, x.dtype), _nothing(num_clients, dimension, x.dtype)
    (q, _), (changes, free_energies) = jax.lax.scan(one_round, (prior, empty), None, length=num_rounds)
    return *q, changes, free_energies


@partial(jax.jit, static_argnames=("num_rounds",))
def conjugate_rounds(
    x: Float[Array, "m n d"], y: Float[Array, "m n"], exponent: Array, *, num_rounds: int
) -> tuple[Array, Array, Array, Array]:
    """Synchronous PVI of a linear regression with noise of variance 1 under N(0, I), damped by `exponent`.

    Returns the natural parameters of the posterior, and for each round the largest change KL(tilted : posterior) and
    the free energy.
    """
    num_clients, num_rows, dimension = x.shape

    def moments(h: Array, root: Array) -> tuple[Array, Array]:
        covariance = jax.scipy.linalg.cho_solve((root, True), jnp.eye(dimension, dtype=h.dtype))
        return covariance @ h, covariance

    def client(q: Pair, factor: Pair, x: Array, y: Array) -> tuple[Pair, Array, Array]:
        likelihood = (x.T @ y, x.T @ x)
        delta = (likelihood[0] - factor[0], likelihood[1] - factor[1])
        tilted = (q[0] + delta[0], q[1] + delta[1])
        root, old_root = jnp.linalg.cholesky(tilted[1]), jnp.linalg.cholesky(q[1])
        (mean, covariance), (old_mean, old_covariance) = moments(tilted[0], root), moments(q[0], old_root)
        log_ratio = 2 * jnp.sum(jnp.log(jnp.diagonal(root)) - jnp.log(jnp.diagonal(old_root)))
        shift = mean - old_mean
        change = 0.5 * (jnp.sum(q[1] * covariance) - dimension + log_ratio + shift @ q[1] @ shift)
        constant = -0.5 * (jnp.sum(y**2) + num_rows * jnp.log(2 * jnp.pi))
        local = _expected_log_factor(delta, old_mean, old_covariance) + constant
        return delta, change, local

    def one_round(state: tuple[Pair, Pair], _: None) -> tuple[tuple[Pair, Pair], tuple[Array, Array]]:
        q, factors = state
        deltas, changes, local = jax.vmap(client, in_axes=(None, 0, 0, 0))(q, factors, x, y)
        factors = jax.tree.map(lambda factor, delta: factor + exponent * delta, factors, deltas)
        free_energy = jnp.sum(local) + _log_normaliser(*q)
        return (_times(prior, factors), factors), (jnp.max(changes), free_energy)

    prior, empty = _standard_normal(dimension, x.dtype), _nothing(num_clients, dimension, x.dtype)
    (q, _), (changes, free_energies) = jax.lax.scan(one_round, (prior, empty), None, length=num_rounds)
    return *q, changes, free_energies


Pair = tuple[Array, Array]  # the natural parameters h and Lambda of a Gaussian


def _standard_normal(dimension: int, dtype: jnp.dtype) -> Pair:
    return jnp.zeros(dimension, dtype), jnp.eye(dimension, dtype=dtype)


def _nothing(num_clients: int, dimension: int, dtype: jnp.dtype) -> Pair:
    return jnp.zeros((num_clients, dimension), dtype), jnp.zeros((num_clients, dimension, dimension), dtype)


def _times(prior: Pair, factors: Pair) -> Pair:
    return prior[0] + factors[0].sum(0), prior[1] + factors[1].sum(0)


def _expected_log_factor(factor: Pair, mean: Array, covariance: Array) -> Array:
    return factor[0] @ mean - 0.5 * jnp.sum(factor[1] * (covariance + jnp.outer(mean, mean)))


def _log_normaliser(h: Array, precision: Array) -> Array:
    """Log Z of a Gaussian, less that of N(0, I)."""
    root = jnp.linalg.cholesky(precision)
    white = jax.scipy.linalg.solve_triangular(root, h, lower=True)
    return 0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(root)))
