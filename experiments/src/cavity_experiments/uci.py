"""UCI classification as in PVI's section 5.1 and appendix E.1: data, splits among ten clients, and scores.

Of the rows that are not for training, half are for validation: besides the last round, a run states the test numbers
of the round with the best validation log likelihood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cavity.core import PredictiveModel
from cavity.datasets import partition
from cavity.datasets.partition import Partition
from cavity.evaluation import metrics
from cavity_experiments import sources
from cavity_experiments.runner import Journal

NUM_CLIENTS, TRAINING_SHARE = 10, 0.8
NUM_ROWS = {"adult": 48_842, "bank": 45_211, "credit": 653}
# beta and kappa of equations (75) and (76)
SPLITS = {
    "adult": {"A": (0.0, 0.0), "B": (0.7, -3.0)},
    "bank": {"A": (0.0, 0.0), "B": (0.7, -3.0)},
    "credit": {"A": (0.0, 0.0), "B": (0.3, -0.7)},
}
SOURCES = {"adult": sources.adult, "bank": sources.bank, "credit": sources.credit}

Labelled = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Features and labels for training, and two held-out parts."""

    columns: tuple[str, ...]
    train: Labelled
    validation: Labelled
    test: Labelled


def rows(name: str, seed: int) -> Rows:
    """A random four fifths to train on, a tenth each to validate and to test; scaled by the training part."""
    number = NUM_ROWS[name]
    order = np.random.default_rng([seed, 0]).permutation(number)
    cuts = [int(TRAINING_SHARE * number), int((1 + TRAINING_SHARE) / 2 * number)]
    train, validation, test = np.split(order, cuts)
    table = SOURCES[name](train)
    labels = 1 - table.y if name == "credit" else table.y  # in table 2 a refusal is positive
    parts = [(table.x[part], labels[part].astype(float)) for part in (train, validation, test)]
    return Rows(table.columns, *parts)


def parts(name: str, split: str, labels: np.ndarray, seed: int) -> Partition:
    """Five small clients, then five large ones (table 2)."""
    number = 1 + list(SPLITS[name]).index(split)
    return partition.size_and_label_skew(
        np.random.default_rng([seed, number]), labels, NUM_CLIENTS, *SPLITS[name][split]
    )


def together(batch: Labelled, parts: Partition) -> Labelled:
    """The rows of all clients, in one place: a split leaves fewer rows than there are clients over."""
    x, y = batch
    everyone = np.concatenate(list(parts.values()))
    return x[everyone], y[everyone]


def describe(journal: Journal, labels: np.ndarray, parts: Partition, **who: Any) -> None:
    """Sizes and label shares, small clients and large, as in the paper's table 2."""
    each = [labels[part] for part in parts.values()]
    small, large = each[: NUM_CLIENTS // 2], each[NUM_CLIENTS // 2 :]
    journal.row(
        "splits",
        **who,
        small_rows=len(small[0]),
        small_positive=float(np.mean(small)),
        large_rows=len(large[0]),
        large_positive=float(np.mean(large)),
    )


def scores(model: PredictiveModel, rows: Rows) -> dict[str, Callable[[Any], float]]:
    """Log likelihood (nats per row) and error of the held-out parts, for the history."""

    def score(measure: Callable, part: Labelled) -> Callable[[Any], float]:
        x, y = part

        def of(posterior: Any) -> float:
            q = jax.tree.map(jnp.asarray, posterior)
            return float(measure(model.predict(q, x, key=jax.random.key(0), num_draws=None).mean, y.astype(int)))

        return of

    return {
        "validation_log_likelihood": score(metrics.log_likelihood, rows.validation),
        "test_log_likelihood": score(metrics.log_likelihood, rows.test),
        "test_error": score(metrics.error_rate, rows.test),
    }


def scored(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The test numbers of the last round, and of the round that validation chooses."""
    last, chosen = history[-1], max(history, key=lambda record: record["validation_log_likelihood"])
    return {
        "test_log_likelihood": last["test_log_likelihood"],
        "test_error": last["test_error"],
        "chosen_round": chosen["round"],
        "chosen_test_log_likelihood": chosen["test_log_likelihood"],
        "chosen_test_error": chosen["test_error"],
    }
