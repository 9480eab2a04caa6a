"""The alpha-Renyi divergence between Gaussians (FedGVI, section 3.3).

    D(q : p) = 1 / (alpha (alpha - 1)) * log of the integral of q^alpha p^(1 - alpha)

Its appendix prints 1 / (alpha (1 - alpha)), which is negative. The limits are KL(q : p) at alpha = 1 and KL(p : q) at
alpha = 0. With r the eigenvalues of Lambda_p relative to Lambda_q, v the difference of means in their coordinates, and

    phi(u) = u - log(1 + u),     g(epsilon, x) = phi(x) - phi(epsilon x) / epsilon    (non-negative, g(0, x) = phi(x))

it is a sum over coordinates of

    v^2 r / (2 (alpha + (1 - alpha) r))  +  g(1 - alpha, r - 1) / (2 alpha)                for alpha >= 1/2,
    v^2 r / (2 (alpha + (1 - alpha) r))  +  g(alpha, 1 / r - 1) / (2 (1 - alpha))          for alpha < 1/2,

two forms of one function; each is accurate near one of the limits. It is finite where every alpha + (1 - alpha) r is
positive: for alpha > 1, q may not be much wider than p.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

from cavity.core import Distribution, Divergence
from cavity.core.fields import Number, as_number, is_traced, require
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian, GaussianDensity
from cavity.divergences.families import require_gaussian
from cavity.divergences.spectrum import precision_ratio, spectral_sum
from cavity.errors import ImproperError

STEEPEST = 1e-3  # lower bound of alpha + (1 - alpha) r in derivatives, which limits them near the edge of the domain
SERIES_BELOW = 1e-2  # |u| under which phi(u) / u^2 is summed as a series: seven terms are exact to rounding
Q = TypeVar("Q", bound=GaussianDensity)


def curvature(u: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """phi(u) / u^2 = (u - log(1 + u)) / u^2: 1/2 at u = 0, by its series nearby."""
    small = jnp.abs(u) < SERIES_BELOW
    away = jnp.where(small, 1.0, u)
    near = jnp.where(small, u, 0.0)
    series = 0.5 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near * (1 / 6 - near * (1 / 7 - near / 8)))))
    return jnp.where(small, series, (away - jnp.log1p(away)) / away**2)


def gap(epsilon: Float[Array, ""], x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """g(epsilon, x) = phi(x) - phi(epsilon x) / epsilon, with no division by epsilon."""
    return x**2 * (curvature(x) - epsilon * curvature(epsilon * x))


def log_ratio(epsilon: Float[Array, ""], x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Log(1 + epsilon x) / epsilon, which is x at epsilon = 0."""
    u = epsilon * x
    return x * (1.0 - u * curvature(u))


