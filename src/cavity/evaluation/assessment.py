"""Weighted draws for the verdict on an approximation: one number per client and draw, in batches up to a budget."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from cavity import ledger
from cavity.core import Algorithm, Data, Distribution
from cavity.distributions.full import FullGaussian
from cavity.distributions.gaussian import Gaussian, gaussian_or_none
from cavity.evaluation import proposals, psis
from cavity.evaluation.verdict import MANY_PARAMETERS, Verdict, not_assessed, verdict_from_weights

BATCH = 4000  # draws that are evaluated together
SMALL_BATCH = 1000  # of densities that are integrals
MOST_DRAWS = 32_000  # the budget
MOST_WORK = psis.AFFORDABLE  # densities times parameters, on the average over as many batches as the budget has
MOST_PARAMETERS = 500


class Approximation(abc.ABC):
    """A fitted posterior that is assessed. Use it in double precision."""

    posterior: Distribution  # in the model's own units
    reaches_beyond: bool  # whether draws come from a proposal with heavier tails

    @property
    @abc.abstractmethod
    def fitted(self) -> Distribution:
        """The posterior in the units of the summary's coefficients."""

    @property
    def remedy(self) -> str:
        """What to do where the approximation is not good enough."""
        return "write the model on a scale on which its posterior is nearer to a Gaussian, or give it a tighter prior"

    @abc.abstractmethod
    def draw(self, seed: int, batch: int, size: int = BATCH) -> proposals.Draws:
        """A batch of so many draws with their densities, in the model's own units."""

    @abc.abstractmethod
    def in_units(self, theta: PyTree) -> Float[np.ndarray, "s d"]:
        """Draws as rows, in the units of the summary's coefficients."""


@dataclass(frozen=True)
class GaussianApproximation(Approximation):
    """A Gaussian; draws come from a mixture around it that reaches beyond it.

    Attributes:
        posterior: in the model's own units.
        units: an affine map of Gaussians to the units of the summary's coefficients.
    """

    posterior: Gaussian
    units: Callable[[Gaussian], Gaussian] = lambda q: q
    reaches_beyond = True

    @cached_property
    def fitted(self) -> Gaussian:
        return self.units(self.posterior)

    @property
    def remedy(self) -> str:
        if self.fitted.has_correlations:
            return super().remedy
        return 'give the model covariance="full", which has correlations'

    def draw(self, seed: int, batch: int, size: int = BATCH) -> proposals.Draws:
        return proposals.draw(self.posterior, size, seed, batch)

    def in_units(self, theta: PyTree) -> Float[np.ndarray, "s d"]:
        if self.fitted is self.posterior:
            return np.asarray(theta)
        origin, matrix = self._map
        return origin + theta @ matrix

    @cached_property
    def _map(self) -> tuple[np.ndarray, np.ndarray]:
        """The affine map on draws, found from its effect on means."""
        size = self.posterior.dimension
        means = [np.zeros(size), *np.eye(size)]
        origin, *columns = (np.asarray(self.units(FullGaussian(mean, np.eye(size))).mean) for mean in means)
        return origin, np.stack(columns) - origin


@dataclass(frozen=True)
class OtherApproximation(Approximation):
    """A member of another family, for which no wider proposal is known.

    Attributes:
        posterior: the distribution.
    """

    posterior: Distribution
    reaches_beyond = False

    @property
    def fitted(self) -> Distribution:
        return self.posterior

    def draw(self, seed: int, batch: int, size: int = BATCH) -> proposals.Draws:
        theta = self.posterior.sample(jax.random.fold_in(jax.random.key(seed), batch), (size,))
        log_q = np.asarray(jax.jit(jax.vmap(self.posterior.log_prob))(theta))
        return proposals.Draws(theta, log_q, log_q, np.full(size, True))

    def in_units(self, theta: PyTree) -> Float[np.ndarray, "s d"]:
        return np.asarray(jax.vmap(lambda one: ravel_pytree(one)[0])(theta))


def approximation(posterior: PyTree, units: Callable[[Gaussian], Gaussian] = lambda q: q) -> Approximation:
    """A posterior as an approximation that can be assessed.

    Args:
        posterior: in the model's own units.
        units: from a Gaussian of the model's parameters to that of the summary's coefficients, an affine map.

    Returns:
        The approximation.

    Raises:
        UnsuitableError: where the posterior gives no draws of theta.
    """
    q = psis.drawable(posterior)
    with jax.enable_x64(True):
        q = jax.tree.map(jnp.asarray, ledger.to_host(q))
    gaussian = gaussian_or_none(q)
    return OtherApproximation(q) if gaussian is None else GaussianApproximation(gaussian, units)


def assess(
    algorithm: Algorithm,
    prior: Distribution,
    approximation: Approximation,
    chunks: Callable[[], Iterable[Mapping[str, Data]]],
    *,
    names: tuple[str, ...],
    num_rows: float,
    seed: int = 0,
) -> Verdict:
    """The verdict on a posterior, from one number per client and draw.

    Args:
        algorithm: the algorithm, with its model.
        prior: at the server.
        approximation: what is assessed.
        chunks: all clients' rows, again at every call.
        names: of the parameters.
        num_rows: of all clients; infinite if not known, and then there is one batch of draws.
        seed: random seed of the draws.

    Returns:
        The verdict.

    Raises:
        UnsuitableError: where the algorithm approximates no density of what all clients share.
    """
    size = len(names)
    if size > MOST_PARAMETERS:
        return not_assessed(
            f"{size} parameters; importance weights are of use for at most {MOST_PARAMETERS}, and mostly for fewer "
            f"than {MANY_PARAMETERS}. Compare predictions of held-out rows instead (cavity.choose)"
        )
    work = max(num_rows * size * algorithm.model.row_cost, 1)
    batch = SMALL_BATCH if algorithm.model.row_cost > 1 else BATCH
    budget = int(np.clip(MOST_WORK * batch / work, batch, MOST_DRAWS)) // batch
    theta, log_p, log_q, of_q, batches = [], [], [], [], 0
    with jax.enable_x64(True):
        prior = jax.tree.map(jnp.asarray, ledger.to_host(prior))
        while True:
            for _ in range(min(max(batches, 1), budget - batches)):  # twice as many as before
                draws = approximation.draw(seed, batches, batch)
                batches += 1
                joint, _ = psis.log_joint(algorithm, prior, draws.theta, chunks(), near=approximation.posterior)
                theta.append(approximation.in_units(draws.theta))
                log_p.append(joint - draws.log_proposal)
                log_q.append(draws.log_q - draws.log_proposal)
                of_q.append(draws.of_q)
            all_draws, p, q, is_q = (np.concatenate(each) for each in (theta, log_p, log_q, of_q))
            found, settled = verdict_from_weights(all_draws, p, q, is_q, names, approximation)
            if settled or batches >= budget:
                return found
