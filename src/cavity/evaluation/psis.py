"""Importance weights of posterior draws, and how heavy their tail is. `verdict` assesses a posterior by such weights.

    w_s = prior(theta_s) * prod_k p(y_k | theta_s) / q(theta_s),     theta_s ~ q

A client sends one number per draw, the log likelihood of all its rows; the server has everything else. If q were the
posterior, all weights would equal the evidence p(y). The more they vary, the less q shows about the posterior. The
shape k of a generalised Pareto distribution fitted to the largest weights measures this (PSIS: Vehtari, Simpson,
Gelman, Yao and Gabry, 2024; as a check of variational inference: Yao, Vehtari, Simpson and Gelman, 2018): moments of
the weights are finite up to order 1 / k. Under a generalised loss the likelihood is exp(-loss), to the power that the
algorithm gives it, and p(y) is not the evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity import ledger
from cavity.core import Algorithm, Data, Distribution
from cavity.errors import CavityError, UnsuitableError
from cavity.fit.fit import Fit
from cavity.simulation.drive import numbers_as_leaves
from cavity.simulation.stacks import buckets, device_mesh

NO_EVIDENCE = "there is no evidence under an improper prior, whose constant is arbitrary; give a proper prior"
FEWEST_DRAWS = 25  # so that a Pareto distribution can be fitted to the largest fifth
AFFORDABLE = 2_500_000  # densities times parameters for which a printed summary computes the verdict: seconds
ALIKE = 1e-6  # nats: weights that differ by less are equal except for rounding
MOST_AT_ONCE = 1_000_000  # rows times draws that are evaluated together, which bounds the memory
FEWEST_IN_TAIL = 5


@dataclass(frozen=True)
class ImportanceWeights:
    """Draws of a posterior and their log weights.

    Attributes:
        draws: of theta, with the draws as leading axis.
        log_weights: log w_s in nats, not normalised.
        prior_is_proper: if False, the weights are known up to a constant factor, and there is no evidence.
    """

    draws: PyTree
    log_weights: Float[np.ndarray, " s"]
    prior_is_proper: bool = True

    @property
    def pareto_k(self) -> float:
        """The shape k. Above `limit` weighted averages are unreliable; minus infinity if all weights are equal."""
        return pareto_k(self.log_weights)

    @property
    def standard_error(self) -> float:
        """The standard error of k, by its asymptotic variance."""
        return standard_error(self.pareto_k, len(self.log_weights))

    @property
    def limit(self) -> float:
        """The k above which S draws do not determine the mean of the weights: min(1 - 1 / log10(S), 0.7)."""
        return min(1.0 - 1.0 / np.log10(len(self.log_weights)), 0.7)

    @property
    def effective_draws(self) -> float:
        """(sum w)^2 / sum w^2: the number of draws of the posterior itself with the same information."""
        w = np.exp(self.log_weights - self.log_weights.max())
        return float(w.sum() ** 2 / (w**2).sum())

    @property
    def log_evidence(self) -> float:
        """Log of the mean weight: an estimate of log p(y), of which the free energy is a lower bound."""
        if not self.prior_is_proper:
            raise CavityError(NO_EVIDENCE)
        return float(np.logaddexp.reduce(self.log_weights) - np.log(len(self.log_weights)))


def drawable(posterior: PyTree) -> Distribution:
    """A posterior that gives draws of theta.

    Args:
        posterior: of any algorithm.

    Returns:
        The posterior.

    Raises:
        UnsuitableError: if it gives none.
    """
    distribution = distribution_or_none(posterior)
    if distribution is None:
        raise UnsuitableError(
            f"importance weights need draws of theta, which a {type(posterior).__name__} does not give"
        )
    return distribution


def distribution_or_none(posterior: PyTree) -> Distribution | None:
    """The posterior, where it is a distribution of theta; None where it is another record, such as of a function."""
    return posterior if isinstance(posterior, Distribution) else None


def weights_of(fit: Fit, num_draws: int, seed: int) -> ImportanceWeights:
    """Importance weights of draws of a fit.

    Args:
        fit: the fit, with its clients' data.
        num_draws: number of draws.
        seed: random seed of the draws.

    Returns:
        The draws and their weights.
    """
    if num_draws < FEWEST_DRAWS:
        raise CavityError(f"num_draws must be at least {FEWEST_DRAWS}, not {num_draws}")
    chunks = fit.population("compute importance weights").chunks()
    return importance_weights(fit.algorithm, fit.server.prior, fit.posterior, chunks, num_draws, seed)


def importance_weights(
    algorithm: Algorithm,
    prior: PyTree,
    posterior: PyTree,
    chunks: Iterable[Mapping[str, Data]],
    num_draws: int,
    seed: int,
) -> ImportanceWeights:
    """The weights of draws that all clients get; in double precision.

    Args:
        algorithm: the algorithm, with its model.
        prior: at the server.
        posterior: what is drawn from.
        chunks: the rows of all clients, which may come in groups.
        num_draws: number of draws.
        seed: random seed of the draws.

    Returns:
        The draws and their weights.
    """
    q = drawable(posterior)
    with jax.enable_x64(True):
        prior, q = jax.tree.map(jnp.asarray, ledger.to_host((prior, q)))
        draws = q.sample(jax.random.key(seed), (num_draws,))
        log_p, nan_at = log_joint(algorithm, prior, draws, chunks, near=q)
        if nan_at:
            raise CavityError(f"client {nan_at!r}: the log likelihood of its rows is NaN at a posterior draw")
        log_weights = log_p - np.asarray(_log_probs(q, draws, True))
        return ImportanceWeights(jax.tree.map(np.asarray, draws), log_weights, bool(prior.is_proper))


def log_joint(
    algorithm: Algorithm,
    prior: Distribution,
    draws: PyTree,
    chunks: Iterable[Mapping[str, Data]],
    near: Distribution | None = None,
) -> tuple[Float[np.ndarray, " s"], str]:
    """Log prior + log likelihood of all rows at each draw. Call it in double precision.

    Args:
        algorithm: the algorithm, with its model.
        prior: at the server; an improper one is used without its constant.
        draws: of theta, with the draws as leading axis.
        chunks: the rows of all clients, which may come in groups.
        near: the posterior that most of the draws are near to.

    Returns:
        The sums, and the name of a client whose log likelihood is NaN somewhere, or "".
    """
    total, nan_at = np.array(_log_probs(prior, draws, bool(prior.is_proper))), ""
    for clients in chunks:
        for name, sent in log_likelihoods(algorithm, draws, clients, near).items():
            nan_at = nan_at or (name if np.isnan(sent).any() else "")
            total += sent
    return total, nan_at


def log_likelihoods(
    algorithm: Algorithm, draws: PyTree, clients: Mapping[str, Data], near: Distribution | None = None
) -> dict[str, Float[np.ndarray, " s"]]:
    """What each client sends: for each draw one number, the sum over its rows.

    Args:
        algorithm: the algorithm, with its model.
        draws: of theta, with the draws as leading axis.
        clients: prepared rows by client.
        near: the posterior that most of the draws are near to, which may save work.

    Returns:
        Client -> one number per draw.
    """
    algorithm, sent = numbers_as_leaves(algorithm), {}
    for bucket in buckets(clients, device_mesh()):
        at_once = max(1, int(MOST_AT_ONCE / (bucket.data.weight.size * algorithm.model.row_cost)))
        sums = np.asarray(_log_likelihoods(algorithm, draws, bucket.data, at_once, near))
        sent |= dict(zip(bucket.names, sums.T, strict=True))
    return sent


@eqx.filter_jit
def _log_likelihoods(
    algorithm: Algorithm, draws: PyTree, data: Data, at_once: int, near: Distribution | None
) -> Float[Array, "s clients"]:
    if near is not None:
        data = jax.vmap(lambda rows: algorithm.model.rows_near(near, rows))(data)

    def one(theta: PyTree) -> Float[Array, " clients"]:
        return jax.vmap(lambda rows: algorithm.log_likelihood(theta, rows))(data)

    return jax.lax.map(one, draws, batch_size=at_once)


@eqx.filter_jit
def _log_probs(density: PyTree, draws: PyTree, is_proper: bool) -> Float[Array, " s"]:
    return jax.lax.map(density.log_prob if is_proper else density.log_factor, draws, batch_size=50)


def standard_error(k: float, num_draws: int) -> float:
    """The standard error of k, by the asymptotic variance (1 + k)^2 / M of a fit to M tail weights.

    Args:
        k: the shape.
        num_draws: number of draws, from which M follows.

    Returns:
        The standard error.
    """
    return float((1 + k) / np.sqrt(_tail_length(num_draws)))


def pareto_k(log_weights: Float[np.ndarray, " s"]) -> float:
    """The shape of a generalised Pareto distribution fitted to the largest min(S / 5, 3 sqrt(S)) weights.

    As in PSIS, a prior for k around 0.5 has the weight of ten draws.

    Args:
        log_weights: in nats, not normalised.

    Returns:
        k; minus infinity where all weights are equal, infinity where a few draws have nearly all of the weight.

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
