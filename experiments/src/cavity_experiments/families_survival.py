"""Survival models: against R and NUTS on `lung2`, and Cox regression of many rows.

`multisite/lung2.csv.gz` has 228 patients at 3 sites, with many tied times. Figures of R are those of the README beside
it: `coxph(Surv(time, status) ~ age + sex + strata(site))` and `survreg(Surv(time, status) ~ age + sex)`. They are
maxima of the likelihood, so they are compared with modes under a prior of scale 1000; posterior means differ from modes
where a posterior is skewed, and are compared with NUTS.

The Cox model of many rows is simulated over 10 clients, each a stratum. The pooled fit has all rows at one client,
where a stratum is a period of its own: its rows enter when it begins, so that they are at risk together with no others.
"""

from __future__ import annotations

import csv
import gzip
import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS
from scipy.optimize import minimize

from cavity.algorithms import PVI
from cavity.core.client_data import prepare_clients
from cavity.distributions import FullGaussian
from cavity.evaluation import diagnostics
from cavity.fit.run import Fit, run
from cavity.models import cox_regression
from cavity.study.regression import regression
from cavity_experiments import sources
from cavity_experiments.runner import Journal, Size

FORMULA = "Surv(time, status) ~ age + sex"
WIDE = 1e3  # scale of all priors
REFERENCES: Mapping[str, tuple[dict[str, Any], list[float], list[float]]] = {
    "coxph, Efron": (
        {"family": "cox"},
        [0.01698975, -0.55688107],
        [0.00932878, 0.17162093],
    ),
    "coxph, Breslow": (
        {"family": "cox", "ties": "breslow"},
        [0.01697735, -0.55604821],
        [0.00932750, 0.17162955],
    ),
    "survreg, Weibull": (
        {"family": "weibull", "intercept_scale": WIDE, "prior_scales": {"log_scale_scale": WIDE}},
        [6.65693820, -0.01225703, 0.38208514, -0.28229534],
        [0.44752368, 0.00695747, 0.12747684, 0.06188327],
    ),
}
MODE = 0.001  # standard errors
MEANS, SDS = 0.05, 0.04  # sds of NUTS, and relative
ROUNDS = 6
NUM_CLIENTS = 10
EFFECTS = np.array([0.5, -0.3, 0.2, 0.0])
TIMES_POOLED = 3.0
GROWTH = 1.2  # exponent of n log n


def survival(journal: Journal, size: Size, seed: int) -> None:
    """The data set in R, then many rows; quick has fewer models, draws and rows, and no check of speed."""
    quick = size is Size.QUICK
    with jax.enable_x64(True):
        journal.settings(prior_scale=WIDE, clients=NUM_CLIENTS)
        for name in ("coxph, Efron",) if quick else REFERENCES:
            compare_with_r(journal, name, seed, num_draws=500 if quick else 8000)
        many_rows(journal, (1000, 2000) if quick else (25_000, 50_000, 100_000, 200_000), seed)


