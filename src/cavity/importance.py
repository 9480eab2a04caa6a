"""Is the Gaussian good enough? Importance weights of posterior draws, and how heavy their tail is.

    w_s = prior(theta_s) * prod_k p(y_k | theta_s) / q(theta_s),     theta_s ~ q

A client answers with one number per draw, the log likelihood of all its rows; everything else the server has. If q were
the posterior, all weights would be the evidence p(y). The more they scatter, the less can be said about the posterior
from q, and the shape k of a generalised Pareto distribution fitted to the largest of them (PSIS: Vehtari, Simpson,
Gelman, Yao and Gabry, 2024; as a check of variational inference: Yao, Vehtari, Simpson and Gelman, 2018) says how much:
their moments are finite up to 1 / k. Under a generalised loss the likelihood is exp(-loss), to the power that the
method gives it, and p(y) is no evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity import ledger
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian
from cavity.engines.drive import numbers_as_leaves
from cavity.engines.stacks import buckets, device_mesh
from cavity.errors import CavityError, UnsuitableError
from cavity.evidence import NO_EVIDENCE
from cavity.interfaces import Algorithm, Data, Distribution

FEWEST_DRAWS = 25  # of which the largest fifth can be fitted
GOOD = 0.5  # k below which the weights have a finite variance
MOST = 0.9  # of the draws effective: then it is the far tails alone that k tells of
AFFORDABLE = 2_500_000  # rows times parameters that a printed summary may take: seconds
ALIKE = 1e-6  # nats within which weights are equal but for rounding
MOST_AT_ONCE = 1_000_000  # rows times draws that are evaluated together, so that memory does not grow with either
FEWEST_IN_TAIL = 5


@dataclass(frozen=True)
class ImportanceWeights:
    """Draws of a posterior and their log weights, which say what it lacks.

    Attributes:
        draws: of theta, with the draws as leading axis.
        log_weights: log w_s in nats, not normalised.
        prior_is_proper: else the weights are known up to a constant factor, and there is no evidence.
    """

    draws: PyTree
    log_weights: Float[np.ndarray, " s"]
    prior_is_proper: bool = True

    @property
    def pareto_k(self) -> float:
        """Below 0.5 the approximation is good, above `limit` not to be trusted; minus infinity if it is exact."""
        return pareto_k(self.log_weights)

    @property
    def standard_error(self) -> float:
        """Of k, by the asymptotic variance (1 + k)^2 / M of a fit to M tail weights."""
        return float((1 + self.pareto_k) / np.sqrt(_tail_length(len(self.log_weights))))

    @property
    def limit(self) -> float:
        """Above this k so many draws do not tell what the weights' mean is: min(1 - 1 / log10(S), 0.7)."""
        return min(1.0 - 1.0 / np.log10(len(self.log_weights)), 0.7)

    @property
    def effective_draws(self) -> float:
        """(sum w)^2 / sum w^2: to how many draws of the posterior itself the weighted ones amount."""
        w = np.exp(self.log_weights - self.log_weights.max())
        return float(w.sum() ** 2 / (w**2).sum())

    @property
    def log_evidence(self) -> float:
        """Log of the mean weight: an estimate of log p(y), which the free energy bounds from below."""
        if not self.prior_is_proper:
            raise CavityError(NO_EVIDENCE)
        return float(np.logaddexp.reduce(self.log_weights) - np.log(len(self.log_weights)))


def importance_weights(
    algorithm: Algorithm, prior: Any, posterior: Any, chunks: Iterable[Mapping[str, Data]], num_draws: int, seed: int
) -> ImportanceWeights:
    """The weights of draws that all clients see; in double precision. Clients' rows may come in chunks."""
    if not isinstance(posterior, Distribution):
        raise UnsuitableError(
            f"importance weights need draws of theta, which a {type(posterior).__name__} does not give"
        )
    with jax.enable_x64(True):
        prior, posterior = jax.tree.map(jnp.asarray, ledger.to_host((prior, posterior)))
        draws = posterior.sample(jax.random.key(seed), (num_draws,))
        prior_is_proper = bool(prior.is_proper)
        log_weights = np.array(_log_ratios(prior, posterior, draws, prior_is_proper))
        for clients in chunks:
            for name, sent in log_likelihoods(algorithm, draws, clients).items():
                if np.isnan(sent).any():
                    raise CavityError(f"client {name!r}: the log likelihood of its rows is NaN at a posterior draw")
                log_weights += sent
    return ImportanceWeights(jax.tree.map(np.asarray, draws), log_weights, prior_is_proper)


