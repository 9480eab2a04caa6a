"""Mixed models by SFVI against pooled NUTS: radon in 85 counties, contraception in 60 districts, a trial in hospitals.

Counties and districts are divided at random among eight clients; each stays whole. In the trial every hospital is a
client with its own intercept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from cavity.algorithms import PVI, SFVI
from cavity.fit.run import run
from cavity.models import logistic_regression, numpyro_model
from cavity.reporting import indomethacin as trial
from cavity_experiments import mixed_models as mixed
from cavity_experiments import sources
from cavity_experiments.runner import Journal, Size

sample: Any = numpyro.sample
NUM_CLIENTS, NUM_STEPS, STEP_SIZE, BLOCK = 8, 10_000, 0.02, 1000


def sfvi_radon(journal: Journal, size: Size, seed: int) -> None:
    """Both district studies, then the trial."""
    quick = size is Size.QUICK
    num_steps = 500 if quick else NUM_STEPS
    journal.settings(
        clients=NUM_CLIENTS, optimiser=f"Adam {STEP_SIZE}, cosine decay over {num_steps} exchanges", samples="K = 20"
    )
    radon, use = sources.radon(), sources.contraception()
    houses = {"county": radon.county, "floor": radon.floor, "log_radon": radon.log_radon}
    women = {
        "district": use.district,
        "x": np.column_stack([use.urban, use.age / 10, use.children]),
        "use": use.use,
    }
    study(journal, "radon", mixed.radon_levels, houses, "county", "num_counties", num_steps, seed, quick)
    study(journal, "contraception", mixed.contraceptive_use, women, "district", "num_districts", num_steps, seed, quick)
    hospitals(journal, num_steps, seed)


def study(
    journal: Journal,
    name: str,
    function: Callable[..., None],
    columns: mixed.Columns,
    unit: str,
    num_units: str,
    num_steps: int,
    seed: int,
    quick: bool,
) -> None:
    """One data set: NUTS on the pooled rows, SFVI over clients of whole units."""
    labels, places = np.unique(columns[unit], return_inverse=True)
    pooled = columns | {unit: places, num_units: len(labels)}
    began = time.perf_counter()
    draws, warmup = (100, 200) if quick else (2500, 1000)
    reference, r_hat, ess = mixed.by_nuts(
        function, pooled, num_draws=draws, num_warmup=warmup, seed=seed, free_of=("level",)
    )
    journal.row("nuts", study=name, r_hat=r_hat, ess=ess, seconds=time.perf_counter() - began)
    home = np.random.default_rng(seed).permutation(np.arange(len(labels)) % NUM_CLIENTS)[places]
    clients = {
        f"client {j + 1}": {key: column[home == j] for key, column in columns.items()} for j in range(NUM_CLIENTS)
    }
    model = numpyro_model(function, columns, unit=unit, num_units=num_units)
    method = SFVI(model, num_steps=num_steps, step_size=STEP_SIZE)
    began = time.perf_counter()
    fit = run(method, clients, rounds=num_steps, tolerance=0.0, rounds_per_block=min(BLOCK, num_steps), seed=seed)
    seconds = time.perf_counter() - began
    rows = mixed.compared(fit.summary(), reference)
    for row in rows:
        journal.row("posteriors", study=name, **row)
    off = max(row["off_by_sds"] for row in rows)
    sds = max(abs(row["sd_ratio"] - 1) for row in rows)
    journal.row("fits", study=name, bound=fit.history[-1]["free_energy"], off_by_sds=off, sds_off=sds, seconds=seconds)
    journal.say(f"{name}: means off by at most {off:.3f} sds, sds by {100 * sds:.1f} %, {seconds:.0f} s")
    journal.check(f"sfvi-3 {name}: means off, in posterior sds", off, "<= 0.15", None if quick else off <= 0.15)
    journal.check(f"sfvi-3 {name}: sds off", sds, "<= 10 %", None if quick else sds <= 0.1)


def pancreatitis(x: Any, y: Any = None) -> None:
    """A logistic regression with an intercept per hospital, around a common one."""
    mu = sample("mu", dist.Normal(0, trial.PRIOR_SCALE))
    beta = sample("beta", dist.Normal(0, trial.PRIOR_SCALE).expand([x.shape[1]]).to_event(1))
    between = sample("between", dist.HalfNormal(1))
    level = sample("level", dist.Normal(0, 1))
    with numpyro.plate("patients", len(x)):
        sample("y", dist.Bernoulli(logits=mu + between * level + x @ beta), obs=y)


def hospitals(journal: Journal, num_steps: int, seed: int) -> None:
    """The indomethacin trial: the treatment's effect with one intercept for all, and with one per hospital."""
    rows, _ = trial.admitted()
    fixed = run(PVI(logistic_regression(trial.FEATURES, prior_scale=trial.PRIOR_SCALE)), rows)
    clients = {name: {"x": x, "y": y} for name, (x, y) in rows.items()}
    model = numpyro_model(pancreatitis, next(iter(clients.values())), local=("level",))
    method = SFVI(model, num_steps=num_steps, step_size=STEP_SIZE)
    fit = run(method, clients, rounds=num_steps, tolerance=0.0, rounds_per_block=min(BLOCK, num_steps), seed=seed)
    found = {
        "one intercept for all": fixed.summary()[trial.TREATMENT],
        "one per hospital": fit.summary()["beta[0]"],
    }
    for name, estimate in found.items():
        journal.row(
            "indomethacin",
            model=name,
            log_odds_ratio=estimate.mean,
            sd=estimate.sd,
            lower=estimate.lower,
            upper=estimate.upper,
        )
    between = fit.summary()["between"]
    journal.row("between hospitals", mean=between.mean, sd=between.sd, lower=between.lower, upper=between.upper)
    for name in clients:
        own = fit.local(name).summary().estimates[0]
        journal.row("hospitals", hospital=name, level=own.mean, sd=own.sd)
