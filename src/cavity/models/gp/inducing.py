"""The algebra of a sparse Gaussian process: rows and pseudo-observations given inducing inputs and hyperparameters.

Whitened: K_ZZ = L L', u = L v, v ~ N(0, I). A row x has features a(x) = k(x, Z) L^-T and

    f(x) | v ~ N(a(x) . v, k(x, x) - a(x) . a(x)),    q(v) = N(Lambda^-1 g, Lambda^-1)
    Lambda = I + r sum of P_k,    g = r sum of g_k

over all factors (`distributions/pseudo.py`). The paper's r is 1. Where the likelihood has noise of variance s^2,
r = 1 / s^2 makes S a multiple of it: the optimal factor, equation (11), has S = s^2, so that its precision increases
when the rows of another client show that there is less noise. Equation (25) of the paper lacks transposes:
P = L' K_ZZ^-1 K_ZV S^-1 K_VZ K_ZZ^-1 L.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, DTypeLike, Float

from cavity.core import Likelihood
from cavity.core.fields import Number
from cavity.core.types import Leaf
from cavity.distributions.pseudo import Kernel, Observations, PseudoObservations
from cavity.distributions.quadrature import normal_nodes

NATURAL_RATE = 0.3  # of natural gradient steps where the likelihood is not Gaussian


class Inducing(eqx.Module):
    """A kernel at some inducing inputs.

    Attributes:
        kernel: with its hyperparameters.
        inputs: Z.
        root: L.
        unit: r, the unit of a factor's precision.
    """

    kernel: Kernel
    inputs: Float[Array, "m d"]
    root: Float[Array, "m m"]
    unit: Float[Array, ""]

    @classmethod
    def at(cls, kernel: Kernel, inputs: Float[Array, "m d"], jitter: Number, unit: Number) -> Inducing:
        """The kernel at these inputs. `jitter` times the mean variance is added to K_ZZ, so that its root exists."""
        covariance = kernel(inputs, inputs)
        size = covariance.shape[0]
        least = 10 * size * jnp.finfo(covariance.dtype).eps  # in single precision this is more than the usual jitter
        ridge = jnp.maximum(jnp.asarray(jitter, covariance.dtype), least) * jnp.trace(covariance) / size
        root = jnp.linalg.cholesky(covariance + ridge * jnp.eye(size, dtype=covariance.dtype))
        return cls(kernel, inputs, root, jnp.asarray(unit, covariance.dtype))

    def features(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch m"]:
        """A = K_xZ L^-T."""
        flat = x.reshape(-1, x.shape[-1])
        a = solve_triangular(self.root, self.kernel(flat, self.inputs).T, lower=True).T
        return a.reshape(*x.shape[:-1], a.shape[-1])

    def values(self, factor: Observations) -> Values:
        """q(v) of the prior and a factor, which may be the product of many."""
        return self.with_factor(Values.prior(len(self.root), self.root.dtype), factor)

    def with_factor(self, values: Values, factor: Observations) -> Values:
        """q(v) with one more factor."""
        precision, shift = factor.seen(self.root, self.features)
        return Values.of(values.precision + self.unit * precision, values.shift + self.unit * shift)

    def beyond(self, factor: PseudoObservations, precision: Float[Array, "m m"]) -> Float[Array, ""]:
        """The terms besides g . v - v' r P v / 2 of rows m at V, each observed S^-1 times with noise of precision r.

        `precision` is r P. With V = X, m = y and S = 1 these are the terms of Titsias' bound that depend on phi and not
        on q(u): the variance of f given u, and the constant of a Gaussian with as many rows.
        """
        prior_variance, squares, num_rows = factor.squares(self.kernel)
        left_over = self.unit * prior_variance - jnp.trace(precision)
        return 0.5 * (num_rows * jnp.log(self.unit / (2 * jnp.pi)) - self.unit * squares - left_over)

    def marginals(self, values: Values, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Mean and variance of f at each row."""
        a = self.features(x)
        spread = solve_triangular(values.root, a.T, lower=True)
        variance = self.kernel(x) - jnp.sum(a**2, axis=1) + jnp.sum(spread**2, axis=0)
        return a @ values.mean, jnp.maximum(variance, jnp.finfo(a.dtype).eps)


class Values(eqx.Module):
    """q(v), a Gaussian in natural parameters.

    Attributes:
        precision: Lambda.
        shift: g.
        root: the lower Cholesky root of Lambda.
        mean: Lambda^-1 g.
    """

    precision: Float[Array, "m m"]
    shift: Float[Array, " m"]
    root: Float[Array, "m m"]
    mean: Float[Array, " m"]

    @classmethod
    def prior(cls, size: int, dtype: DTypeLike) -> Values:
        """N(0, I)."""
        identity, zero = jnp.eye(size, dtype=dtype), jnp.zeros(size, dtype)
        return cls(identity, zero, identity, zero)

    @classmethod
    def of(cls, precision: Float[Array, "m m"], shift: Float[Array, " m"]) -> Values:
        """From natural parameters."""
        root = jnp.linalg.cholesky(precision)
        return cls(precision, shift, root, cho_solve((root, True), shift))

    @property
    def log_partition(self) -> Float[Array, ""]:
        """G' Lambda^-1 g / 2 - log |Lambda| / 2: that of N(0, I) is 0."""
        return 0.5 * self.shift @ self.mean - jnp.sum(jnp.log(jnp.diagonal(self.root)))

    def kl(self, other: Values) -> Float[Array, ""]:
        """KL(self : other), as E[log factor] minus the difference of the log-partitions."""
        return self.expected_factor(other) - self.log_partition + other.log_partition

    def expected_factor(self, other: Values) -> Float[Array, ""]:
        """E[g . v - v' P v / 2] of the factor self / other."""
        more, pull = self.precision - other.precision, self.shift - other.shift
        spread = jnp.sum(cho_solve((self.root, True), more).diagonal())
        return pull @ self.mean - 0.5 * (self.mean @ more @ self.mean + spread)


def expected_log_prob(
    likelihood: Likelihood, mean: Float[Array, " n"], variance: Float[Array, " n"], y: Leaf
) -> Float[Array, " n"]:
    """E[log p(y | f)] for f ~ N(mean, variance) in each row: in closed form, or by Gauss-Hermite quadrature."""
    closed = likelihood.expected_power
    if closed is not None:
        return closed.expected_log_prob(mean[:, None], variance[:, None, None], y)
    nodes, weights = normal_nodes(1)
    f = mean[:, None] + jnp.sqrt(variance)[:, None] * nodes[:, 0].astype(mean.dtype)
    return likelihood.log_prob(f[..., None], y[:, None]) @ weights.astype(mean.dtype)


def sites(
    likelihood: Likelihood, mean: Float[Array, " n"], variance: Float[Array, " n"], y: Leaf
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """(lambda, h) of each row: exp(h f - lambda f^2 / 2) has the gradients of E[log p(y | f)] in mean and variance.

    For a Gaussian likelihood it is the likelihood itself. In the mean the gradient is E[d log p / df], in the variance
    E[d2 log p / df2] / 2.
    """
    total = lambda mean, variance: jnp.sum(expected_log_prob(likelihood, mean, variance, y))  # noqa: E731
    slope, half_curvature = jax.grad(total, argnums=(0, 1))(mean, variance)
    precision = jnp.maximum(-2.0 * half_curvature, 0.0)  # a Student t's may be negative far from its centre
    return precision, slope + precision * mean
