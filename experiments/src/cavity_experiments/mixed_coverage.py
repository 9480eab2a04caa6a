"""Coverage of a logistic mixed model over five clients, and the exchanges that SFVI and PVI need.

Data are simulated with known fixed effects and a known sd of random intercepts. An interval is that of the fitted
Gaussian with the nominal probability, on the scale on which it is Gaussian: the log of the sd.
"""

from __future__ import annotations

import time

import numpy as np
from scipy import stats

from cavity.study.regression import regression
from cavity_experiments.runner import Journal, Size
from cavity_experiments.sources import Columns

FIXED = {"intercept": -0.5, "x1": 0.8, "x2": -0.4}
SD, LEVEL = 1.0, 0.9
NUM_CLIENTS, NUM_GROUPS, GROUP_SIZE = 5, 12, 6
REPLICATIONS, BLOCK = 1000, 100  # of which so many from one line of progress to the next
LOWEST, HIGHEST = 0.87, 0.93


def simulated(rng: np.random.Generator) -> dict[str, Columns]:
    """Rows of all clients: groups of six, with an intercept each."""
    clients = {}
    for client in range(NUM_CLIENTS):
        group = np.repeat(np.arange(NUM_GROUPS), GROUP_SIZE)
        x1, x2 = rng.normal(size=len(group)), rng.integers(0, 2, len(group)).astype(float)
        logits = FIXED["intercept"] + FIXED["x1"] * x1 + FIXED["x2"] * x2 + rng.normal(0, SD, NUM_GROUPS)[group]
        y = rng.random(len(group)) < 1 / (1 + np.exp(-logits))
        ward = np.array([f"{client}-{i}" for i in range(NUM_GROUPS)])[group]
        clients[f"client {client}"] = {"y": y, "x1": x1, "x2": x2, "ward": ward}
    return clients


def covered(clients: dict[str, Columns]) -> tuple[dict[str, bool], int]:
    """Whether each true value is in its interval, and the rounds; columns are not scaled, so the truth is as given."""
    fit = regression("y ~ x1 + x2 + (1 | ward)", clients, family="bernoulli", scaling="none")
    truth = np.array([*FIXED.values(), np.log(SD)])
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
    inside = np.abs(mean - truth) < stats.norm.ppf(0.5 + LEVEL / 2) * sd
    return dict(zip([*FIXED, "1|ward_sigma"], inside.tolist(), strict=True)), len(fit.history)


def coverage(journal: Journal, size: Size, seed: int) -> None:
    """How many intervals hold the true value: 20 replications in the quick form, else 1,000."""
    count = 20 if size is Size.QUICK else REPLICATIONS
    rng, began = np.random.default_rng(seed), time.process_time()
    found: list[dict[str, bool]] = []
    rounds = []
    for _ in range(count):
        inside, needed = covered(simulated(rng))
        found.append(inside)
        rounds.append(needed)
        if len(found) % BLOCK == 0:
            shares = {name: round(float(np.mean([each[name] for each in found])), 3) for name in inside}
            journal.say(f"{len(found)} replications: {shares}")
    for name in (*FIXED, "1|ward_sigma"):
        share = float(np.mean([inside[name] for inside in found]))
        error = np.sqrt(share * (1 - share) / count)
        journal.row("coverage", parameter=name, share=share, standard_error=float(error), replications=count)
        if name in FIXED:
            holds = LOWEST <= share <= HIGHEST
            journal.check(
                f"mixed coverage of {name}",
                share,
                f"{LOWEST:.0%} to {HIGHEST:.0%} of 90 % intervals",
                None if size is Size.QUICK else holds,
            )
    journal.say(
        f"{count} replications, {np.mean(rounds):.1f} rounds on average, {time.process_time() - began:.0f} CPU-seconds"
    )
