"""Heart disease at four hospitals: what does each gain by a joint analysis, and are its predicted risks calibrated?

Four ways to predict a hospital's patients by logistic regression: from its own patients alone; by one exchange, in
which the hospitals' own posteriors are multiplied (BCM, one undamped round of PVI); by PVI; and by pooling all rows.
After an undamped round from the prior, prior times factor is what a hospital finds alone, so one fit gives the first
two.

- **Patients**: all 920. Each repetition divides every hospital's patients into five folds; a fold is predicted from the
  other four, so that every patient is predicted once per repetition by fits that have not seen them.
- **Columns**: those that are measured at all four hospitals. `ca`, `thal`, `slope` and `chol` are left out: they are
  missing for 33 % to 66 % of the patients (`chol`: for all Swiss ones). Chest pain and the resting ECG are 0/1 columns
  against "no pain" and "normal". A missing value becomes the mean of the training patients who have one, and a 0/1
  column says that it was missing. Means and spreads are of the training patients of all hospitals, computed from each
  hospital's counts, sums and sums of squares, so no row is shared. A hospital alone uses the same columns,
  so the four ways differ only in whose patients they learn from.
- **Prior**: N(0, 1) on every coefficient. The share of diseased patients goes from 36 % to 93 %, so each hospital has
  its own intercept in addition to the common one (a 0/1 column). A model without these intercepts is fitted too.

Standard errors are over a hospital's patients, each patient's score being the mean over repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cavity.aggregation import Fixed
from cavity.algorithms import PVI
from cavity.core.intervals import DEFAULT_LEVEL, half_width, percent
from cavity.datasets import partition
from cavity.evaluation import metrics
from cavity.fit.run import run
from cavity.models import logistic_regression
from cavity.reporting import plots
from cavity.reporting.plots.style import axes_or_new, colour, marker
from cavity_experiments import sources
from cavity_experiments.runner import Journal, Size
from cavity_experiments.sources.hospitals import HospitalTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = ("age", "sex", "trestbps", "fbs", "thalach", "exang", "oldpeak")
LEVELS = {"cp": (1, 2, 3), "restecg": (1, 2)}  # against 4, no pain, and 0, normal
MODELS = ("a level per hospital", "one level for all")
ALONE, BCM, FEDERATED, POOLED = METHODS = ("own data alone", "BCM", "PVI", "pooled")
NUM_FOLDS, PRIOR_SCALE, NUM_BINS, NUM_WIDE_BINS = 5, 1.0, 5, 10
BAR = 1e-3  # nats per patient

NAMES = {"cleveland": "Cleveland", "hungarian": "Budapest", "switzerland": "Switzerland", "va_long_beach": "Long Beach"}
IN_WORDS = {
    ALONE: "own patients only",
    BCM: "all hospitals, one exchange",
    FEDERATED: "all hospitals, without pooling",
    POOLED: "all data in one place",
}
TITLES = (
    "Does a predicted risk of heart disease mean what it says?",
    "Does it mean what it says, if all hospitals are taken to be alike?",
)
LOOKS = {ALONE: 0, FEDERATED: 1, POOLED: 2, BCM: 3}  # colours and marks, the same above and below


def pvi_heart(journal: Journal, size: Size, seed: int) -> None:
    """Cross-validation, repeated; scores by hospital and method; the picture."""
    num_repetitions = {Size.QUICK: 1, Size.DEFAULT: 20, Size.FULL: 100}[size]
    table = with_levels(sources.heart_disease())
    hospitals = partition.by_column(table.hospital)
    journal.settings(
        data=f"UCI heart disease, all {len(table.y)} patients of {len(hospitals)} hospitals",
        columns=table.columns,
        missing="mean of the training patients who have it, and a 0/1 column; standardised by the training patients",
        splits=f"{NUM_FOLDS} folds within each hospital, {num_repetitions} times",
        model=f"logistic regression, prior N(0, {PRIOR_SCALE:g}^2), full covariance",
        models=MODELS,
        methods="BCM: one undamped round; PVI: synchronous, adaptive damping, to a gap of 1e-6 nats",
        calibration=f"predicted risk in {NUM_BINS} bins of equal count, and in {NUM_WIDE_BINS} of equal width",
    )
    # risks[model, method]: [repetition, patient]
    risks = {(m, w): np.full((num_repetitions, len(table.y)), np.nan) for m in MODELS for w in METHODS}
    worst = dict.fromkeys(MODELS, 0.0)
    for repetition in range(num_repetitions):
        fold = folds(np.random.default_rng((seed, repetition)), hospitals, len(table.y))
        for held_out in range(NUM_FOLDS):
            is_test = fold == held_out
            encoded = sources.imputed(table, ~is_test)
            for model in MODELS:
                found = predicted(encoded, is_test, hospitals, own_level=model == MODELS[0])
                for method, risk in found.items():
                    risks[model, method][repetition, is_test] = risk
                gaps = _gaps(found, table.y[is_test], table.hospital[is_test])
                worst[model] = np.maximum(worst[model], max(gaps))  # a NaN stays
        journal.say(f"repetition {repetition + 1} of {num_repetitions}: largest gap {max(worst.values()):.1e} nats")
    for model in MODELS:
        _record(journal, model, {w: risks[model, w] for w in METHODS}, table.y, hospitals)
    for letter, model in zip("ab", MODELS, strict=True):
        difference = "largest |log likelihood of PVI - pooled|, every fold and hospital, nats per patient"
        name = f"pvi-6{letter} {model}: {difference}"
        journal.check(name, worst[model], "<= 1e-3", None if size is Size.QUICK else worst[model] <= BAR)
    gain = _mean_gain(risks[MODELS[0], FEDERATED], risks[MODELS[0], ALONE], table.y, hospitals)
    name = "pvi-6c log likelihood of PVI - own data alone, mean over hospitals, nats per patient"
    journal.check(name, gain, ">= 0", None if size is Size.QUICK else gain >= 0)
    for name, model, title in zip(("risks", "risks_one_level"), MODELS, TITLES, strict=True):
        of_model = {w: risks[model, w] for w in METHODS}
        journal.figure(name, lambda r=of_model, t=title: picture(r, table.y, hospitals, t))


def with_levels(table: HospitalTable) -> HospitalTable:
    """The columns that are used, those with levels as 0/1 columns; what is missing stays so."""
    raw = dict(zip(table.columns, table.x.T, strict=True))
    columns = {name: raw[name] for name in COLUMNS}
    for name, levels in LEVELS.items():
        for level in levels:
            columns[f"{name}={level}"] = np.where(np.isnan(raw[name]), np.nan, raw[name] == level)
    return replace(table, x=np.column_stack(list(columns.values())), columns=tuple(columns))


def folds(rng: np.random.Generator, hospitals: partition.Partition, num_patients: int) -> np.ndarray:
    """The fold of each patient; every hospital's patients are divided evenly."""
    fold = np.full(num_patients, -1)
    for rows in hospitals.values():
        fold[rng.permutation(rows)] = np.arange(len(rows)) % NUM_FOLDS
    return fold


