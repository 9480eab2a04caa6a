"""Six cities (SFVI, S3.1): wheezing of 537 children in four years, an intercept per child, two clients.

Every fit is compared with the pooled posterior by NUTS. The plain bound (K = 1) is the paper's; with importance
samples per child (K = 20) it is the locally enhanced one, which the library takes by default here.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from cavity.algorithms import SFVI, SFVIAvg
from cavity.fit.run import Fit, run
from cavity.models import numpyro_model
from cavity_experiments import mixed_models as mixed
from cavity_experiments import sources
from cavity_experiments.runner import Journal, Size

SIZES = (300, 237)
NUM_STEPS, STEP_SIZE, BLOCK = 10_000, 0.02, 1000
AVG_ROUNDS, AVG_STEPS = 20, 1000
SLOPES = ("beta[1]", "beta[2]", "beta[3]")


def columns() -> mixed.Columns:
    """All children."""
    data = sources.six_cities()
    return {"child": data.child, "smoke": data.smoke, "age": data.age, "wheeze": data.wheeze}


def shared_out(seed: int) -> dict[str, mixed.Columns]:
    """Two clients of 300 and 237 children, drawn at random."""
    all_rows = columns()
    order = np.random.default_rng(seed).permutation(sum(SIZES))
    parts = {"first": order[: SIZES[0]], "second": order[SIZES[0] :]}
    return {name: {key: column[rows] for key, column in all_rows.items()} for name, rows in parts.items()}


def sfvi_cities(journal: Journal, size: Size, seed: int) -> None:
    """NUTS, then both bounds for each seed, SFVI-Avg, and the speed beside NumPyro's own SVI."""
    quick = size is Size.QUICK
    num_steps = 500 if quick else NUM_STEPS
    seeds = [seed] if quick else [seed, seed + 1, seed + 2]
    journal.settings(
        data="six cities, 537 children x 4 years, clients of 300 and 237",
        model="logistic, random intercept per child, priors N(0, 10^2) on beta and omega",
        family="dense Gaussian; per child a coupled Gaussian, which widens with Z_G where K > 1",
        optimiser=f"Adam {STEP_SIZE}, cosine decay over {num_steps} exchanges, one draw of Z_G",
        seeds=seeds,
    )
    pooled = columns()
    chains = {key: pooled[key] for key in ("smoke", "age", "wheeze")}
    began = time.perf_counter()
    draws, warmup = (100, 200) if quick else (4000, 1000)
    reference, r_hat, ess = mixed.by_nuts(
        mixed.wheezing, chains, num_draws=draws, num_warmup=warmup, seed=seed, free_of=("b",)
    )
    journal.say(f"NUTS: {time.perf_counter() - began:.0f} s, R-hat {r_hat:.4f}, effective draws {ess:.0f}")
    journal.row("nuts", r_hat=r_hat, ess=ess, seconds=time.perf_counter() - began)
    journal.check("sfvi-2 R-hat of NUTS", r_hat, "< 1.01", None if quick else r_hat < 1.01)
    journal.check("sfvi-2 effective draws of NUTS", ess, "> 2000", None if quick else ess > 2000)
    model = numpyro_model(mixed.wheezing, pooled, unit="child")
    worst: dict[str, dict[str, float]] = {}
    for at in seeds:
        clients = shared_out(at)
        for name, options in {"K = 20": {}, "K = 1": {"num_samples": 1}}.items():
            method = SFVI(model, num_steps=num_steps, step_size=STEP_SIZE, **options)
            began = time.perf_counter()
            fit = run(method, clients, rounds=num_steps, tolerance=0.0, rounds_per_block=min(BLOCK, num_steps), seed=at)
            rows = _note(journal, f"SFVI, {name}", fit, reference, at, time.perf_counter() - began)
            found = worst.setdefault(name, {"slopes": 0.0, "means": 0.0, "sds": 0.0})
            for row in rows:
                found["means"] = max(found["means"], row["off_by_sds"])
                found["sds"] = max(found["sds"], abs(row["sd_ratio"] - 1))
                if row["parameter"] in SLOPES:
                    found["slopes"] = max(found["slopes"], row["off_by_sds"])
    enhanced, plain = worst["K = 20"], worst["K = 1"]
    longest, farthest = by_itself(journal, model, reference, seeds)

    def check(name: str, value: float, bar: str, holds: bool) -> None:
        journal.check(name, value, bar, None if quick else holds)

    check("sfvi-2a K = 20: means off, in posterior sds", enhanced["means"], "<= 0.1", enhanced["means"] <= 0.1)
    check("sfvi-2b K = 20: sds off", enhanced["sds"], "<= 7 %", enhanced["sds"] <= 0.07)
    check("sfvi-2c K = 1: slopes off, in posterior sds", plain["slopes"], "<= 0.15", plain["slopes"] <= 0.15)
    check("sfvi-2d ending by itself: most exchanges", longest, "< 2000", longest < 2000)
    check("sfvi-2e ending by itself: means off, in posterior sds", farthest, "<= 0.15", farthest <= 0.15)
    averaging(journal, model, reference, seed, quick)
    speed(journal, model, pooled, seed, quick)