class Renyi(Divergence):
    """The alpha-Renyi divergence for Gaussian families.

    With alpha > 1 a narrow q costs less than under KL, so that a bad prior has less influence; with alpha < 1 it costs
    more. A cavity may be improper where alpha >= 1; below 1 there would be no minimiser.

    Attributes:
        alpha: at least 0.
    """

    asks_moments_only: ClassVar[bool] = True
    alpha: Float[Array, ""] = eqx.field(converter=as_number)
    near_reverse: bool = eqx.field(static=True)  # alpha < 1/2
    needs_proper: bool = eqx.field(static=True)  # alpha < 1

    def __init__(self, alpha: Number):
        self.alpha = as_number(alpha)
        require(self.alpha, lambda alpha: alpha >= 0, "alpha of the Renyi divergence must be at least 0")
        known = not is_traced(self.alpha)
        self.near_reverse = known and bool(self.alpha < 0.5)
        self.needs_proper = known and bool(self.alpha < 1.0)

    @property
    def needs_proper_cavity(self) -> bool:
        """With an improper p and alpha < 1 the objective decreases without bound towards the edge of its domain."""
        return self.needs_proper

    def check(self, family: Distribution) -> None:
        require_gaussian(family, "the alpha-Renyi divergence")

    def __call__(self, q: GaussianDensity, p: Gaussian) -> Float[Array, ""]:
        full = _correlated(q)
        value = self._mean_field(q, p) if full is None else self._full(full, p)
        if not is_traced(value) and not jnp.isfinite(value):
            raise ImproperError(
                f"the alpha-Renyi divergence with alpha = {self.alpha} is infinite here: alpha times the precision of "
                "q plus 1 - alpha times that of p is not positive, or p is improper. Take alpha nearer to 1, or KL"
            )
        return value

    def _log_part(self, alpha: Float[Array, ""], r: Float[Array, " d"]) -> Float[Array, " d"]:
        """The second term: infinite outside the domain, with finite derivatives there."""
        inside = (alpha + (1.0 - alpha) * r > 0) & (r > 0)
        r = jnp.where(inside, r, 1.0)
        if self.near_reverse:
            value = 0.5 * gap(alpha, 1.0 / r - 1.0) / (1.0 - alpha)
        else:
            value = 0.5 * gap(1.0 - alpha, r - 1.0) / alpha
        return jnp.asarray(jnp.where(inside, value, jnp.inf))

    def _mean_field(self, q: GaussianDensity, p: Gaussian) -> Float[Array, ""]:
        alpha = self.alpha.astype(q.mean.dtype)
        r = q.variance * p.precision
        mixed = alpha + (1.0 - alpha) * r
        distance = 0.5 * p.precision * (q.mean - p.mean) ** 2 / jnp.where(mixed > 0, mixed, 1.0)
        return jnp.sum(distance + self._log_part(alpha, r))

    def _full(self, q: FullGaussian, p: Gaussian) -> Float[Array, ""]:
        alpha = self.alpha.astype(q.precision.dtype)
        ratio = precision_ratio(q, p)
        v = q.cholesky.T @ (q.mean - p.mean)
        solved, inside = _mixed_solve(alpha, ratio, v)
        distance = 0.5 * v @ ratio @ solved
        value = distance + spectral_sum(self._log_part, alpha, ratio)
        return jnp.asarray(jnp.where(inside & ~jnp.isnan(distance), value, jnp.inf))

    def objective(self, q: GaussianDensity, p: Gaussian) -> Float[Array, ""]:
        """D(q : p) without the log-partition of p, which may not exist.

        With s = grad log p at the mean of q and M = alpha Lambda_q + (1 - alpha) Lambda_p, it is 1 / alpha times

            -log p(mean) + (alpha - 1) s' M^-1 s / 2 + log det Lambda_q / 2 + log det(M Lambda_q^-1) / (2 (1 - alpha))
        """
        if self.near_reverse:
            return self(q, p)
        alpha = self.alpha.astype(q.mean.dtype)
        mean = q.mean
        full = _correlated(q)
        if full is not None:
            ratio = precision_ratio(full, p)
            chol = full.cholesky
            slope = p.precision_mean - p.precision @ mean
            white = solve_triangular(chol, slope, lower=True)
            at_mean = mean @ p.precision_mean - 0.5 * mean @ (p.precision @ mean)
            solved, inside = _mixed_solve(alpha, ratio, white)
            bent = 0.5 * white @ solved
            logs = jnp.sum(jnp.log(jnp.diagonal(chol))) + 0.5 * spectral_sum(_log_mixture, alpha, ratio)
            value = -at_mean + (alpha - 1.0) * bent + logs
            return jnp.asarray(jnp.where(inside, value / alpha, jnp.inf))
        shift, precision = jnp.asarray(p.precision_mean), jnp.asarray(p.precision)
        return jnp.sum(_objective_terms(alpha, mean, q.log_variance, shift, precision))

    def inside(self, q: Q, p: Gaussian) -> Q:
        """For alpha > 1 a q that is too wide for p is moved half-way inside; for mean field, per coordinate."""
        alpha = self.alpha.astype(q.mean.dtype)
        full = _correlated(q)
        if full is not None:
            r = jnp.linalg.eigvalsh(precision_ratio(full, p))
            outside = jnp.any(alpha + (1.0 - alpha) * r <= 0)
            needed = jnp.max(2.0 * (alpha - 1.0) / alpha * r)
            return q ** jnp.where(outside, needed, 1.0)
        outside = alpha + (1.0 - alpha) * p.precision * q.variance <= 0
        needed = jnp.broadcast_to(2.0 * (alpha - 1.0) / alpha * p.precision, outside.shape)
        return q.with_precision(outside, needed)


