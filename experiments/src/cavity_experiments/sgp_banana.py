"""`cavity reproduce sgp-banana`: a Gaussian process classifier over five clients, against one on the pooled rows.

Two bent clouds in the plane, with rows split along the first coordinate, so that every client sees another part of the
boundary. A fifth of the rows is held out.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cavity.datasets import partition
from cavity.likelihoods import BernoulliProbit
from cavity.models.gp.sparse_gp import SparseGP
from cavity.reporting.plots.style import colour
from cavity_experiments import sources
from cavity_experiments.gp_methods import DPO, POOLED, Rows, Setting, federated, model_of, pooled
from cavity_experiments.runner import Journal, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS, HELD_OUT = 5, 0.2
BAR = 1.0  # points of error
GRID = 80  # places along a side of the picture


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
    found, posteriors = {}, {}

    def on_pass(method: str, visits: int, posterior: Any) -> None:
        posteriors[method] = posterior
        found[method] = classified(model, posterior, test, setting)
        journal.row("visits", method=method, visits=visits, **found[method])
        journal.say(f"{method}, {visits} visits: {found[method]}")

    on_pass(POOLED, 0, pooled(model, clients, setting))
    federated(model, clients, setting, seed, lambda visits, q: on_pass(DPO, visits, q))
    journal.figure("boundary", lambda: draw(model, posteriors, clients))
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


def draw(model: SparseGP, posteriors: dict[str, Any], clients: dict[str, Rows]) -> Figure:
    """The rows, each method's inducing inputs, and where its chance of class 1 is 0.1, 0.5 and 0.9."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    panels: Any = figure.subplots(1, len(posteriors), sharex=True, sharey=True)
    x, y = (np.concatenate([rows[i] for rows in clients.values()]) for i in range(2))
    across, up = (np.linspace(column.min() - 0.2, column.max() + 0.2, GRID) for column in x.T)
    grid = np.stack(np.meshgrid(across, up), axis=-1)
    for axes, (method, posterior) in zip(panels, posteriors.items(), strict=True):
        found = model.predict(posterior, grid.reshape(-1, 2), key=jax.random.key(0), num_draws=30)
        chance = np.asarray(found.mean).reshape(GRID, GRID)
        for label in (0, 1):
            axes.scatter(*x[y == label].T, s=3.0, color=colour(label), alpha=0.35, linewidth=0, label=f"class {label}")
        axes.contour(across, up, chance, levels=[0.1, 0.5, 0.9], colors="#222222", linewidths=[0.8, 1.8, 0.8])
        centre, _ = model.inducing_inputs(posterior)
        axes.plot(*centre.T, linestyle="none", marker="x", color="#222222", label="inducing inputs")
        axes.set(xlim=across[[0, -1]], ylim=up[[0, -1]], title=method)
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=3)
    return figure
