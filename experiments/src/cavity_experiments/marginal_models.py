"""Mixed models by PVI on the marginal likelihood: rounds to the pooled fit, and how far that is from the posterior.

Clients integrate their random effects out, so that their entries are Gaussians of the shared parameters. The pooled
fit is that of one client with all rows. Its own error is measured against the posterior by importance weights
(`Fit.verdict`), whose Pareto k is reported; where they give no corrected values, and in full size for all studies,
against NUTS on pooled rows. Then models by formula against NUTS, the exchanges that SFVI needs, and the coverage of
intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from cavity.algorithms import PVI
from cavity.evaluation import diagnostics
from cavity.evaluation.verdict import LIMIT
from cavity.fit.run import Fit, run
from cavity.models import numpyro_model
from cavity.models.mixed.marginal import MarginalModel
from cavity_experiments import mixed_models as mixed
from cavity_experiments import sources
from cavity_experiments.mixed_coverage import coverage
from cavity_experiments.mixed_exchanges import exchanges
from cavity_experiments.mixed_formulas import mixed_formulas
from cavity_experiments.mixed_formulas import studies as formula_studies
from cavity_experiments.mixed_models import sample
from cavity_experiments.runner import Journal, Size

NEAR = 1e-2  # nats: KL to the pooled fit
ROUNDS = {2: 3, 10: 4, 40: 6}  # in which it must be reached, by the number of clients
MEANS, SDS = 0.07, 0.04  # sds, and relative: of all parameters of six cities and toenail
FIXED_MEANS, FIXED_SDS = 0.1, 0.07  # of fixed effects elsewhere
MOST_ROUNDS = 10


@dataclass(frozen=True)
class Study:
    """A data set with its model.

    Attributes:
        function: the model in NumPyro.
        columns: all rows.
        unit: the column of the units; None where every row is one.
        num_units: the argument that takes their number.
        fixed: sites of fixed effects, which a Gaussian must fit.
    """

    function: Callable[..., None]
    columns: mixed.Columns
    unit: str | None
    num_units: str | None
    fixed: tuple[str, ...]

    def clients(self, count: int, seed: int) -> dict[str, mixed.Columns]:
        """The units shared out at random."""
        first = next(iter(self.columns.values()))
        of_row = np.arange(len(first)) if self.unit is None else self.columns[self.unit]
        units = np.random.default_rng(seed).permutation(np.unique(of_row))
        parts = {f"client {i}": np.isin(of_row, part) for i, part in enumerate(np.array_split(units, count))}
        return {name: {key: column[rows] for key, column in self.columns.items()} for name, rows in parts.items()}

    def algorithm(self) -> PVI:
        """PVI with its defaults."""
        example = {key: column[:40] for key, column in self.columns.items()}
        return PVI(numpyro_model(self.function, example, unit=self.unit, num_units=self.num_units))


def visits(patient: Any, treated: Any, time: Any, num_patients: int, y: Any = None) -> None:
    """Toenail infections: logistic with an intercept per patient, whose sd is about 4."""
    beta = sample("beta", dist.Normal(0, 10).expand([4]).to_event(1))
    log_sd = sample("log_sd", dist.Normal(0, 10))
    with numpyro.plate("patients", num_patients):
        b = sample("b", dist.Normal(0, 1))
    logits = beta[0] + beta[1] * treated + beta[2] * time + beta[3] * treated * time + jnp.exp(log_sd) * b[patient]
    with numpyro.plate("visits", len(time)):
        sample("y", dist.Bernoulli(logits=logits), obs=y)


def radon_slopes(county: Any, floor: Any, num_counties: int, log_radon: Any = None) -> None:
    """Radon with an intercept and a slope per county, uncorrelated."""
    mu, slope = sample("mu", dist.Normal(0, 5)), sample("slope", dist.Normal(0, 5))
    between, of_slope = sample("between", dist.HalfNormal(2)), sample("of_slope", dist.HalfNormal(2))
    within = sample("within", dist.HalfNormal(2))
    with numpyro.plate("counties", num_counties):
        b = sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    level, tilt = mu + between * b[:, 0], slope + of_slope * b[:, 1]
    with numpyro.plate("houses", len(floor)):
        sample("y", dist.Normal(level[county] + tilt[county] * floor, within), obs=log_radon)


def studies() -> dict[str, Study]:
    """All data sets with their models."""
    cities, nails = sources.six_cities(), sources.toenail()
    houses, women = sources.radon(), sources.contraception()
    county = np.unique(houses.county, return_inverse=True)[1].astype(np.int32)
    district = np.unique(women.district, return_inverse=True)[1].astype(np.int32)
    radon = {"county": county, "floor": houses.floor, "log_radon": houses.log_radon}
    wheezing = {"smoke": cities.smoke, "age": cities.age, "wheeze": cities.wheeze}
    infections = {"patient": nails.patient, "treated": nails.treated, "time": nails.time, "y": nails.infected}
    x = np.column_stack([women.urban, women.age / 10, (women.age / 10) ** 2, women.children])
    use = {"district": district, "x": x, "use": women.use}
    return {
        "six cities": Study(mixed.wheezing, wheezing, None, None, ("beta",)),
        "toenail": Study(visits, infections, "patient", "num_patients", ("beta",)),
        "radon, intercepts": Study(mixed.radon_levels, radon, "county", "num_counties", ("mu", "slope")),
        "radon, slopes": Study(radon_slopes, radon, "county", "num_counties", ("mu", "slope")),
        "contraception": Study(mixed.contraceptive_use, use, "district", "num_districts", ("intercept", "beta")),
    }


def marginal_models(journal: Journal, size: Size, seed: int) -> None:
    """Rounds by the number of clients, and accuracy of the pooled fit; the quick form has toenail over two clients."""
    quick = size is Size.QUICK
    with jax.enable_x64(True):
        every = studies()
        journal.settings(
            models="random intercepts or slopes, integrated out at the clients",
            priors="N(0, 10^2) or N(0, 5^2) on fixed effects; N(0, 10^2) on log sds, or half-normal on sds",
            seed=seed,
        )
        for name in ("toenail",) if quick else ("six cities", "toenail"):
            study = every[name]
            pooled = _pooled(journal, name, study, MEANS, SDS, size, seed, whole=True)
            for count in (2,) if quick else ROUNDS:
                _rounds(journal, name, study, pooled, count, seed)
            if not quick:
                exchanges(journal, name, pooled, study.algorithm(), study.clients(10, seed), size, seed)
        if quick:
            return
        for name in ("radon, intercepts", "radon, slopes", "contraception"):
            pooled = _pooled(journal, name, every[name], FIXED_MEANS, FIXED_SDS, size, seed, whole=False)
            _rounds(journal, name, every[name], pooled, 10, seed, within=MOST_ROUNDS)
        mixed_formulas(journal, size, seed, tuple(formula_studies()))
        coverage(journal, size, seed)


def _pooled(
    journal: Journal, name: str, study: Study, means: float, sds: float, size: Size, seed: int, *, whole: bool
) -> Fit:
    """The fit of all rows at one client, and its errors by importance weights, or by NUTS where these fail."""
    fit = run(study.algorithm(), {"all": study.columns}, tolerance=1e-9)
    verdict, sd = fit.verdict, np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
    known = bool(verdict.means) and verdict.pareto_k < LIMIT
    off, ratio = {}, {}
    names = zip(_in_order(fit), fit.algorithm.model.parameter_names, strict=True)
    for (at, key), mean, own in zip(names, np.asarray(fit.posterior.mean), sd, strict=True):
        off[at] = abs(mean - verdict.means[key]) / verdict.sds[key] if known else float("nan")
        ratio[at] = abs(own / verdict.sds[key] - 1) if known else float("nan")
        journal.row(
            "accuracy", study=name, parameter=at, mean=float(mean), sd=float(own), off=off[at], sd_off=ratio[at]
        )
    journal.say(f"{name}: {verdict}")
    journal.row("verdicts", study=name, verdict=verdict.verdict, pareto_k=verdict.pareto_k, rounds=len(fit.history))
    if size is Size.FULL or not known:
        rows = _against_nuts(journal, name, study, fit, 2000 if size is Size.FULL else 1000, seed)
        if not known:  # fixed effects have the same scale in both; others are compared on their natural scale
            off = {row["parameter"]: row["off_by_sds"] for row in rows}
            ratio = {row["parameter"]: abs(row["sd_ratio"] - 1) for row in rows}
            rough = max(max(off.values()), max(ratio.values()))
            said = verdict.verdict not in ("exact for practical purposes", "good")
            journal.check(
                f"mixed {name}: the verdict says where the Gaussian is rough",
                rough,
                "not good where a parameter is 10 % off",
                said or rough < 0.1,
            )
    judged = [at for at in off if whole or at.split("[")[0] in study.fixed]
    which = "all parameters" if whole else "fixed effects"
    mean_off, sd_off = max(off[at] for at in judged), max(ratio[at] for at in judged)
    journal.check(f"mixed {name}: means of {which}", mean_off, f"< {means} sd", mean_off < means)
    journal.check(f"mixed {name}: sds of {which}", sd_off, f"< {sds:.0%}", sd_off < sds)
    return fit


def _in_order(fit: Fit) -> list[str]:
    """A name per entry of the posterior, in its order: that in which the model's function has its sites."""
    model = fit.algorithm.model
    assert isinstance(model, MarginalModel)
    found = []
    for name, value in model.constrain(jnp.asarray(fit.posterior.mean)).items():
        found += [name] if np.ndim(value) == 0 else [f"{name}[{i}]" for i in range(np.size(value))]
    return found


