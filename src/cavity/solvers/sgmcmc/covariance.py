"""The Gaussian approximation of the tilted distribution, from the samples of a chain (FedEP, section 2.2.2).

Its mean is that of the samples. Its precision is

| variant | here | precision of the tilted distribution |
| --- | --- | --- |
| I | `ScaledIdentity(c)` | cavity's + n c: the *factor* is a multiple of the identity |
| M | `SampleMoments(...)` | 1 / variance of the samples, shrunk towards I |
| - | `LedoitWolf()` | inverse of their covariance, shrunk by Ledoit and Wolf (2004); for small models |
| L | `DiagonalFisher(...)` | cavity's + Fisher information at the mean |
| V | `NaturalVI(...)` | cavity's + Fisher information expected under the tilted distribution itself |
| - | `Point()` | none: a point mass (FedAvg) |

In the paper's text the scaled identity is the covariance of the tilted distribution. With that, factors change at
clients where they should not, and the example of section 3.1 diverges. c is a precision per row (alpha_cov of table 7):
the posterior of N rows then has the variance 1 / (N c).
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from cavity.core import Distribution, Loss, Model, Problem
from cavity.core.fields import as_count, as_number, require
from cavity.distributions import DiagonalGaussian, FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.point import PointMass
from cavity.errors import CavityError
from cavity.solvers.fisher import check_fisher, diagonal_fisher

PRECISION_PER_ROW = 0.05


class Samples(eqx.Module):
    """Statistics of a chain's samples: their number, their mean, and further ones that a covariance estimate needs."""

    count: Int[Array, ""]
    mean: Float[Array, " d"]
    more: PyTree


class Spread(eqx.Module):
    """A choice of the tilted distribution's covariance."""

    is_point: ClassVar[bool] = False  # whether there is no covariance, and the tilted distribution is a point mass

    def check(self, model: Model, loss: Loss) -> None:
        """Raise UnsuitableError where it cannot be had for a model."""
        return

    def init(self, theta: Float[Array, " d"], num_samples: int) -> Samples:
        """The state before the first sample."""
        return Samples(jnp.asarray(0), jnp.zeros_like(theta), self.none(theta, num_samples))

    def add(self, samples: Samples, theta: Float[Array, " d"]) -> Samples:
        """The state with one more sample."""
        count = samples.count + 1
        mean = samples.mean + (theta - samples.mean) / count.astype(theta.dtype)
        return Samples(count, mean, self.more(samples, theta, mean))

    def none(self, theta: Float[Array, " d"], num_samples: int) -> PyTree:
        """The further statistics before the first sample."""
        return None

    def more(self, samples: Samples, theta: Float[Array, " d"], mean: Float[Array, " d"]) -> PyTree:
        """The further statistics with one more sample and the new mean."""
        return None

    @abc.abstractmethod
    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Distribution:
        """The Gaussian (or point mass) around the samples' mean."""


def _rows(problem: Problem[Gaussian]) -> Float[Array, ""]:
    """The sum of the weights of the rows."""
    return jnp.sum(jnp.asarray(problem.data.weight, problem.start.mean.dtype))


def _with_curvature(cavity: Gaussian, curvature: Float[Array, " d"], mean: Float[Array, " d"]) -> Gaussian:
    """The Gaussian around a mean whose precision is that of the cavity plus a diagonal."""
    nothing = jnp.zeros_like(mean)
    # `site` uses the mean of its member, which cancels here and may be 0 / 0
    added = cavity.with_moments_of(DiagonalGaussian(nothing, jnp.ones_like(mean))).site(nothing, curvature)
    return (cavity * added).with_mean(mean)