def lung() -> dict[str, dict[str, list[float]]]:
    """The rows of each site."""
    directory = sources.data_directory()
    assert directory is not None, "set CAVITY_DATA"
    with gzip.open(directory / "multisite" / "lung2.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name != "site"]
    return {
        site: {name: [float(row[name]) for row in rows if row["site"] == site] for name in names}
        for site in sorted({row["site"] for row in rows})
    }


def compare_with_r(journal: Journal, name: str, seed: int, *, num_draws: int) -> None:
    """The mode beside R's estimates, and means and sds beside NUTS."""
    settings, estimates, errors = REFERENCES[name]
    frames = lung()
    fit = regression(FORMULA, frames, prior_scale=WIDE, **settings)
    mode, se = pooled_mode(fit, frames)
    draws = pooled_draws(fit, frames, num_draws, seed)
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
    off, shift, ratio = (mode - estimates) / errors, (mean - draws.mean(0)) / draws.std(0), sd / draws.std(0)
    for i, parameter in enumerate(fit.algorithm.model.parameter_names):
        cells = {"r": estimates[i], "r_se": errors[i], "mode": float(mode[i]), "se": float(se[i]), "off": float(off[i])}
        journal.row("lung2", model=name, parameter=parameter, **cells, shift=float(shift[i]), ratio=float(ratio[i]))
    rounds = len(fit.history)
    journal.say(f"{name}: mode off by {np.abs(off).max():.1e} se, mean by {np.abs(shift).max():.3f} sd of NUTS")
    decides = num_draws >= 4000  # with fewer, the error of NUTS is as large as the threshold
    journal.check(f"families {name}: mode", np.abs(off).max(), f"< {MODE} se", np.abs(off).max() < MODE)
    journal.check(f"families {name}: rounds", rounds, f"at most {ROUNDS}", rounds <= ROUNDS)
    worst_mean, worst_sd = float(np.abs(shift).max()), float(np.abs(ratio - 1).max())
    holds = (worst_mean < MEANS, worst_sd < SDS) if decides else (None, None)
    journal.check(f"families {name}: means", worst_mean, f"< {MEANS} sd of NUTS", holds[0])
    journal.check(f"families {name}: sds", worst_sd, f"< {SDS:.0%} of NUTS", holds[1])


def pooled_mode(fit: Fit, frames: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The mode of the pooled posterior and the root of its inverse Hessian, in the units of the data."""
    model, potential = fit.algorithm.model, _potential(fit, frames)
    slope = jax.jit(jax.value_and_grad(potential))
    found = minimize(
        lambda theta: [np.asarray(part) for part in slope(jnp.asarray(theta))],
        np.asarray(fit.posterior.mean),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-8},
    )
    hessian = jax.jit(jax.hessian(potential))(jnp.asarray(found.x))
    mode, covariance = model.reported_moments(FullGaussian(hessian @ found.x, hessian))
    return mode, np.sqrt(np.diag(covariance))


def pooled_draws(fit: Fit, frames: Mapping[str, Any], num_draws: int, seed: int) -> np.ndarray:
    """Draws of the pooled posterior by NUTS, of the parameters that the model computes with."""
    kernel = NUTS(potential_fn=_potential(fit, frames))
    chain = MCMC(kernel, num_warmup=500, num_samples=num_draws, progress_bar=False)
    chain.run(jax.random.key(seed), init_params=jnp.asarray(fit.posterior.mean))
    return np.asarray(chain.get_samples())


def _potential(fit: Fit, frames: Mapping[str, Any]) -> Any:
    model = fit.algorithm.model
    data = jax.tree.map(jnp.asarray, list(prepare_clients(model, frames).values()))

    def potential(theta: jax.Array) -> jax.Array:
        return -model.prior.log_prob(theta) - sum(model.log_prob(theta, rows) for rows in data)

    return potential


def many_rows(journal: Journal, sizes: tuple[int, ...], seed: int) -> None:
    """CPU time by the number of rows, with that of the pooled fit for the largest."""
    seconds = []
    for num_rows in sizes:
        clients = simulated(num_rows, seed)
        _, spent = timed_fit(clients, rounds=2)
        seconds.append(spent)
        journal.row("many rows", rows=num_rows, clients=NUM_CLIENTS, cpu_seconds=spent)
        journal.say(f"Cox, {num_rows:,} rows, two rounds: {spent:.2f} s of CPU time")
    clients = simulated(sizes[-1], seed)
    (fit, spent), (pooled, alone) = timed_fit(clients), timed_fit(pooled_strata(clients))
    kl = diagnostics.kl(fit.posterior, pooled.posterior)
    journal.row("pooled", rows=sizes[-1], cpu_seconds=spent, pooled_cpu_seconds=alone, kl=kl, rounds=len(fit.history))
    work = [math.log(num_rows * math.log(num_rows)) for num_rows in sizes]
    exponent = float(np.polyfit(work, np.log(seconds), 1)[0])
    judged = sizes[-1] >= 200_000
    journal.put("exponent", exponent)
    journal.check("families Cox: KL to the pooled fit", kl, "< 1e-6", kl < 1e-6)
    ratio = spent / alone
    journal.check(
        "families Cox: CPU time", ratio, f"< {TIMES_POOLED:g} x pooled", ratio < TIMES_POOLED if judged else None
    )
    holds = exponent < GROWTH if judged else None
    journal.check("families Cox: growth with rows", exponent, f"exponent of n log n < {GROWTH}", holds)


def simulated(num_rows: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Times of three decimals, so that there are ties, censored at random; every client has its own baseline."""
    rng, clients, each = np.random.default_rng(seed), {}, num_rows // NUM_CLIENTS
    for k in range(NUM_CLIENTS):
        x = rng.normal(size=(each, len(EFFECTS)))
        died, left = rng.exponential(np.exp(-x @ EFFECTS - 0.2 * k)), rng.exponential(2.0, each)
        times = np.ceil(1000 * np.minimum(died, left)) / 1000
        clients[f"client {k}"] = (x, np.column_stack([np.zeros(each), times, died <= left]))
    return clients


def pooled_strata(clients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """All rows at one client, every stratum in a period of its own."""
    period = 1.0 + max(y[:, 1].max() for _, y in clients.values())
    shifted = [y + np.array([k * period, k * period, 0.0]) for k, (_, y) in enumerate(clients.values())]
    return {"all": (np.concatenate([x for x, _ in clients.values()]), np.concatenate(shifted))}


def timed_fit(clients: Mapping[str, Any], rounds: int | None = None) -> tuple[Fit, float]:
    """A fit and its CPU seconds, after one that compiles the same programs."""
    algorithm = PVI(cox_regression(len(EFFECTS)))
    run(algorithm, clients, rounds=rounds)
    before = time.process_time()
    fit = run(algorithm, clients, rounds=rounds)
    return fit, time.process_time() - before
