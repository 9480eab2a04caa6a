"""Draws that reach beyond a fitted Gaussian, with their density: a proposal for importance sampling.

Draws of q alone cannot show that the posterior has heavier tails than q, or another mode: they do not reach them. The
proposal is a mixture around q = N(mu, L L'), theta = mu + c L z, whose parts are in `PARTS`. Half of the draws are of q
itself, so that weights stay below two where q is right, in any dimension. The others have the tails of Student's t, and
some are wider (Owen and Zhou, 2000, on such defensive mixtures). The density depends on theta only through
r^2 = |L^-1 (theta - mu)|^2, so it holds for any form of the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, pi

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from cavity.distributions.gaussian import Gaussian

# share of the draws, degrees of freedom, scale in sds of q; the last part finds modes tens of sds away
PARTS = ((0.5, np.inf, 1.0), (0.3, 5.0, 1.0), (0.12, 5.0, 2.5), (0.08, 1.0, 5.0))


@dataclass(frozen=True)
class Draws:
    """Draws of a proposal.

    Attributes:
        theta: the draws; of a Gaussian, one row each.
        log_proposal: log of the proposal's density at each.
        log_q: log q at each.
        of_q: which of them were drawn from q itself.
    """

    theta: PyTree
    log_proposal: Float[np.ndarray, " s"]
    log_q: Float[np.ndarray, " s"]
    of_q: Bool[np.ndarray, " s"]


def draw(q: Gaussian, num_draws: int, seed: int, batch: int = 0) -> Draws:
    """Draws of the mixture, with a fixed share for each part. Call it in double precision, with float64 leaves of `q`.

    Args:
        q: a proper Gaussian.
        num_draws: number of draws.
        seed: random seed.
        batch: its number; other batches have other draws.

    Returns:
        The draws with their densities.
    """
    parts = _part_of(num_draws)
    noise = _noise(np.random.default_rng([seed, batch]), parts, q.dimension)
    theta, at_mean = _placed(q, noise)
    log_q = float(at_mean) - 0.5 * np.sum(noise**2, axis=1)
    return Draws(np.asarray(theta), log_density(log_q, float(at_mean), q.dimension), log_q, parts == 0)


def log_density(log_q: Float[np.ndarray, " s"], at_mean: float, dimension: int) -> Float[np.ndarray, " s"]:
    """Log of the mixture's density, from log q and log q(mu).

    With r^2 = 2 (log q(mu) - log q), a part with nu degrees of freedom and scale c has the log density
    log G((nu + d) / 2) - log G(nu / 2) - d/2 log(nu pi) - log det L - d log c - (nu + d)/2 log(1 + r^2 / (c^2 nu)).

    Args:
        log_q: log q at the draws.
        at_mean: log q(mu).
        dimension: d.

    Returns:
        The log density of the mixture at the draws.
    """
    squared, d = 2 * (at_mean - log_q), dimension
    log_root = -at_mean - 0.5 * d * log(2 * pi)  # log det L
    total = np.full_like(log_q, -np.inf)
    for share, nu, scale in PARTS:
        if np.isinf(nu):
            part = log_q
        else:
            constant = lgamma((nu + d) / 2) - lgamma(nu / 2) - 0.5 * d * log(nu * pi) - log_root - d * log(scale)
            part = constant - 0.5 * (nu + d) * np.log1p(squared / (scale**2 * nu))
        total = np.logaddexp(total, log(share) + part)
    return total


def _part_of(num_draws: int) -> np.ndarray:
    """Which part each draw belongs to."""
    edges = np.cumsum([share for share, _, _ in PARTS])
    return np.minimum(np.searchsorted(edges, (np.arange(num_draws) + 0.5) / num_draws), len(PARTS) - 1)


def _noise(rng: np.random.Generator, parts: np.ndarray, dimension: int) -> Float[np.ndarray, "s d"]:
    """L^-1 (theta - mu) of draws: c z sqrt(nu / chi^2_nu), with z standard normal."""
    nu, scale = (np.array(column)[parts] for column in list(zip(*PARTS, strict=True))[1:])
    finite = np.where(np.isinf(nu), 1.0, nu)
    stretch = np.where(np.isinf(nu), 1.0, np.sqrt(finite / rng.chisquare(finite)))
    return rng.standard_normal((len(parts), dimension)) * (scale * stretch)[:, None]


@jax.jit
def _placed(q: Gaussian, noise: Float[Array, "s d"]) -> tuple[Array, Array]:
    return q.reparameterise(noise), q.log_prob(q.mean)
