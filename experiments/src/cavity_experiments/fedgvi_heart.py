"""Heart disease at four hospitals, a tenth of the labels of one are wrong: how well are the others predicted?

Each hospital in turn has the wrong labels. Half of the patients of every hospital are training data; the other half of
the other three hospitals, with correct labels, are predicted. PVI and FedGVI see the same rows; beta is chosen by
cross-validation at the hospitals. No threshold is set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cavity import losses
from cavity.algorithms import PVI, FedGVI
from cavity.datasets import partition
from cavity.datasets.contamination import flip_uniformly
from cavity.evaluation import metrics
from cavity.evaluation.selection import choose
from cavity.fit.run import run
from cavity.models import logistic_regression
from cavity_experiments import sources
from cavity_experiments.runner import Journal, Size

# measured at all four hospitals; patients for whom one is missing are left out
COLUMNS = ("age", "sex", "cp", "trestbps", "restecg", "thalach", "exang", "oldpeak")
WRONG = 0.1
BETAS = (0.02, 0.1, 0.2, 0.4, 0.7)


def fedgvi_heart(journal: Journal, size: Size, seed: int) -> None:
    """Each hospital in turn has the wrong labels, on several splits."""
    num_splits = {Size.QUICK: 1, Size.DEFAULT: 10, Size.FULL: 50}[size]
    table = sources.heart_disease()
    x = table.x[:, [table.columns.index(column) for column in COLUMNS]]
    complete = np.isfinite(x).all(1)
    x, y, hospital = x[complete], table.y[complete], table.hospital[complete]
    journal.settings(
        data=f"{len(y)} of {len(table.y)} patients, those complete in {', '.join(COLUMNS)}",
        columns="standardised by the training rows of all hospitals",
        contamination=f"{WRONG:.0%} of the training labels of one hospital flipped",
        splits=f"{num_splits}, half to train",
        methods=f"logistic regression, prior sd 2.5; PVI, and FedGVI with the beta loss, beta from {BETAS} by 5 folds",
    )
    raw = x
    model = logistic_regression(list(COLUMNS))

    def robust(beta: float) -> FedGVI:
        return FedGVI(model, losses.Beta(beta))

    scores: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for index in range(num_splits):
        for careless in np.unique(hospital):
            rng = np.random.default_rng((seed, 57, index))
            is_train = _half(rng, hospital)
            x = (raw - raw[is_train].mean(0)) / raw[is_train].std(0)
            clients = {
                str(name): (x[is_train & (hospital == name)], y[is_train & (hospital == name)])
                for name in np.unique(hospital)
            }
            rows, labels = clients[str(careless)]
            bad = clients | {str(careless): (rows, flip_uniformly(rng, labels, WRONG, 2))}
            test = ~is_train & (hospital != careless)
            beta = choose(robust, BETAS, bad).chosen
            fits = {
                "PVI, right labels": run(PVI(model), clients),
                "PVI": run(PVI(model), bad),
                "FedGVI": run(robust(beta), bad),
            }
            for name, fit in fits.items():
                probability = fit.predict(x[test]).mean
                measured = tuple(
                    float(measure(probability, y[test]))
                    for measure in (metrics.log_likelihood, metrics.error_rate, metrics.brier)
                )
                scores.setdefault((str(careless), name), []).append(measured)
            journal.say(f"split {index + 1} of {num_splits}, {careless} careless: beta {beta}")
    for (careless, name), values in scores.items():
        means = np.mean(values, axis=0)
        entries = dict(zip(("log_likelihood", "error", "brier"), means, strict=True))
        journal.row("heart", careless=careless, method=name, **entries)
    for name in ("PVI, right labels", "PVI", "FedGVI"):
        pooled = np.concatenate([values for (_, method), values in scores.items() if method == name])
        entries = dict(zip(("log_likelihood", "error", "brier"), pooled.mean(0), strict=True))
        journal.row("overall", method=name, **entries)
    journal.row("difference", **_differences(scores))


def _differences(scores: dict[tuple[str, str], list[Any]]) -> dict[str, float]:
    """FedGVI minus PVI in log likelihood, and its standard error over splits (which share patients)."""
    pairs = [np.array(scores[key]) - np.array(scores[key[0], "PVI"]) for key in scores if key[1] == "FedGVI"]
    gains = np.mean(pairs, axis=0)[:, 0]  # of each split, over the hospitals
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.nan
    return {"log_likelihood": float(gains.mean()), "standard_error": float(error)}


def _half(rng: np.random.Generator, hospital: np.ndarray) -> np.ndarray:
    is_train = np.zeros(len(hospital), bool)
    for rows in partition.by_column(hospital).values():
        is_train[rng.permutation(rows)[: len(rows) // 2]] = True
    return is_train
