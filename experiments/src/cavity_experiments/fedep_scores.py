"""How FedEP's experiments evaluate a posterior: accuracy and calibration, of its mean and averaged over draws.

With few clients per round, each with few labels, accuracy varies by several points from round to round. So a
running average over the last evaluations is reported, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core.messages import ServerState
from cavity.distributions.point import PointMass
from cavity.evaluation import metrics
from cavity.models.neural.network import NetworkModel

NUM_DRAWS = 10  # the paper's
BATCH = 500  # images at a time
MARGINALISED = "marginalised "

Images = tuple[np.ndarray, np.ndarray]


def probabilities(model: NetworkModel, posterior: Any, x: np.ndarray, num_draws: int | None = None) -> np.ndarray:
    """Of the classes of images [n, ...], by the posterior's mean, or averaged over draws; shape [n, k]."""
    q = jax.tree.map(jnp.asarray, posterior)
    theta = q.mean[None] if num_draws is None else q.sample(jax.random.key(0), (num_draws,))
    dtype = jnp.result_type(*jax.tree.leaves(model.prior))
    batches = np.concatenate([x, np.repeat(x[-1:], -len(x) % BATCH, axis=0)]).reshape(-1, BATCH, *x.shape[1:])
    return np.asarray(_mean_over_draws(model, theta.astype(dtype), jnp.asarray(batches)))[: len(x)]


@eqx.filter_jit
def _mean_over_draws(model: NetworkModel, theta: Float[Array, "s d"], batches: Array) -> Float[Array, "n k"]:
    def one(x: Array) -> Array:
        return jnp.mean(jax.lax.map(lambda draw: model.likelihood.mean(model.forward(draw, x)), theta), axis=0)

    p = jax.lax.map(one, batches)
    return p.reshape(-1, p.shape[-1])


def scores(p: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy and calibration errors in per cent, log likelihood in nats, Brier score; 15 bins."""
    return {
        "accuracy": 100 * (1 - float(metrics.error_rate(p, labels))),
        "confidence": 100 * float(np.mean(np.max(p, axis=1))),
        "log likelihood": float(metrics.log_likelihood(p, labels)),
        "brier": float(metrics.brier(p, labels)),
        "ece": 100 * float(metrics.expected_calibration_error(p, labels)),
        "ece equal count": 100 * float(metrics.expected_calibration_error(p, labels, equal_count=True)),
    }


@dataclass
class Looks:
    """An observer that evaluates the posterior every few rounds, with more scores in the last ones.

    Attributes:
        model: the network.
        validation: images that settings were chosen on.
        test: images that nothing was chosen on.
        every: rounds between two evaluations.
        closely_from: the first round from which draws of the posterior and validation images are evaluated too.
        say: called with a line for each evaluation.
        records: what was seen: "round", and scores of test images by name; averaged over draws with "marginalised "
            before it, of validation images with "validation ".
    """

    model: NetworkModel
    validation: Images
    test: Images
    every: int
    closely_from: int
    say: Callable[[dict[str, Any]], None] = lambda record: None
    records: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, record: Mapping[str, Any], server: ServerState) -> None:
        if record["round"] % self.every:
            return
        seen: dict[str, Any] = {"round": record["round"], **self._scores(server.posterior, self.test)}
        if record["round"] >= self.closely_from:
            seen |= _named("validation ", self._scores(server.posterior, self.validation))
            if not isinstance(server.posterior, PointMass):
                seen |= _named(MARGINALISED, self._scores(server.posterior, self.test, NUM_DRAWS))
        self.records.append(seen)
        self.say(seen)

    def _scores(self, posterior: Any, images: Images, num_draws: int | None = None) -> dict[str, float]:
        x, labels = images
        return scores(probabilities(self.model, posterior, x, num_draws), labels)


def _named(before: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{before}{name}": value for name, value in values.items()}


def averaged(records: Sequence[Mapping[str, Any]], window: int) -> dict[str, float]:
    """Each score, as a mean over the last `window` evaluations."""
    last = records[-window:]
    return {name: float(np.mean([record[name] for record in last])) for name in last[-1] if name != "round"}


def rounds_to(records: Sequence[Mapping[str, Any]], threshold: float, window: int) -> int | None:
    """The first round at which the accuracy, a mean over `window` evaluations, is at least `threshold` per cent.

    Example:
        >>> looks = [{"round": r, "accuracy": a} for r, a in ((5, 60), (10, 82), (15, 80), (20, 82))]
        >>> rounds_to(looks, 80.0, window=2)
        15
    """
    accuracies = np.array([record["accuracy"] for record in records])
    for end in range(window, len(records) + 1):
        if np.mean(accuracies[end - window : end]) >= threshold:
            return int(records[end - 1]["round"])
    return None