def by_itself(journal: Journal, model: Any, reference: Any, seeds: list[int]) -> tuple[int, float]:
    """SFVI with its defaults, which ends when it has settled: the most exchanges, and the farthest mean."""
    longest, farthest = 0, 0.0
    for at in seeds:
        began = time.perf_counter()
        fit = run(SFVI(model), shared_out(at), seed=at)
        rows = _note(journal, "SFVI, by itself", fit, reference, at, time.perf_counter() - began)
        journal.row("by itself", seed=at, exchanges=len(fit.history), converged=fit.converged)
        journal.say(f"it ended after {len(fit.history)} exchanges")
        longest = max(longest, len(fit.history))
        farthest = max(farthest, *(row["off_by_sds"] for row in rows))
    return longest, farthest


def averaging(journal: Journal, model: Any, reference: Any, seed: int, quick: bool) -> None:
    """What SFVI-Avg gives, corrected and as printed."""
    rounds, steps = (2, 50) if quick else (AVG_ROUNDS, AVG_STEPS)
    for name, options in {"SFVI-Avg": {}, "SFVI-Avg, as printed": {"as_printed": True}}.items():
        method = SFVIAvg(
            model, total=sum(SIZES), num_rounds=rounds, local_steps=steps, num_samples=1, step_size=STEP_SIZE, **options
        )
        began = time.perf_counter()
        fit = run(method, shared_out(seed), rounds=rounds, tolerance=0.0, seed=seed)
        _note(journal, name, fit, reference, seed, time.perf_counter() - began)


def speed(journal: Journal, model: Any, pooled: mixed.Columns, seed: int, quick: bool) -> None:
    """Seconds for the plain bound over two clients, and for NumPyro's SVI with a mean-field guide on pooled rows."""
    num_steps = 500 if quick else NUM_STEPS
    method = SFVI(model, num_steps=num_steps, step_size=STEP_SIZE, num_samples=1)
    options: dict[str, Any] = {"tolerance": 0.0, "rounds_per_block": num_steps, "seed": seed}
    method = run(method, shared_out(seed), rounds=num_steps, **options).algorithm  # compiles, and finds the start
    chains = {key: pooled[key] for key in ("smoke", "age", "wheeze")}
    theirs = _svi(chains, num_steps, seed)
    theirs()
    ours_best, theirs_best = np.inf, np.inf
    for _ in range(1 if quick else 7):
        began = time.perf_counter()
        run(method, shared_out(seed), rounds=num_steps, **options)
        ours_best = min(ours_best, time.perf_counter() - began)
        began = time.perf_counter()
        theirs()
        theirs_best = min(theirs_best, time.perf_counter() - began)
    ratio = ours_best / theirs_best
    journal.row("speed", exchanges=num_steps, seconds=ours_best, numpyro_seconds=theirs_best, ratio=ratio)
    journal.check("sfvi-6a seconds for 10,000 exchanges", ours_best, "< 30", None if quick else ours_best < 30)
    journal.check("sfvi-6b SFVI / NumPyro's SVI on pooled rows", ratio, "<= 1.5", None if quick else ratio <= 1.5)


def _svi(chains: mixed.Columns, num_steps: int, seed: int) -> Any:
    """NumPyro's own SVI with the cheapest guide, as one compiled loop."""
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    svi = SVI(mixed.wheezing, AutoNormal(mixed.wheezing), Adam(STEP_SIZE), Trace_ELBO())
    state = svi.init(jax.random.key(seed), **chains)

    @jax.jit
    def steps(state: Any, chains: dict[str, Any]) -> Any:
        return jax.lax.scan(lambda s, _: svi.update(s, **chains), state, None, length=num_steps)

    return lambda: jax.block_until_ready(steps(state, chains))


def _note(journal: Journal, method: str, fit: Fit, reference: Any, seed: int, seconds: float) -> list[dict[str, Any]]:
    rows = mixed.compared(fit.summary(), reference)
    for row in rows:
        journal.row("posteriors", method=method, seed=seed, **row)
    off = max(row["off_by_sds"] for row in rows)
    journal.row("fits", method=method, seed=seed, bound=fit.history[-1]["free_energy"], off_by_sds=off, seconds=seconds)
    journal.say(f"{method}, seed {seed}: means off by at most {off:.2f} sds, {seconds:.0f} s")
    return rows
