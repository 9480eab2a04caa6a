"""The scale of a Gaussian prior: one for several coefficients, or one for each (automatic relevance determination).

With prior variances v_i and posterior means and variances m_i and s_i, the free energy depends on v through

    F = -sum_i [log v_i + ((m_i - mean_i)^2 + s_i) / v_i] / 2 + ...

where all v_i of a group grow by one factor c. Its maximum with q fixed is c = sum_i ((m_i - mean_i)^2 + s_i) / v_i / n,
the EM step, which is slow where the data say little. At a fixed point the same equation reads

    c = sum_i (m_i - mean_i)^2 / v_i / gamma,     gamma = sum_i (1 - s_i / v_i),

with gamma the number of coefficients that the data determine (MacKay, 1992), which is much faster, and lets the scale
of a coefficient that the data do not need fall to zero at a geometric rate. All of it is the server's: the posterior
for another prior and the same factors is known to it, so it repeats this to convergence before the clients go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from cavity import ledger
from cavity.core import Data, Hyperparameter, Model
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.isotropic import IsotropicGaussian
from cavity.errors import CavityError, UnsuitableError

MAX_REPEATS, SMALL = 1000, 1e-9  # at the server, the latter in nats per factor of e
LARGEST_FACTOR = 100.0  # by which a variance changes in one step


def _as_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise CavityError(f"parameters are a list of names, such as [{names!r}]")
    return None if names is None else tuple(names)


class PriorScale(Hyperparameter):
    """The prior's standard deviations, whose ratios stay within a group.

    Attributes:
        parameters: the names of those learned, such as all slopes without the intercept; None is all.
        separate: each has a scale of its own; else they have one factor in common.
        least: no scale falls below this share of where it began. One that does belongs to a coefficient that is not
            needed.
    """

    parameters: tuple[str, ...] | None = eqx.field(static=True, converter=_as_names, default=None)
    separate: bool = eqx.field(static=True, default=False)
    least: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self) -> None:
        if not 0 < self.least < 1:
            raise CavityError(f"least is a share between 0 and 1, not {self.least}")

    def check(self, model: Model) -> None:
        prior = model.prior
        if not isinstance(prior, (FullGaussian, DiagonalGaussian, IsotropicGaussian)) or model.server_entries():
            raise UnsuitableError(
                f"the prior of {type(model).__name__} is no Gaussian whose scale can be learned; write the scale into "
                "the model and give it a prior of its own"
            )
        precision = np.asarray(prior.precision_matrix)
        if np.any(precision != np.diag(np.diagonal(precision))):
            raise UnsuitableError("the prior has correlations; scales are learned of independent coefficients")
        if unknown := set(self.parameters or ()) - set(model.parameter_names):
            raise CavityError(
                f"there is no parameter {', '.join(sorted(unknown))}; there are {', '.join(model.parameter_names)}"
            )
        if isinstance(prior, IsotropicGaussian) and (self.separate or self.parameters is not None):
            raise UnsuitableError("an isotropic prior has one scale for all coefficients; use family=DiagonalGaussian")

    def init(self, model: Model) -> Float[np.ndarray, " d"]:
        return _moments(model.prior)[1]

    def sums(self, state: PyTree, model: Model, q: Any, data: Data) -> PyTree:
        return None

    def step(self, state: Any, model: Model, q: Any, sums: PyTree) -> tuple[Model, Float[np.ndarray, " e"], Any]:
        names = model.parameter_names if self.parameters is None else self.parameters
        chosen = np.flatnonzero(np.isin(model.parameter_names, names))
        groups = chosen[:, None] if self.separate else chosen[None]
        least = self.least**2 * state
        prior, q = ledger.to_host((model.prior, q))
        factors, slopes = q / prior, []
        for _ in range(MAX_REPEATS):
            prior, slope = _improved(prior, prior * factors, groups, least)
            slopes.append(slope)
            if np.max(np.abs(slope), initial=0.0) < SMALL:
                break
        prior = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), prior, model.prior)
        return eqx.tree_at(lambda model: model.prior, model, prior), slopes[0], state


def _improved(prior: Any, q: Any, groups: np.ndarray, least: np.ndarray) -> tuple[Any, np.ndarray]:
    """The prior after one step, and dF / d log scale before it (log v = 2 log scale); 0 where v can fall no more."""
    (prior_mean, prior_variance), (mean, variance) = _moments(prior), _moments(q)
    shift = np.sum((mean - prior_mean)[groups] ** 2 / prior_variance[groups], axis=1)
    gamma = np.sum(1.0 - variance[groups] / prior_variance[groups], axis=1)
    slope = shift - gamma
    em = 1.0 + slope / groups.shape[1]
    factor = np.where(gamma > 0, shift / np.where(gamma > 0, gamma, 1.0), em)
    factor = np.clip(factor, 1 / LARGEST_FACTOR, LARGEST_FACTOR)
    floor = np.max(least[groups] / prior_variance[groups], axis=1)
    slope = np.where((factor < floor) & np.isclose(floor, 1.0), 0.0, slope)
    new = prior_variance.copy()
    new[groups] *= np.maximum(factor, floor)[:, None]
    return _member(prior, prior_mean, new), slope


def _moments(q: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and marginal variances, in numpy: they are asked for many times, in no compiled program."""
    pull, precision = (np.asarray(leaf, np.float64) for leaf in (q.precision_mean, q.precision))
    if isinstance(q, FullGaussian):
        covariance = np.linalg.inv(precision)
        return covariance @ pull, np.diagonal(covariance)
    return pull / precision, np.broadcast_to(1 / precision, pull.shape)


def _member(like: Gaussian, mean: np.ndarray, variance: np.ndarray) -> Gaussian:
    """Of the family of `like`, with independent coefficients."""
    if isinstance(like, IsotropicGaussian):
        return IsotropicGaussian(mean / variance[0], 1 / variance[0])
    if isinstance(like, FullGaussian):
        return FullGaussian(mean / variance, np.diag(1 / variance))
    return DiagonalGaussian(mean / variance, 1 / variance)