def predicted(
    table: HospitalTable, is_test: np.ndarray, hospitals: partition.Partition, *, own_level: bool
) -> dict[str, np.ndarray]:
    """The predicted risks of the held-out patients, by each method."""
    x, y, columns = table.x, table.y.astype(float), table.columns
    if own_level:
        x = np.hstack([x, *[(table.hospital == name)[:, None] for name in hospitals]])
        columns = (*columns, *(f"at {name}" for name in hospitals))
    model = logistic_regression(columns, prior_scale=PRIOR_SCALE)
    clients = {name: (x[rows[~is_test[rows]]], y[rows[~is_test[rows]]]) for name, rows in hospitals.items()}
    once = run(PVI(model, damping=Fixed(1.0)), clients, rounds=1)
    posteriors = {
        BCM: once.posterior,
        FEDERATED: run(PVI(model), clients).posterior,
        POOLED: run(PVI(model), {"pooled": (x[~is_test], y[~is_test])}).posterior,
    }

    def risk(posterior: Any, rows: np.ndarray) -> np.ndarray:
        q = jax.tree.map(jnp.asarray, posterior)
        return np.asarray(model.predict(q, x[rows], key=jax.random.key(0)).mean)

    alone = np.zeros(len(y))
    for name, rows in hospitals.items():
        here = rows[is_test[rows]]
        alone[here] = risk(once.server.prior * once.server.entries[name], here)
    return {ALONE: alone[is_test]} | {way: risk(q, np.flatnonzero(is_test)) for way, q in posteriors.items()}


