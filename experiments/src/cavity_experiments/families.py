"""The families of outcomes: federated = pooled, and how far that is from the posterior by NUTS.

Each part is a function of the journal, the size and the seed; `PARTS` lists them. The accuracy of a family is that of
the pooled fit with default priors, in units of the posterior sds of the parameters that it computes with. Where a
posterior is not near Gaussian, `Fit.verdict` has to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from cavity.evaluation import diagnostics
from cavity.evaluation.verdict import EXACT, GOOD
from cavity.fit.run import Fit
from cavity.models.glm.regression import Regression
from cavity.study.regression import regression
from cavity_experiments import family_references, one_shot, sources
from cavity_experiments.families_heterogeneity import heterogeneity
from cavity_experiments.families_survival import survival
from cavity_experiments.runner import Journal, Size

MEANS, SDS = 0.05, 0.05  # of a posterior sd, and relative
NEAR, ROUNDS = 1e-6, 6  # nats from the pooled fit, and rounds in which trauma reaches it
Frames = dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """A data set with its family.

    Attributes:
        frames: client -> columns.
        formula: of the regression.
        family: of the outcome.
        settings: further arguments of `cavity.regression`.
        quick: whether the quick size has it.
        full: whether only the full size has it.
    """

    frames: Frames
    formula: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    full: bool = False

    def fit(self, frames: Frames, **options: Any) -> Fit:
        """The regression over these clients."""
        return regression(self.formula, frames, family=self.family, **self.settings, **options)

    @property
    def pooled(self) -> Frames:
        """All rows at one client."""
        first = next(iter(self.frames.values()))
        return {"all": {name: np.concatenate([own[name] for own in self.frames.values()]) for name in first}}


def _simulated(seed: int, num_clients: int, num_rows: int) -> Callable[[Callable[..., dict[str, np.ndarray]]], Frames]:
    """Clients of different sizes, with an age and a treatment."""

    def of(outcome: Callable[..., dict[str, np.ndarray]]) -> Frames:
        rng = np.random.default_rng(seed)
        found = {}
        for i in range(num_clients):
            size = num_rows * (i + 1)
            age, drug = rng.normal(60, 12, size), rng.integers(0, 2, size).astype(float)
            f = 0.02 * (age - 60) - 0.4 * drug
            found[f"client {i}"] = {"age": age, "drug": drug, **outcome(rng, f)}
        return found

    return of


def _deaths(rng: np.random.Generator, f: np.ndarray) -> dict[str, np.ndarray]:
    patients = rng.integers(1, 20, len(f))
    return {"deaths": rng.binomial(patients, 1 / (1 + np.exp(1 - f))), "patients": patients}


def cases(seed: int) -> dict[str, Case]:
    """All data sets with their families."""
    crabs, covid = sources.crabs(), sources.long_covid()
    right = "covid_vaccination + X1 + X2 + X3 + X4 + X5"
    some = _simulated(seed, 4, 60)
    costs = some(lambda rng, f: {"cost": 12_000 * np.exp(f) * rng.gamma(2.0, 0.5, len(f))})
    events = some(lambda rng, f: {"died": (rng.uniform(size=len(f)) < -np.expm1(-np.exp(f - 0.7))).astype(float)})
    noisy = some(lambda rng, f: {"stay": 12_000 + 4_000 * f + 900 * rng.standard_t(3, len(f))})
    counts = some(lambda rng, f: {"falls": rng.poisson(np.exp(f + 1) * rng.gamma(2.0, 0.5, len(f)))})
    grade = some(lambda rng, f: {"grade": np.digitize(f + rng.logistic(size=len(f)), [-1.0, 0.3, 1.5]).astype(float)})
    age = "age + drug"
    return {
        "crabs, negative binomial": Case(crabs, "satellites ~ width + weight", "negative-binomial"),
        "long covid, ordinal": Case(covid, f"PASC_features ~ {right}", "ordinal"),
        "long covid, ordinal probit": Case(covid, f"PASC_features ~ {right}", "ordinal", {"link": "probit"}, full=True),
        "long covid, count": Case(covid, f"PASC_features ~ {right}", "poisson"),
        "costs near 12,000, gamma": Case(costs, f"cost ~ {age}", "gamma"),
        "binomial with trials": Case(some(_deaths), f"deaths | trials(patients) ~ {age}", "binomial"),
        "cloglog": Case(events, f"died ~ {age}", "bernoulli", {"link": "cloglog"}, quick=True),
        "probit": Case(events, f"died ~ {age}", "bernoulli", {"link": "probit"}),
        "student t": Case(noisy, f"stay ~ {age}", "student-t"),
        "student t, learned df": Case(noisy, f"stay ~ {age}", "student-t", {"df": "learned"}),
        "falls, negative binomial": Case(counts, f"falls ~ {age}", "negative-binomial"),
        "grades, ordinal": Case(grade, f"grade ~ {age}", "ordinal"),
    }


def accuracy(journal: Journal, size: Size, seed: int) -> None:
    """Rounds to the pooled fit, and its distance from NUTS, of every family."""
    num_draws = {Size.QUICK: 1000, Size.DEFAULT: 2000, Size.FULL: 10_000}[size]
    for name, case in cases(seed).items():
        if size is Size.FULL or (case.quick if size is Size.QUICK else not case.full):
            pooled = _rounds(journal, name, case)
            _against_nuts(journal, name, case, pooled, num_draws, seed)


def _rounds(journal: Journal, name: str, case: Case) -> Fit:
    """The pooled fit, after the distance to it of the converged federated fit."""
    pooled = case.fit(case.pooled, tolerance=1e-12)
    fit = case.fit(case.frames, tolerance=1e-9)
    kl, rounds = float(diagnostics.kl(fit.posterior, pooled.posterior)), len(fit.history)
    journal.row("rounds", study=name, clients=len(case.frames), rounds=rounds, kl=kl)
    journal.say(f"{name}: KL to the pooled fit {kl:.1e} after {rounds} rounds")
    journal.check(f"families {name}: federated = pooled", kl, f"KL < {NEAR:g} at the end", kl < NEAR)
    return pooled


def _against_nuts(journal: Journal, name: str, case: Case, pooled: Fit, num_draws: int, seed: int) -> None:
    """Means and sds beside NUTS; where they differ, the verdict must say so."""
    model = pooled.algorithm.model
    assert isinstance(model, Regression)
    x, y = model.prepare(case.pooled["all"])
    draws, r_hat, ess = family_references.nuts_draws(model, x, y, num_draws=num_draws, seed=seed)
    mean, sd = np.asarray(pooled.posterior.mean), np.sqrt(np.diag(np.asarray(pooled.posterior.covariance)))
    off, ratio = np.abs(mean - draws.mean(0)) / draws.std(0), np.abs(sd / draws.std(0) - 1)
    for i, parameter in enumerate(model.parameter_names):
        journal.row(
            "accuracy", study=name, parameter=parameter, mean=mean[i], sd=sd[i], off=off[i], sd_off=ratio[i], ess=ess
        )
    verdict = pooled.verdict
    near_gaussian = verdict.verdict in (EXACT, GOOD)
    journal.row("verdicts", study=name, verdict=verdict.verdict, mean_error=verdict.mean_error, r_hat=r_hat, ess=ess)
    journal.say(
        f"{name}: means within {off.max():.3f} sd and sds within {ratio.max():.1%} of NUTS "
        f"(R-hat {r_hat:.3f}, ESS {ess:,.0f}); verdict {verdict.verdict}"
    )
    instead = "" if near_gaussian else f", or the verdict says so (it is {verdict.verdict!r})"
    journal.check(
        f"families {name}: means", off.max(), f"< {MEANS} sd{instead}", off.max() < MEANS or not near_gaussian
    )
    journal.check(f"families {name}: sds", ratio.max(), f"< {SDS:.0%}{instead}", ratio.max() < SDS or not near_gaussian)


def trauma(journal: Journal, size: Size, seed: int) -> None:
    """Deaths at three hospitals, beside one-shot combinations of the hospitals' own fits.

    Columns are scaled by pooled mean and sd as in BFI's vignette, and the prior of every coefficient is N(0, 10^2).
    """
    frames = one_shot.standardised(sources.trauma(), ("age", "ISS", "GCS"))
    case = Case(
        frames,
        "mortality ~ sex + age + ISS + GCS",
        "bernoulli",
        {"scaling": "none", "prior_scale": 10.0, "intercept_scale": 10.0},
    )
    pooled = case.fit(case.pooled, tolerance=1e-14)
    fit = case.fit(case.frames, rounds=ROUNDS, tolerance=0.0)
    kl = float(diagnostics.kl(fit.posterior, pooled.posterior))
    journal.say(f"trauma: KL to the pooled fit after {ROUNDS} rounds {kl:.1e}")
    journal.check("families trauma: federated = pooled", kl, f"KL < {NEAR:g} within {ROUNDS} rounds", kl < NEAR)
    rows = {name: one_shot.design(own, ("sex", "age", "ISS", "GCS"), "mortality") for name, own in frames.items()}
    compared = one_shot.compare(rows, precision=0.01)
    for method, off in compared.items():
        for parameter, value in zip(("intercept", "sex", "age", "ISS", "GCS"), off.tolist(), strict=True):
            journal.row("one shot", method=method, parameter=parameter, off=value)
    bfi, meta = abs(compared["BFI"][-1]), float(np.abs(compared["meta-analysis"]).max())
    journal.say(f"trauma: BFI is {bfi:.2f} posterior sds off for GCS; meta-analysis {meta:.2f} for one coefficient")
    journal.check("families trauma: BFI, GCS", bfi, "1.10 posterior sds off, as R's BFI 3.1", abs(bfi - 1.10) < 0.01)
    journal.check("families trauma: meta-analysis", meta, "0.8 posterior sds off", abs(meta - 0.8) < 0.03)


Part = Callable[[Journal, Size, int], None]
PARTS: tuple[Part, ...] = (accuracy, trauma, survival, heterogeneity)


def families(journal: Journal, size: Size, seed: int) -> None:
    """All parts; quick has one of the families beside NUTS, and fewer draws, rows and simulated studies."""
    journal.settings(
        priors="the defaults of cavity.regression: N(0, 2.5^2) on slopes of scaled columns, N(0, 10^2) on intercepts",
        reference="NUTS on all rows, likelihoods by NumPyro's distributions",
        seed=seed,
    )
    with jax.enable_x64(True):
        for part in PARTS:
            part(journal, size, seed)