def _rounds(
    journal: Journal, name: str, study: Study, pooled: Fit, count: int, seed: int, within: int | None = None
) -> None:
    """KL to the pooled fit by round."""
    rounds = ROUNDS[count] if within is None else within
    kl = partial(_kl_to, pooled)
    fit = run(study.algorithm(), study.clients(count, seed), rounds=rounds, tolerance=0.0, metrics={"kl": kl})
    by_round = [float(record["kl"]) for record in fit.history]
    for i, value in enumerate(by_round, 1):
        journal.row("rounds", study=name, clients=count, round=i, kl=value)
    journal.say(f"{name}, {count} clients: KL by round " + ", ".join(f"{value:.1e}" for value in by_round))
    journal.check(
        f"mixed {name}, {count} clients", by_round[-1], f"KL < {NEAR} within {rounds} rounds", min(by_round) < NEAR
    )


def _kl_to(pooled: Fit, posterior: Any) -> float:
    return diagnostics.kl(posterior, pooled.posterior)


def _against_nuts(
    journal: Journal, name: str, study: Study, pooled: Fit, num_draws: int, seed: int
) -> list[dict[str, Any]]:
    """The summary of the pooled fit beside NUTS, on the model's own scale."""
    columns: Mapping[str, Any] = study.columns
    if study.num_units is not None and study.unit is not None:
        columns = {**columns, study.num_units: len(np.unique(study.columns[study.unit]))}
    reference, r_hat, ess = mixed.by_nuts(study.function, columns, num_draws=num_draws, seed=seed)
    rows = mixed.compared(pooled.summary(), reference)
    for row in rows:
        journal.row("nuts", study=name, r_hat=r_hat, ess=ess, **row)
    journal.check(f"mixed {name}: R-hat of NUTS", r_hat, "< 1.02", r_hat < 1.02)
    return rows
