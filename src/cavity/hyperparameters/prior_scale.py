"""The scale of a Gaussian prior: one for several coefficients, or one for each (automatic relevance determination).

With prior variances v_i and posterior means and variances m_i and s_i, the free energy depends on v through

    F = -sum_i [log v_i + ((m_i - mean_i)^2 + s_i) / v_i] / 2 + ...

where all v_i of a group grow by one factor c. Its maximum with q fixed is c = sum_i ((m_i - mean_i)^2 + s_i) / v_i / n,
the EM step, which is slow where the data carry little information. At a fixed point the same equation reads

    c = sum_i (m_i - mean_i)^2 / v_i / gamma,     gamma = sum_i (1 - s_i / v_i),

with gamma the number of coefficients that the data determine (MacKay, 1992). This is much faster, and the scale of a
coefficient that the data do not need falls to zero at a geometric rate. The server does all of it: it knows the
posterior for another prior and the same factors, so it repeats this to convergence before the clients continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from cavity import ledger
from cavity.core import Data, Distribution, Hyperparameter, Model
from cavity.distributions.diagonal import DiagonalGaussian
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.isotropic import IsotropicGaussian
from cavity.errors import CavityError, UnsuitableError
from cavity.solvers.requirements import require_family

MAX_REPEATS, SMALL = 1000, 1e-9  # at the server; the latter in nats per factor of e
LARGEST_FACTOR = 100.0  # by which a variance changes in one step

Vector = Float[np.ndarray, " d"]


class _Form(NamedTuple):
    """How a form of Gaussian gives its moments, and is made from those of independent coefficients; in numpy."""

    moments: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]  # of Lambda mu and Lambda
    independent: Callable[[np.ndarray, np.ndarray], Gaussian]  # of means and variances


def _full_moments(precision_mean: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    covariance = np.linalg.inv(precision)
    return covariance @ precision_mean, np.diagonal(covariance)


def _plain_moments(precision_mean: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return precision_mean / precision, np.broadcast_to(1 / precision, precision_mean.shape)


FORMS: dict[type[Gaussian], _Form] = {
    FullGaussian: _Form(_full_moments, lambda mean, v: FullGaussian(mean / v, np.diag(1 / v))),
    DiagonalGaussian: _Form(_plain_moments, lambda mean, v: DiagonalGaussian(mean / v, 1 / v)),
    IsotropicGaussian: _Form(_plain_moments, lambda mean, v: IsotropicGaussian(mean / v[0], 1 / v[0])),
}


def _as_names(names: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(names, str):
        raise CavityError(f"parameters are a list of names, such as [{names!r}]")
    return None if names is None else tuple(names)


class PriorScale(Hyperparameter):
    """The prior's standard deviations, whose ratios stay constant within a group.

    Attributes:
        parameters: the names of those learned, such as all slopes without the intercept; None is all.
        separate: whether each has a scale of its own; otherwise they have one factor in common.
        least: no scale falls below this share of its start. One that reaches it belongs to a coefficient that the data
            do not need.
    """

    parameters: tuple[str, ...] | None = eqx.field(static=True, converter=_as_names, default=None)
    separate: bool = eqx.field(static=True, default=False)
    least: float = eqx.field(static=True, default=1e-3)

    def __check_init__(self) -> None:
        if not 0 < self.least < 1:
            raise CavityError(f"least is a share between 0 and 1, not {self.least}")

    def check(self, model: Model) -> None:
        prior = model.prior
        if not isinstance(prior, Gaussian) or type(prior) not in FORMS or model.server_entries():
            raise UnsuitableError(
                f"the prior of {type(model).__name__} is no Gaussian whose scale can be learned; write the scale into "
                "the model and give it a prior of its own"
            )
        precision = np.asarray(prior.precision_matrix)
        if np.any(precision != np.diag(np.diagonal(precision))):
            raise UnsuitableError("the prior has correlations; scales are learned of independent coefficients")
        if unknown := set(self.parameters or ()) - set(model.parameter_names):
            raise CavityError(
                f"no parameter {', '.join(sorted(unknown))}; choose from: {', '.join(model.parameter_names)}"
            )
        if type(prior) is IsotropicGaussian and (self.separate or self.parameters is not None):
            raise UnsuitableError('an isotropic prior has one scale for all coefficients; use covariance="diagonal"')

    def init(self, model: Model) -> Vector:
        return _moments(require_family(model, "PriorScale", Gaussian))[1]

    def sums(self, state: PyTree, model: Model, q: Distribution, data: Data) -> PyTree:
        return None

    def step(
        self, state: Vector, model: Model, q: Distribution, sums: PyTree
    ) -> tuple[Model, Float[np.ndarray, " e"], Vector]:
        names = model.parameter_names if self.parameters is None else self.parameters
        chosen = np.flatnonzero(np.isin(model.parameter_names, names))
        groups = chosen[:, None] if self.separate else chosen[None]
        least = self.least**2 * state
        prior, posterior = ledger.to_host((model.prior, q))
        factors, slopes = posterior / prior, []
        for _ in range(MAX_REPEATS):
            prior, slope = _improved(prior, prior * factors, groups, least)
            slopes.append(slope)
            if np.max(np.abs(slope), initial=0.0) < SMALL:
                break
        prior = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), prior, model.prior)
        return eqx.tree_at(lambda model: model.prior, model, prior), slopes[0], state


def _improved(
    prior: Gaussian, q: Gaussian, groups: np.ndarray, least: np.ndarray
) -> tuple[Gaussian, Float[np.ndarray, " e"]]:
    """The prior after one step, and dF / d log scale before it (log v = 2 log scale); 0 where v is at its least."""
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
    return FORMS[type(prior)].independent(prior_mean, new), slope


def _moments(q: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Mean and marginal variances, in numpy: they are needed many times, outside any compiled program."""
    precision_mean, precision = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(q))
    return FORMS[type(q)].moments(precision_mean, precision)
