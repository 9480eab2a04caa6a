"""The Fisher-Rao distance between mean-field Gaussians (FedGVI, appendix D.1.1; Nielsen, 2023).

Univariate Gaussians are a hyperbolic plane: with x = ((mu_q - mu_p)^2 / 2 + (s_q - s_p)^2) / (2 s_q s_p),

    distance = sqrt(2) arcosh(1 + x) = 2 sqrt(2) arsinh(sqrt(x / 2)),

which is sqrt(2) log((1 + D) / (1 - D)) with D^2 = ((c - a)^2 + 2 (d - b)^2) / ((c - a)^2 + 2 (d + b)^2). The paper's
ratio has a wrong sign and lacks the factors of two. The squared distances of independent coordinates add up.
"""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import Distribution, Divergence
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.gaussian import GaussianDensity
from cavity.distributions.mean_scale import MeanScale
from cavity.distributions.natural import require_proper
from cavity.errors import UnsuitableError


class FisherRao(Divergence):
    """The geodesic distance from p, in nats^(1/2): exact for mean field, not implemented for correlated Gaussians.

    It grows with the logarithm of the distance between means. At q = p it has a kink; the derivative there is set to 0.
    """

    needs_proper_cavity: ClassVar[bool] = True

    def check(self, family: Distribution) -> None:
        if not isinstance(family, (DiagonalGaussian, MeanScale)):
            raise UnsuitableError(
                "the Fisher-Rao distance has a closed form between mean-field Gaussians only, not for "
                f'{type(family).__name__}. Give the model `covariance="diagonal"`, or use another divergence'
            )

    def __call__(self, q: GaussianDensity, p: GaussianDensity) -> Float[Array, ""]:
        self.check(q)
        return _distance(q, require_proper(p, "take the Fisher-Rao distance from"))

    def objective(self, q: GaussianDensity, p: GaussianDensity) -> Float[Array, ""]:
        return _distance(q, p)


def _distance(q: GaussianDensity, p: GaussianDensity) -> Float[Array, ""]:
    ours, theirs = jnp.sqrt(q.variance), jnp.sqrt(p.variance)
    x = (0.5 * (q.mean - p.mean) ** 2 + (ours - theirs) ** 2) / (2.0 * ours * theirs)
    return _root(jnp.sum(8.0 * _squared_arsinh(0.5 * x)))


@jax.custom_jvp
def _squared_arsinh(u: Float[Array, " d"]) -> Float[Array, " d"]:
    """arsinh(sqrt(u))^2, which is smooth at u = 0 though its parts are not."""
    return jnp.arcsinh(jnp.sqrt(u)) ** 2


@_squared_arsinh.defjvp
def _squared_arsinh_jvp(primals, tangents):
    (u,), (du,) = primals, tangents
    root = jnp.sqrt(jnp.asarray(jnp.where(u > 0, u, 1.0)))
    slope = jnp.where(u > 0, jnp.arcsinh(root) / (root * jnp.sqrt(1.0 + root**2)), 1.0)
    return _squared_arsinh(u), slope * du


def _root(total: Float[Array, ""]) -> Float[Array, ""]:
    positive = total > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, total, 1.0)), 0.0)