class ScaledIdentity(Spread):
    """The factor's precision is n_k c I (FedEP I). It costs no more than FedAvg.

    Attributes:
        precision_per_row: c.
    """

    precision_per_row: Float[Array, ""] = eqx.field(converter=as_number, default=PRECISION_PER_ROW)

    def __check_init__(self) -> None:
        require(self.precision_per_row, lambda c: c > 0, "the precision per row must be positive")

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Gaussian:
        return _with_curvature(problem.cavity, self.curvature(problem), samples.mean)

    def curvature(self, problem: Problem[Gaussian]) -> Float[Array, " d"]:
        """N_k c, for each parameter."""
        mean = problem.start.mean
        return jnp.full_like(mean, 1.0) * _rows(problem) * self.precision_per_row.astype(mean.dtype)


class SampleMoments(Spread):
    """The samples' own variances, shrunk towards those of `ScaledIdentity` (FedEP M).

    With S the variance of l samples the estimate is (1 - r) S + r target, r = 1 / (1 + (l - 1) shrinkage), as in FedPA.

    Attributes:
        shrinkage: near 0 the target alone counts, infinite the samples alone (for chains that sample, as SGLD).
        precision_per_row: c of the target.
        non_negative: keep the factor's precision from being negative, where samples spread wider than the cavity.
    """

    shrinkage: Float[Array, ""] = eqx.field(converter=as_number, default=1e-4)
    precision_per_row: Float[Array, ""] = eqx.field(converter=as_number, default=PRECISION_PER_ROW)
    non_negative: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        if not bool(jnp.all(self.shrinkage >= 0)):
            raise CavityError(f"the shrinkage must not be negative, and is {self.shrinkage}")
        require(self.precision_per_row, lambda c: c > 0, "the precision per row must be positive")

    def none(self, theta: Float[Array, " d"], num_samples: int) -> PyTree:
        return jnp.zeros_like(theta)

    def more(self, samples: Samples, theta: Float[Array, " d"], mean: Float[Array, " d"]) -> PyTree:
        return samples.more + (theta - samples.mean) * (theta - mean)  # the sum of squares (Welford)

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Gaussian:
        dtype = samples.mean.dtype
        others = jnp.maximum(samples.count - 1, 0).astype(dtype)
        own = samples.more / jnp.maximum(others, 1)
        target = ScaledIdentity(self.precision_per_row).tilted(key, problem, samples).variance
        weight = 1.0 / (1.0 + others * self.shrinkage.astype(dtype))  # of the target; 1 for a single sample
        weight = jnp.where(others > 0, weight, 1.0)
        variance = (1.0 - weight) * own + weight * target
        if self.non_negative:
            cavity = problem.cavity.variance
            variance = jnp.asarray(jnp.where(cavity > 0, jnp.minimum(variance, cavity), variance))
        return problem.cavity.with_moments_of(DiagonalGaussian.from_moments(samples.mean, variance))


class LedoitWolf(Spread):
    """The full covariance of the samples, shrunk to a multiple of the identity by the amount with the least expected
    error.

    For small models: it keeps all samples. Where the family has no correlations, its variances are taken.
    """

    def none(self, theta: Float[Array, " d"], num_samples: int) -> PyTree:
        return jnp.zeros((num_samples, theta.shape[0]), theta.dtype)

    def more(self, samples: Samples, theta: Float[Array, " d"], mean: Float[Array, " d"]) -> PyTree:
        return samples.more.at[samples.count].set(theta)

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Gaussian:
        full = FullGaussian.from_moments(samples.mean, ledoit_wolf(samples.more))
        return problem.cavity.with_moments_of(full)


def ledoit_wolf(samples: Float[Array, "l d"]) -> Float[Array, "d d"]:
    """(1 - b/a) S + (b/a) m I, with m = tr S / d, a = |S - m I|^2 and b = mean of |x x' - S|^2 / l, at most a."""
    number, dimension = samples.shape
    centred = samples - jnp.mean(samples, axis=0)
    covariance = centred.T @ centred / number
    mean = jnp.trace(covariance) / dimension
    distance = jnp.sum(covariance**2) - dimension * mean**2
    noise = (jnp.sum(jnp.sum(centred**2, axis=1) ** 2) / number - jnp.sum(covariance**2)) / number
    share = jnp.clip(noise / jnp.where(distance > 0, distance, 1.0), 0.0, 1.0)
    return (1.0 - share) * covariance + share * mean * jnp.eye(dimension, dtype=samples.dtype)