def log_likelihoods(
    algorithm: Algorithm, draws: PyTree, clients: Mapping[str, Data]
) -> dict[str, Float[np.ndarray, " s"]]:
    """All that each client sends: for each draw one number, the sum over its rows."""
    algorithm, sent = numbers_as_leaves(algorithm), {}
    for bucket in buckets(clients, device_mesh()):
        at_once = max(1, MOST_AT_ONCE // bucket.data.weight.size)
        sums = np.asarray(_log_likelihoods(algorithm, draws, bucket.data, at_once))
        sent |= dict(zip(bucket.names, sums.T, strict=True))
    return sent


@eqx.filter_jit
def _log_likelihoods(algorithm: Algorithm, draws: PyTree, data: Data, at_once: int) -> Float[Array, "s clients"]:
    def one(theta: PyTree) -> Float[Array, " clients"]:
        return jax.vmap(lambda rows: algorithm.log_likelihood(theta, rows))(data)

    return jax.lax.map(one, draws, batch_size=at_once)


@eqx.filter_jit
def _log_ratios(prior: Any, posterior: Any, draws: PyTree, prior_is_proper: bool) -> Float[Array, " s"]:
    log_prior = prior.log_prob if prior_is_proper else prior.log_factor
    return jax.lax.map(lambda theta: log_prior(theta) - posterior.log_prob(theta), draws, batch_size=50)


def remark(weights: ImportanceWeights, posterior: Any) -> str:
    """What a reader of the posterior should know of its k, and do about it."""
    k = weights.pareto_k
    if k == -np.inf:
        return "the posterior is exact: all importance weights are equal"
    draws, effective = len(weights.log_weights), weights.effective_draws
    said = f"Pareto k = {k:.2f} +- {weights.standard_error:.2f}, {effective:.0f} of {draws} draws effective"
    if k < GOOD:
        return f"{said}: the approximation is good"
    if k < weights.limit:
        return f"{said}: the approximation is usable; intervals may be a little off"
    said = f"{said}: k is above {weights.limit:.2f}"
    if effective > MOST * draws:
        return f"{said}; means and sds are close, but the tails are heavier than the family's: trust no rare event"
    if isinstance(posterior, Gaussian) and not isinstance(posterior, FullGaussian):
        remedy = "give the model family=FullGaussian, which knows correlations"
    else:
        remedy = "write the model on a scale on which its posterior is nearer to a Gaussian, or give it a tighter prior"
    return f"{said}; do not trust the intervals: {remedy}"


def pareto_k(log_weights: Float[np.ndarray, " s"]) -> float:
    """The shape of a generalised Pareto distribution fitted to the largest min(S / 5, 3 sqrt(S)) weights.

    With ten rows' worth of a prior for k around 0.5, as PSIS has it. Minus infinity where all weights are equal;
    infinity where nearly all of the weight is that of a few draws.

    Example:
        >>> round(pareto_k(-0.4 * np.log(1 - np.arange(0.5, 4000) / 4000)), 1)
        0.4
    """
    ordered = np.sort(log_weights - np.max(log_weights))
    if not ordered[0] < -ALIKE:
        return -np.inf
    cutoff = max(ordered[-_tail_length(len(ordered)) - 1], np.log(np.finfo(float).tiny))
    excess = np.exp(ordered[ordered > cutoff]) - np.exp(cutoff)
    if len(excess) < FEWEST_IN_TAIL:
        return np.inf
    shape = _fitted_shape(excess)
    return float((len(excess) * shape + 10 * 0.5) / (len(excess) + 10))


def _tail_length(num_draws: int) -> int:
    return int(np.ceil(min(num_draws / 5, 3 * np.sqrt(num_draws))))


def _fitted_shape(excess: Float[np.ndarray, " t"]) -> float:
    """The estimate of Zhang and Stephens (2009) for k of p(x) = (1 + k x / sigma)^(-1 / k - 1) / sigma; x ascending.

    With b = -k / sigma the profile likelihood is maximal at k = mean log(1 - b x); b is averaged over a grid.
    """
    size = len(excess)
    num_points = 30 + int(np.sqrt(size))
    quartile = excess[int(size / 4 + 0.5) - 1]
    b = 1 / excess[-1] + (1 - np.sqrt(num_points / (np.arange(num_points) + 0.5))) / (3 * quartile)
    k = np.log1p(-b[:, None] * excess).mean(axis=1)
    log_profile = size * (np.log(-b / k) - k - 1)
    posterior = np.exp(log_profile - log_profile.max())
    mean_b = b @ posterior / posterior.sum()
    return float(np.log1p(-mean_b * excess).mean())
