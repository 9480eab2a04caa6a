"""The demo's study: does rectal indomethacin prevent pancreatitis after ERCP? 602 patients of four hospitals.

A randomised trial (Elmunzer et al., New England Journal of Medicine 366, 2012, 1414-1422), public as `indo_rct` of
the R package medicaldata; its rows come with Cavity (`datasets/demo/README.md` has source and licence). The hospitals
agree on a logistic regression of pancreatitis on treatment, risk score, age and sex, and on units that are fixed
beforehand: no statistic of the data is used to scale them. One of the four hospitals has 3 patients and is left out, so
three hospitals with 599 patients take part.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from cavity.algorithms import PVI
from cavity.core import Distribution
from cavity.core.client_data import split_by_size
from cavity.core.intervals import DEFAULT_LEVEL
from cavity.datasets.partition import by_column
from cavity.evaluation.diagnostics import kl
from cavity.fit.run import Fit, run
from cavity.models import logistic_regression
from cavity.training import Observer, Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = tuple[np.ndarray, np.ndarray]

TREATMENT = "indomethacin"
FEATURES = (TREATMENT, "risk score, per point", "age, per decade", "male")
UNITS = "age in decades from 45 years, risk score in points from 2.5, placebo and female as 0"
AGE_CENTRE, RISK_CENTRE = 45.0, 2.5
PRIOR_SCALE = 2.5  # on every log odds ratio
MIN_ROWS = 10
# the codes of the column `site`, from the documentation of the data set
HOSPITALS = {"1_UM": "Michigan", "2_IU": "Indiana", "3_UK": "Kentucky", "4_Case": "Case Western"}


@dataclass(frozen=True)
class Comparison:
    """The federated fit, the fit of the pooled data, and the fit of the largest hospital alone.

    Attributes:
        federated: fit by PVI over the hospitals that take part.
        pooled: the same model with the same rows at one client.
        alone: the same model with the rows of the largest hospital.
        largest: the name of that hospital.
        history: of the federated fit, with `kl`, KL(federated : pooled) in nats, after each round.
    """

    federated: Fit
    pooled: Fit
    alone: Fit
    largest: str
    history: list[Record]


@dataclass(frozen=True)
class OddsRatio:
    """exp(coefficient): posterior median, central interval, and the probability that it is below 1."""

    median: float
    lower: float
    upper: float
    below_one: float


def indomethacin() -> tuple[dict[str, Rows], tuple[str, ...]]:
    """The trial by hospital, the largest first.

    Returns:
        Hospital -> (x, y), with x of shape [n, 4] in the units of `UNITS` and y = 1 for pancreatitis; and the names
        of the columns of x.
    """
    text = (resources.files("cavity.datasets") / "demo" / "indomethacin.csv").read_text(encoding="utf-8")
    patients = list(csv.DictReader(text.splitlines()))
    x = np.array(
        [
            [
                patient["rx"] == "1_indomethacin",
                float(patient["risk"]) - RISK_CENTRE,
                (float(patient["age"]) - AGE_CENTRE) / 10,
                patient["gender"] == "2_male",
            ]
            for patient in patients
        ],
        float,
    )
    y = np.array([patient["outcome"] == "1_yes" for patient in patients], float)
    parts = by_column([HOSPITALS[patient["site"]] for patient in patients])
    ordered = sorted(parts.items(), key=lambda part: -len(part[1]))
    return {name: (x[rows], y[rows]) for name, rows in ordered}, FEATURES


def admitted() -> tuple[dict[str, Rows], dict[str, int]]:
    """The hospitals that take part.

    Returns:
        Those with at least `MIN_ROWS` patients, and the number of patients of each of the others.
    """
    hospitals, _ = indomethacin()
    return split_by_size(hospitals, MIN_ROWS)


def compare(hospitals: dict[str, Rows], *, seed: int = 0, observers: Sequence[Observer] = ()) -> Comparison:
    """Fit the hospitals together; then, since these data are public, the pooled data and the largest hospital alone.

    Args:
        hospitals: name -> (x, y).
        seed: random seed; the default solver has no randomness.
        observers: called after each round of the federated fit.

    Returns:
        The three fits.
    """
    algorithm = PVI(logistic_regression(FEATURES, prior_scale=PRIOR_SCALE))
    posteriors: list[Distribution] = []
    federated = run(
        algorithm,
        hospitals,
        seed=seed,
        observers=[*observers, lambda record, server: posteriors.append(server.posterior)],
    )
    everything = tuple(np.concatenate(columns) for columns in zip(*hospitals.values(), strict=True))
    pooled = run(algorithm, {"all hospitals": everything}, seed=seed)
    largest = max(hospitals, key=lambda name: len(hospitals[name][1]))
    alone = run(algorithm, {largest: hospitals[largest]}, seed=seed)
    history = [
        {**record, "kl": kl(posterior, pooled.posterior)}
        for record, posterior in zip(federated.history, posteriors, strict=True)
    ]
    return Comparison(federated, pooled, alone, largest, history)


def odds_ratio(fit: Fit, name: str = TREATMENT, level: float = DEFAULT_LEVEL) -> OddsRatio:
    """The odds ratio of one coefficient, from its Gaussian posterior.

    Args:
        fit: the fit.
        name: the coefficient.
        level: the probability that the interval has.

    Returns:
        The odds ratio.
    """
    estimate = fit.summary(level)[name]
    below_one = NormalDist(estimate.mean, estimate.sd).cdf(0.0)
    median, lower, upper = (float(np.exp(value)) for value in (estimate.mean, estimate.lower, estimate.upper))
    return OddsRatio(median, lower, upper, below_one)


def figure(comparison: Comparison, level: float = DEFAULT_LEVEL) -> Figure:
    """The forest plot of all three fits, and the convergence of the federated run.

    Args:
        comparison: the fits.
        level: the probability that each interval has.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from cavity.reporting import plots

    page = Figure(figsize=(11.5, 4.8), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12))
    left, right = page.subplots(1, 2, width_ratios=(1.35, 1))
    summaries = {
        "federated": comparison.federated.summary(level),
        "pooled": comparison.pooled.summary(level),
        f"{comparison.largest} alone": comparison.alone.summary(level),
    }
    plots.forest(summaries, parameters=FEATURES, scale="log odds ratio of pancreatitis", ratio="odds ratio", axes=left)
    left.set_title("Estimates of the hospitals together", loc="left", fontweight="bold", y=1.15)
    metrics = {"gap": "largest gap", "kl": "KL(federated : pooled)"}
    plots.convergence(comparison.history, metrics, axes=right)
    right.set_title("Convergence", loc="left", fontweight="bold", y=1.15)
    return page
