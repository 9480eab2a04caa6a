"""What the experiments with a Bayesian perceptron on images share: how it is trained, and how it is scored.

Clients work one after the other. The first solve starts with small variances, from weights that are the same for all
clients; later ones start at the posterior. Scales have a larger learning rate than means: a factor whose scales lag
behind is more certain than its data allow, and only its own client can correct it, so it slows down all others. Steps
decrease to zero by the end of a solve, because noise in a factor makes cavities improper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from cavity.distributions.mean_scale import MeanScale
from cavity.evaluation import metrics
from cavity.fit.run import Fit, run
from cavity.models import MLP
from cavity.schedules import Sequential
from cavity.solvers import Gradient
from cavity.solvers.start import Tight
from cavity_experiments.runner import Journal

STEP_SIZE, SCALES_FASTER, BATCH_SIZE = 3e-3, 4.0, 256
PRIOR_SCALE, TIGHT, JITTER = 0.3, 0.03, 0.1
NUM_DRAWS = 20

Images = tuple[np.ndarray, np.ndarray]


@cache
def annealed(num_steps: int) -> Callable[[Any], optax.GradientTransformation]:
    """Adam whose steps decrease to zero by the end of a solve, and are larger for the logs of standard deviations."""

    def optimiser(step_size: Any) -> optax.GradientTransformation:
        def adam(faster: float) -> optax.GradientTransformation:
            return optax.adam(optax.cosine_decay_schedule(faster * step_size, num_steps))

        return optax.multi_transform({"mean": adam(1.0), "scale": adam(SCALES_FASTER)}, _labels)

    return optimiser


def _labels(coordinates: MeanScale) -> PyTree:
    return eqx.tree_at(lambda q: (q.centre, q.log_scale), coordinates, ("mean", "scale"))


def perceptron_solver(clients: Mapping[str, Images], epochs: int, step_size: float = STEP_SIZE) -> Gradient:
    """A solver with this number of epochs over each client's rows per visit."""
    rows_per_client = min(len(y) for _, y in clients.values())
    num_steps = epochs * rows_per_client // BATCH_SIZE
    start = Tight(TIGHT, JITTER, first_only=True)
    return Gradient(annealed(num_steps), step_size, num_steps, batch_size=BATCH_SIZE, start=start)


def train(
    journal: Journal,
    label: str,
    algorithm: Any,
    clients: Mapping[str, Images],
    passes: int,
    seed: int,
    scores: Mapping[str, Callable[[Any], float]],
) -> Fit:
    """Sequential passes over the clients; a line shows the first score of each pass."""
    shown = next(iter(scores))

    def observe(record: dict[str, Any], server: Any) -> None:
        done, seconds = record["round"], record["seconds"]
        left = seconds / done * (passes - done)
        score = f"{shown.replace('_', ' ')} {100 * record[shown]:.2f} %"
        journal.say(f"{label}: pass {done} of {passes}, {score}, {seconds:.0f} s, {left:.0f} s left")

    return run(
        algorithm,
        clients,
        schedule=Sequential(),
        rounds=passes,
        tolerance=0.0,
        seed=seed,
        metrics=scores,
        observers=[observe],
    )


def error_rate(model: MLP, images: Images) -> Callable[[Any], float]:
    """The share of wrong classes among some images, as a function of a posterior."""
    return _score(model, images, metrics.error_rate)


def log_likelihood(model: MLP, images: Images) -> Callable[[Any], float]:
    """The mean log probability of the right class, as a function of a posterior."""
    return _score(model, images, metrics.log_likelihood)


def _score(model: MLP, images: Images, measure: Callable) -> Callable[[Any], float]:
    x, y = images

    def of(posterior: Any) -> float:
        q = jax.tree.map(jnp.asarray, posterior)
        prediction = model.predict(q, x, key=jax.random.key(0), num_draws=NUM_DRAWS)
        return float(measure(prediction.mean, y))

    return of
