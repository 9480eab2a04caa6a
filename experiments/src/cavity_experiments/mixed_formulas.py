"""Mixed models by formula, over clients, against NUTS on the joint density of all rows.

Seizures (Poisson, an intercept and a slope per patient), immunisations (mothers in communities), and hospital stays
with an effect of each client, where three groups leave the sd of the effect skewed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cavity.fit.run import Fit
from cavity.models.mixed.grouped_regression import GroupedRegression
from cavity.study.regression import regression
from cavity_experiments import sources
from cavity_experiments.joint_nuts import by_nuts, latent_model
from cavity_experiments.runner import Journal, Size

MEANS, SDS, MOST_ROUNDS = 0.1, 0.07, 10  # of fixed effects: posterior sds, relative; rounds


@dataclass(frozen=True)
class FormulaStudy:
    """A data set with a formula.

    Attributes:
        formula: with its group terms.
        family: of the outcome.
        columns: all rows.
        unit: the column by which rows are shared out: rows of one value stay together.
        num_clients: at most.
        few_groups: the sd between few groups is skewed, and with it the intercept; so slopes alone are judged, and
            rounds are reported.
    """

    formula: str
    family: str
    columns: sources.Columns
    unit: str
    num_clients: int
    few_groups: bool = False

    def clients(self, seed: int) -> dict[str, sources.Columns]:
        """The units shared out at random."""
        units = np.random.default_rng(seed).permutation(np.unique(self.columns[self.unit]))
        shares = {f"client {i}": part for i, part in enumerate(np.array_split(units, self.num_clients))}
        return {
            name: {key: column[np.isin(self.columns[self.unit], part)] for key, column in self.columns.items()}
            for name, part in shares.items()
        }


def studies() -> dict[str, FormulaStudy]:
    """All data sets with their formulas."""
    children = "immun ~ kid2p + mom25p + ord + ethn + momEd + husEd + momWork + rural + pcInd81"
    return {
        "epilepsy": FormulaStudy(
            "y ~ lbase * trt + lage + V4 + (period | subject)", "poisson", sources.epilepsy(), "subject", 10
        ),
        "immunisation": FormulaStudy(
            f"{children} + (1 | comm) + (1 | mom)", "bernoulli", sources.guatemala(), "comm", 10
        ),
        "hospital stays": FormulaStudy(
            "los ~ age + sex + lab + (1 | client)", "gaussian", sources.length_of_stay(), "site", 3, few_groups=True
        ),
    }


def formula_fit(study: FormulaStudy, seed: int) -> Fit:
    """The fit with default settings."""
    return regression(study.formula, study.clients(seed), family=study.family, seed=seed)


def mixed_formulas(journal: Journal, size: Size, seed: int, names: tuple[str, ...]) -> None:
    """Fit each study, and compare it with NUTS."""
    for name in names:
        study = studies()[name]
        fit = formula_fit(study, seed)
        reference = by_nuts(fit, num_draws=2000 if size is Size.FULL else 1000, seed=seed)
        rows = compare(fit, reference.computed, reference.values)
        for row in rows:
            journal.row("formulas", study=name, r_hat=reference.r_hat, ess=reference.ess, **row)
        fixed = [row for row in rows if row["fixed"] and not (study.few_groups and row["parameter"] == "intercept")]
        which = "slopes" if study.few_groups else "fixed effects"
        means, sds = max(row["off"] for row in fixed), max(row["sd_off"] for row in fixed)
        journal.say(f"{name}: {len(fit.history)} rounds, {fit.verdict}; R-hat of NUTS {reference.r_hat:.3f}")
        journal.row(
            "verdicts", study=name, verdict=fit.verdict.verdict, pareto_k=fit.verdict.pareto_k, rounds=len(fit.history)
        )
        journal.check(f"mixed {name}: R-hat of NUTS", reference.r_hat, "< 1.02", reference.r_hat < 1.02)
        few = None if study.few_groups else len(fit.history) <= MOST_ROUNDS
        journal.check(f"mixed {name}: rounds", len(fit.history), f"<= {MOST_ROUNDS}", few)
        journal.check(f"mixed {name}: means of {which}", means, f"< {MEANS} sd", means < MEANS)
        journal.check(f"mixed {name}: sds of {which}", sds, f"< {SDS:.0%}", sds < SDS)
        rough = max((row["off"] > 0.1 or row["sd_off"] > 0.1) for row in rows)
        journal.check(
            f"mixed {name}: the verdict says where the Gaussian is rough",
            float(fit.verdict.verdict in ("exact for practical purposes", "good")),
            "not good where a parameter is 10 % off",
            not rough or fit.verdict.verdict not in ("exact for practical purposes", "good"),
        )


def compare(fit: Fit, computed: np.ndarray, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Each shared parameter of the Gaussian beside the reference, on its own scale, and its reported value."""
    names = fit.algorithm.model.parameter_names
    model = latent_model(fit)
    assert isinstance(model, GroupedRegression)
    num_fixed = len(model.fixed_names)
    mean, sd = np.asarray(fit.posterior.mean), np.sqrt(np.diag(np.asarray(fit.posterior.covariance)))
    theirs, spread = computed.mean(0), computed.std(0)
    summary = fit.summary()
    return [
        {
            "parameter": name,
            "fixed": i < num_fixed,
            "mean": summary[name].mean,
            "sd": summary[name].sd,
            "nuts_mean": float(values[name].mean()),
            "nuts_sd": float(values[name].std()),
            "off": float(abs(mean[i] - theirs[i]) / spread[i]),
            "sd_off": float(abs(sd[i] / spread[i] - 1)),
        }
        for i, name in enumerate(names)
    ]
