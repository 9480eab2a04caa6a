"""`cavity reproduce sgp-weather`: one map from 32 clients, each with the stations of one block (section 6.2.2).

The paper's European stations by country are not available; these are in the United States, with the mean
temperature of one day, by blocks of longitude and latitude of about 60 stations each. M = 100 inducing inputs.
Elevation is the third input, and a tenth of the stations is held out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cavity.distributions.hierarchical import Hierarchical
from cavity.reporting import plots
from cavity.reporting.plots.style import axes_or_new, colour, figure_of, marker
from cavity_experiments import gp_data
from cavity_experiments.gp_methods import CPO, DPO, FIXED, METHODS, POOLED, Setting, federated, model_of, pooled, score
from cavity_experiments.parallel import run_in_parallel
from cavity_experiments.runner import Journal, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABEL = "mean temperature, °F"


def sgp_weather(journal: Journal, size: Size, seed: int) -> None:
    """Log likelihood by visit of each method, and the maps."""
    setting = {
        Size.QUICK: Setting(num_inducing=30, passes=1, num_steps=20, central_steps=30, most_pseudo=100),
        Size.DEFAULT: Setting(passes=3, num_steps=200, most_pseudo=100),
        Size.FULL: Setting(passes=6, num_steps=500, most_pseudo=100),
    }[size]
    journal.settings(clients=gp_data.STATION_CLIENTS, **asdict(setting))
    found: dict[str, list[dict[str, Any]]] = {}
    posteriors: dict[str, Any] = {}
    for (method, *_), (visits, posterior) in run_in_parallel(one, [(method, setting, seed) for method in METHODS]):
        found[method], posteriors[method] = visits, posterior
        for visit in visits:
            journal.row("visits", method=method, **visit)
        last = visits[-1]
        error = last["rmse_fahrenheit"]
        journal.say(f"{method}: {last['log_likelihood']:.3f} nats, rmse {error:.2f} °F, {last['seconds']:.0f} s")
    judged = size is not Size.QUICK
    last = {method: visits[-1]["log_likelihood"] for method, visits in found.items()}
    for letter, other in (("a", CPO), ("b", FIXED)):
        gap = last[DPO] - last[other]
        journal.check(f"sgp-6{letter} DPO - {other}, nats per station", gap, ">= 0", gap >= 0 if judged else None)
    journal.put("DPO - pooled, nats per station", last[DPO] - last[POOLED])
    journal.figure("visits", lambda: draw_visits(found))
    data = gp_data.stations()
    model = model_of(DPO, data.clients, setting, seed)
    journal.figure("map", lambda: draw_map(model, posteriors, data, setting))


def one(method: str, setting: Setting, seed: int) -> tuple[list[dict[str, Any]], Hierarchical]:
    """A method's scores after each pass over the clients, and its posterior, with numpy arrays."""
    data, began = gp_data.stations(), time.perf_counter()
    model = model_of(method, data.clients, setting, seed)
    found: list[dict[str, Any]] = []

    def on_pass(visits: int, posterior: Any) -> None:
        scored = score(model, posterior, data.test, setting)
        fahrenheit = scored["rmse"] * data.scaling.y_sd
        found.append(
            {"visits": visits, **scored, "rmse_fahrenheit": fahrenheit, "seconds": time.perf_counter() - began}
        )

    if method == POOLED:
        posterior = pooled(model, data.clients, setting)
        on_pass(0, posterior)
    else:
        posterior = federated(model, data.clients, setting, seed, on_pass).posterior
    return found, jax.tree.map(np.asarray, posterior)


def draw_visits(found: Mapping[str, list[dict[str, Any]]]) -> Figure:
    """Figure 3: held-out log likelihood by visit."""
    axes = axes_or_new(None, 6.4, 4.0)
    for i, method in enumerate((DPO, CPO, FIXED)):
        visits = found[method]
        axes.plot(
            [visit["visits"] for visit in visits],
            [visit["log_likelihood"] for visit in visits],
            color=colour(i),
            marker=marker(i),
            label=method,
        )
    axes.axhline(found[POOLED][-1]["log_likelihood"], color="#555555", linestyle="--", label=POOLED)
    axes.set_xlabel("client visits")
    axes.set_ylabel("held-out log likelihood, nats per station")
    axes.legend(frameon=False)
    return figure_of(axes)


def draw_map(model: Any, posteriors: Mapping[str, Any], data: gp_data.Federated, setting: Setting) -> Figure:
    """Predictive means at held-out stations, by pooling and by DPO, with inducing inputs and the clients' blocks."""
    x, y = data.test
    places = data.scaling.raw_inputs(x)[:, :2]
    panels = {"held-out stations": (places, data.scaling.raw_targets(y))}
    inducing = {}
    for method in (POOLED, DPO):
        found = model.predict(posteriors[method], x, key=jax.random.key(0), num_draws=setting.num_draws)
        panels[method] = (places, data.scaling.raw_targets(np.asarray(found.mean)))
        inducing[method] = data.scaling.raw_inputs(model.inducing_inputs(posteriors[method])[0])[:, :2]
    return plots.maps(panels, label=LABEL, inducing=inducing, clients=data.places, columns=1)
