"""Personalised Bayesian networks on MNIST, silos with mostly one digit each (SFVI, section 4.1, table 1).

Silos are of equal size, and nine tenths of a silo are one digit, in its training part and in its test part alike; the
other nine digits share the rest evenly. Equal sizes with even shares leave over what the rarest digit has too little
of: with ten silos 5,418 of 6,000 training images per silo are used.

Hierarchical and FedPop networks are fitted by SFVI and by SFVI-Avg. Beside them stand, with the FedPop network, silos
alone and all images pooled at one silo, for as many steps as SFVI takes. A network is scored on each silo's own test
part; means and standard deviations are over silos.

Settings were chosen on the last 10,000 training images, `validation_part`; the test images are looked at with the final
settings only, and what is judged is the last exchange.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from cavity.algorithms.sfvi import SFVI, mean_field
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.data import sources
from cavity.data.partition import Partition, select
from cavity.experiments.runner import Journal, Size
from cavity.models.hierarchical_bnn import SiloNetwork, fedpop, hierarchical_bnn, predict_silo
from cavity.results import Fit, run

Images = tuple[np.ndarray, np.ndarray]

MAIN_SHARE, HIDDEN, NUM_DIGITS = 0.9, 64, 10
EXCHANGES, ROUNDS, LOCAL_STEPS = 10_000, 20, 500
STEP_SIZE, SCALES_FASTER, BATCH_SIZE, LOCAL_SCALE = 2e-3, 4.0, 64, 0.1
NUM_DRAWS = 20
PAPER = {
    10: {("hierarchical", "SFVI-Avg"): 96.6, ("hierarchical", "SFVI"): 97.5,
         ("FedPop", "SFVI-Avg"): 97.0, ("FedPop", "SFVI"): 97.5},
    50: {("hierarchical", "SFVI-Avg"): 93.6, ("hierarchical", "SFVI"): 96.0,
         ("FedPop", "SFVI-Avg"): 94.2, ("FedPop", "SFVI"): 96.2},
}  # fmt: skip
MARGIN = 0.5
MODELS = {"hierarchical": hierarchical_bnn, "FedPop": fedpop}


def skewed(rng: np.random.Generator, labels: np.ndarray, digits: np.ndarray) -> Partition:
    """Silos of one size, as large as can be: nine tenths of silo j show `digits[j]`, the rest is shared evenly."""
    counts = np.bincount(labels, minlength=NUM_DIGITS)
    mains = np.bincount(digits, minlength=NUM_DIGITS)

    def taken(of_main: int, of_other: int) -> np.ndarray:
        return mains * of_main + (len(digits) - mains) * of_other

    # a silo is 81 parts its digit to 1 part each of nine others
    of_other = next(n for n in range(len(labels), 0, -1) if np.all(taken(81 * n, n) <= counts))
    of_main = 81 * of_other
    pools = {digit: list(rng.permutation(np.flatnonzero(labels == digit))) for digit in range(NUM_DIGITS)}
    parts = {}
    for j, main in enumerate(digits):
        wanted = {digit: of_main if digit == main else of_other for digit in range(NUM_DIGITS)}
        rows = [pools[digit].pop() for digit, number in wanted.items() for _ in range(number)]
        parts[f"silo-{j:02d}"] = np.sort(np.array(rows))
    return parts


def silos(
    seed: int, num_silos: int, train: Images, test: Images
) -> tuple[dict[str, Images], dict[str, Images]]:
    """The training and test parts of every silo; which digit is whose depends on the seed."""
    rng = np.random.default_rng(seed)
    digits = rng.permutation(np.arange(num_silos) % NUM_DIGITS)
    parts = [skewed(rng, images[1], digits) for images in (train, test)]
    return select(train, parts[0]), select(test, parts[1])


def validation_part(images: Images) -> tuple[Images, Images]:
    """Training images, and the last 10,000 of them to choose settings on."""
    x, y = images
    return (x[:-10_000], y[:-10_000]), (x[-10_000:], y[-10_000:])


@cache
def faster_scales(factor: float) -> Any:
    """Adam whose steps are larger for the logs of standard deviations."""

    def by_kind(updates: PyTree, parameters: PyTree) -> PyTree:
        def scaled(path: Any, leaf: Any) -> Any:
            return factor * leaf if getattr(path[-1], "name", "") == "log_scale" else leaf

        return jax.tree_util.tree_map_with_path(scaled, updates)

    def optimiser(step_size: Any) -> optax.GradientTransformation:
        return optax.chain(optax.scale_by_adam(), optax.stateless(by_kind), optax.scale(-step_size))

    return optimiser


def options(batch_size: int = BATCH_SIZE, **others: Any) -> dict[str, Any]:
    """What all fits have in common."""
    return {
        "optimiser": faster_scales(SCALES_FASTER), "step_size": STEP_SIZE, "batch_size": batch_size,
        "family": mean_field, "coupled": False, "dense": False, "num_samples": 1, "local_scale": LOCAL_SCALE,
        "dtype": jnp.float32,
    } | others  # fmt: skip


def fit_sfvi(
    model: SiloNetwork, clients: Mapping[str, Images], exchanges: int, seed: int, per_block: int = 1, **others: Any
) -> Fit:
    """So many exchanges of SFVI."""
    method = SFVI(model, num_steps=exchanges, **options(**others))
    return run(method, clients, rounds=exchanges, tolerance=0.0, seed=seed, rounds_per_block=per_block)


def fit_average(
    model: SiloNetwork, clients: Mapping[str, Images], rounds: int, local_steps: int, seed: int, **others: Any
) -> Fit:
    """Rounds of SFVI-Avg. A silo is one unit, so N / N_j is the number of silos."""
    method = SFVIAvg(model, total=len(clients), num_rounds=rounds, local_steps=local_steps, **options(**others))
    return run(method, clients, rounds=rounds, tolerance=0.0, seed=seed)


def accuracies(model: SiloNetwork, fit: Fit, test: Mapping[str, Images]) -> np.ndarray:
    """The percentage of right answers on each test part, by the silo of that name (or the only one there is)."""
    states, right = fit.client_states or {}, []
    for name, (x, y) in test.items():
        state = states[name] if name in states else next(iter(states.values()))
        kept = state.local if state.pending is None else state.pending.local
        shares = predict_silo(model, fit.posterior, kept.q, x, jax.random.key(0), NUM_DRAWS)
        right.append(100 * np.mean(np.argmax(np.asarray(shares), axis=1) == y))
    return np.array(right)
