"""`cavity reproduce sgp-banana`: a Gaussian process classifier over five clients, against one on the pooled rows.

Two bent clouds in the plane, with rows split along the first coordinate, so that every client sees another part of the
boundary. A fifth of the rows is held out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from cavity.data import partition, sources
from cavity.experiments.gp_methods import DPO, POOLED, Rows, Setting, federated, model_of, pooled
from cavity.experiments.runner import Journal, Size
from cavity.likelihoods import BernoulliProbit
from cavity.models.gaussian_process import SparseGP

CLIENTS, HELD_OUT = 5, 0.2
BAR = 1.0  # points of error


def sgp_banana(journal: Journal, size: Size, seed: int) -> None:
    """Error and log likelihood after each pass, and pooled."""
    quick = size is Size.QUICK
    setting = Setting(
        num_inducing=15 if quick else 40,
        most_pseudo=30 if quick else 100,
        passes=1 if quick else 3,
        num_steps=50 if quick else 300,
        batch_size=256,
        central_steps=100 if quick else 600,
    )
    journal.settings(data="banana", clients=CLIENTS, held_out=HELD_OUT, **asdict(setting))
    clients, test = banana_clients(seed)
    model = model_of(DPO, clients, setting, seed, BernoulliProbit())
    found = {}

    def told(method: str, visits: int, posterior: Any) -> None:
        found[method] = classified(model, posterior, test, setting)
        journal.row("visits", method=method, visits=visits, **found[method])
        journal.say(f"{method}, {visits} visits: {found[method]}")

    told(POOLED, 0, pooled(model, clients, setting))
    federated(model, clients, setting, seed, lambda visits, q: told(DPO, visits, q))
    gap = found[DPO]["error_percent"] - found[POOLED]["error_percent"]
    name = "sgp-7 error of five clients - pooled, points"
    journal.check(name, gap, f"<= {BAR:g}", None if quick else gap <= BAR)


def banana_clients(seed: int) -> tuple[dict[str, Rows], Rows]:
    """Five clients along the first coordinate, and the rows that are held out; standardised by the former."""
    table = sources.banana()
    order = np.random.default_rng(seed).permutation(len(table.y))
    num_test = int(HELD_OUT * len(order))
    train, test = order[num_test:], order[:num_test]
    mean, sd = table.x[train].mean(axis=0), table.x[train].std(axis=0)
    x, y = (table.x - mean) / sd, table.y.astype(float)
    parts = partition.along_component(x[train], CLIENTS)
    return partition.select((x[train], y[train]), parts), (x[test], y[test])


def classified(model: SparseGP, posterior: Any, test: Rows, setting: Setting) -> dict[str, float]:
    """The share of wrong classes, in percent, and the mean log probability of the right one."""
    x, y = test
    found = model.predict(posterior, x, key=jax.random.key(0), num_draws=setting.num_draws)
    wrong = (np.asarray(found.mean) > 0.5) != (y > 0.5)
    return {"error_percent": 100 * float(np.mean(wrong)), "log_likelihood": float(np.mean(found.log_prob(y)))}