def log_scores(risks: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log probability of each outcome; the last axis is the patients'."""
    return np.log(np.where(y == 1, risks, 1 - risks))


def _gaps(found: Mapping[str, np.ndarray], y: np.ndarray, hospital: np.ndarray) -> list[float]:
    """|log likelihood of PVI - of pooling| at each hospital."""
    difference = log_scores(found[FEDERATED], y) - log_scores(found[POOLED], y)
    return [abs(float(difference[hospital == name].mean())) for name in np.unique(hospital)]


def _mean_gain(risks: np.ndarray, others: np.ndarray, y: np.ndarray, hospitals: partition.Partition) -> float:
    difference = log_scores(risks, y) - log_scores(others, y)
    return float(np.mean([difference[:, rows].mean() for rows in hospitals.values()]))


def mean_and_error(scores: np.ndarray) -> tuple[float, float]:
    """The mean of scores [repetition, patient], and its standard error over patients."""
    by_patient = scores.mean(0)
    return float(by_patient.mean()), float(by_patient.std(ddof=1) / np.sqrt(len(by_patient)))


def _record(
    journal: Journal, model: str, risks: Mapping[str, np.ndarray], y: np.ndarray, hospitals: partition.Partition
) -> None:
    """A row of scores, one of calibration and one of differences to pooling per hospital and method."""
    for name, rows in hospitals.items():
        outcome = y[rows]
        for method in METHODS:
            who = {"model": model, "hospital": name, "method": method}
            risk, pooled = risks[method][:, rows], risks[POOLED][:, rows]
            likelihood, brier = log_scores(risk, outcome), (risk - outcome) ** 2
            wrong = ((risk > 0.5) != outcome).astype(float)
            entries = {"log_likelihood": likelihood, "brier": brier, "error": wrong}
            scores = {}
            for entry, values in entries.items():
                scores[entry], scores[f"{entry}_se"] = mean_and_error(values)
            journal.row("scores", **who, patients=len(rows), **scores)
            differences = {
                "log_likelihood": likelihood - log_scores(pooled, outcome),
                "brier": brier - (pooled - outcome) ** 2,
            }
            compared = {}
            for entry, values in differences.items():
                compared[entry], compared[f"{entry}_se"] = mean_and_error(values)
            if method != POOLED:
                journal.row("differences_to_pooled", **who, **compared)

            def error(r: np.ndarray, num_bins: int, equal_count: bool, outcome: np.ndarray = outcome) -> float:
                return float(metrics.expected_calibration_error(r, outcome, num_bins, equal_count, of_class=1))

            journal.row(
                "calibration",
                **who,
                predicted_share=risk.mean(),
                observed_share=outcome.mean(),
                equal_count_error=np.mean([error(r, NUM_BINS, True) for r in risk]),
                equal_width_error=np.mean([error(r, NUM_WIDE_BINS, False) for r in risk]),
            )


def picture(risks: Mapping[str, np.ndarray], y: np.ndarray, hospitals: partition.Partition, title: str) -> Figure:
    """Above, the calibration of each hospital's risks, every patient predicted once; below, their Brier scores."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6.8), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.2, 1])
    above, below = halves
    panels: Any = above.subplots(1, len(hospitals), sharex=True, sharey=True)
    for axes, (name, rows) in zip(panels, hospitals.items(), strict=True):
        plots.calibration(
            {IN_WORDS[way]: risks[way][0, rows] for way in (ALONE, FEDERATED, POOLED)},
            y[rows],
            num_bins=NUM_BINS,
            rings=IN_WORDS[POOLED],
            x_label="predicted risk of disease",
            y_label="patients with the disease" if axes is panels[0] else "",
            axes=axes,
        )
        axes.set_title(f"{NAMES[name]}: {y[rows].sum()} of {len(rows)} have it", fontsize="medium")
    panels[0].annotate("risk\ntoo low", (0.03, 0.8), fontsize="small", color="#666666")
    panels[0].annotate("risk\ntoo high", (0.64, 0.06), fontsize="small", color="#666666")
    above.suptitle(title, fontweight="bold")
    above.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    left, right = below.subplots(1, 2, sharey=True, width_ratios=[1, 1])
    squares = {way: (risks[way] - y) ** 2 for way in METHODS}
    _by_hospital(left, squares, hospitals, METHODS)
    left.set_xlim(left=0.0)
    left.set_xlabel(
        f"squared distance of predicted risk from the outcome\n(less is better), with {percent(DEFAULT_LEVEL)} interval"
    )
    _by_hospital(right, {way: squares[way] - squares[ALONE] for way in METHODS}, hospitals, METHODS[1:])
    right.axvline(0.0, color=colour(LOOKS[ALONE]), linewidth=1.5)
    right.set_xlabel("the same for the same patients, compared with\nown patients only (left of the line is better)")
    below.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _by_hospital(
    axes: Axes, scores: Mapping[str, np.ndarray], hospitals: partition.Partition, methods: Sequence[str]
) -> None:
    """The mean of each hospital and method, with a central interval over patients."""
    axes_or_new(axes, 5.0, 2.6)
    places = np.arange(len(hospitals), dtype=float)
    for i, method in enumerate(methods):
        means, errors = np.array([mean_and_error(scores[method][:, rows]) for rows in hospitals.values()]).T
        place, which = places + 0.18 * (i - (len(methods) - 1) / 2), LOOKS[method]
        axes.errorbar(
            means, place, xerr=half_width(DEFAULT_LEVEL) * errors, fmt=marker(which), color=colour(which), markersize=5,
            elinewidth=1.6, label=IN_WORDS[method],
        )  # fmt: skip
    axes.set_yticks(places, [NAMES[name] for name in hospitals])
    axes.set_ylim(len(hospitals) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#ececec", linewidth=0.8)