def _correlated(q: GaussianDensity) -> FullGaussian | None:
    """`q` where it has correlations; None for mean field."""
    return q if isinstance(q, FullGaussian) else None


def _plain_terms(alpha: Array, mean: Array, log_variance: Array, precision_mean: Array, precision: Array) -> Array:
    variance = jnp.exp(log_variance)
    r = precision * variance
    mixed = alpha + (1.0 - alpha) * r
    slope = precision_mean - precision * mean
    at_mean = mean * (precision_mean - 0.5 * precision * mean)
    bent = 0.5 * slope**2 * variance / jnp.where(mixed > 0, mixed, 1.0)
    return (-at_mean + (alpha - 1.0) * bent + 0.5 * (_log_mixture(alpha, r) - log_variance)) / alpha


@jax.custom_jvp
def _objective_terms(alpha: Array, mean: Array, log_variance: Array, precision_mean: Array, precision: Array) -> Array:
    """The objective of each coordinate of a mean-field q."""
    return _plain_terms(alpha, mean, log_variance, precision_mean, precision)


@partial(_objective_terms.defjvp, symbolic_zeros=True)
def _objective_terms_jvp(primals, tangents):
    """Gradient descent needs the derivatives in mean and log variance only, which contain no logarithm:

        -slope / mixed,     ((alpha - 1) variance (slope / mixed)^2 + (r - 1) / mixed) / 2

    Logarithms would be most of the cost of the Renyi divergence in a network. Outside the domain, where alpha > 1,
    these derivatives point back inside; within a thousandth of its edge they are bounded.
    """
    alpha, mean, log_variance, precision_mean, precision = primals
    variance = jnp.exp(log_variance)
    r = precision * variance
    inverse = 1.0 / jnp.maximum(alpha + (1.0 - alpha) * r, STEEPEST)
    bent = (precision_mean - precision * mean) * inverse
    derivatives = {1: -bent, 2: 0.5 * ((alpha - 1.0) * variance * bent**2 + (r - 1.0) * inverse)}
    total = jnp.zeros_like(r)
    for place, tangent in enumerate(tangents):
        if isinstance(tangent, SymbolicZero):
            continue
        if place in derivatives:
            total = total + derivatives[place] * tangent
        else:
            # the cavity and alpha, which gradient descent does not change: by the chain rule
            of = partial(_with_entry, primals, place)
            total = total + jax.jvp(of, (primals[place],), (tangent,))[1]
    return _plain_terms(*primals), total


def _with_entry(arguments: tuple[Array, ...], place: int, value: Array) -> Array:
    alpha, mean, log_variance, precision_mean, precision = (*arguments[:place], value, *arguments[place + 1 :])
    return _plain_terms(alpha, mean, log_variance, precision_mean, precision)


def _log_mixture(alpha: Float[Array, ""], r: Float[Array, " d"]) -> Float[Array, " d"]:
    """Log(alpha + (1 - alpha) r) / (1 - alpha), infinite outside the domain."""
    inside = alpha + (1.0 - alpha) * r > 0
    return jnp.where(inside, log_ratio(1.0 - alpha, jnp.where(inside, r, 1.0) - 1.0), jnp.inf)


def _mixed_solve(
    alpha: Float[Array, ""], ratio: Float[Array, "d d"], v: Float[Array, " d"]
) -> tuple[Array, Bool[Array, ""]]:
    """(alpha I + (1 - alpha) R)^-1 v, and whether it is inside the domain; outside it is v, whose slope is finite."""
    identity = jnp.eye(len(v), dtype=v.dtype)
    mixed = alpha * identity + (1.0 - alpha) * ratio
    inside = jnp.all(jnp.isfinite(jnp.linalg.cholesky(jax.lax.stop_gradient(mixed))))
    return cho_solve((jnp.linalg.cholesky(jnp.where(inside, mixed, identity)), True), v), inside