class DiagonalFisher(Spread):
    """Laplace's approximation with the diagonal Fisher information, at the mean of the samples (FedEP L).

    Attributes:
        num_epochs: passes over the rows, each with newly drawn outcomes; their average is taken.
    """

    num_epochs: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        if self.num_epochs < 1:
            raise CavityError(f"the Fisher information needs at least one pass over the rows, not {self.num_epochs}")

    def check(self, model: Model, loss: Loss) -> None:
        check_fisher(model, loss)

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Gaussian:
        def one(epoch: Array, total: Array) -> Array:
            return total + diagonal_fisher(jax.random.fold_in(key, epoch), problem, samples.mean)

        total = jax.lax.fori_loop(0, self.num_epochs, one, jnp.zeros_like(samples.mean))
        return _with_curvature(problem.cavity, total / self.num_epochs, samples.mean)


class NaturalVI(Spread):
    """Natural-gradient VI in the precision, around the mean of the samples, for any cavity (FedEP V, Algorithm 5).

        s    = decay * s + (1 - decay) * E[Fisher information] / n_k      under the tilted distribution so far
        precision of the tilted = precision of the cavity + n_k s

    (Line 11 of the algorithm lacks the inverse.)

    Attributes:
        num_epochs: T, changes of s.
        num_draws: of theta in each, with one pass over the rows for each.
        decay: beta.
        precision_per_row: s at the start, which counts decay ** num_epochs at the end.
    """

    num_epochs: Int[Array, ""] = eqx.field(converter=as_count, default=5)
    num_draws: int = eqx.field(static=True, default=5)
    decay: Float[Array, ""] = eqx.field(converter=as_number, default=0.99)
    precision_per_row: Float[Array, ""] = eqx.field(converter=as_number, default=PRECISION_PER_ROW)

    def __check_init__(self) -> None:
        require(self.num_epochs, lambda epochs: epochs >= 1, "there must be at least one epoch")
        require(self.decay, lambda decay: 0 <= decay < 1, "the decay must be in [0, 1)")
        require(self.precision_per_row, lambda c: c > 0, "the precision per row must be positive")
        if self.num_draws < 1:
            raise CavityError(f"each epoch needs at least one draw, not {self.num_draws}")

    def check(self, model: Model, loss: Loss) -> None:
        check_fisher(model, loss)

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> Gaussian:
        mean, rows = samples.mean, _rows(problem)
        decay = self.decay.astype(mean.dtype)

        def member(s: Array) -> Gaussian:
            return _with_curvature(problem.cavity, rows * s, mean)

        def epoch(t: Array, s: Array) -> Array:
            q = member(s)

            def draw(i: Array, total: Array) -> Array:
                noise_key, fisher_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, t), i))
                theta = q.reparameterise(jax.random.normal(noise_key, mean.shape, mean.dtype))
                return total + diagonal_fisher(fisher_key, problem, theta)

            expected = jax.lax.fori_loop(0, self.num_draws, draw, jnp.zeros_like(mean)) / self.num_draws
            return decay * s + (1.0 - decay) * expected / rows

        start = jnp.full_like(mean, 1.0) * self.precision_per_row.astype(mean.dtype)
        return member(jax.lax.fori_loop(0, self.num_epochs, epoch, start))


class Point(Spread):
    """No variance: the tilted distribution is a point mass at the mean."""

    is_point: ClassVar[bool] = True

    def tilted(self, key: PRNGKeyArray, problem: Problem[Gaussian], samples: Samples) -> PointMass:
        return PointMass(samples.mean)
