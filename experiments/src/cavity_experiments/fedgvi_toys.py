"""FedGVI's small experiments (Mildner et al., 2025, sections 5.1 to 5.3): clutter, influence, a 2-D classifier.

Parameters of losses are fixed beforehand for the first two. For the classifier, beta is chosen by cross-validation at
the clients. All draws depend on the seed; those on which the settings were tried out are others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cavity import losses
from cavity.aggregation import Fixed
from cavity.algorithms import PVI, FedGVI
from cavity.datasets import partition
from cavity.distributions import DiagonalGaussian
from cavity.divergences import FisherRao, Renyi
from cavity.evaluation.selection import choose
from cavity.fit.run import run
from cavity.models import logistic_regression, normal_location
from cavity.reporting import plots
from cavity_experiments.runner import Journal, Size

NOT_ROBUST = "likelihood (PVI)"
CLUTTER_CLIENTS, CLUTTER_ROWS, SHARE_OF_CLUTTER = 5, 100, 0.25
INFLUENCE_CLIENTS, INFLUENCE_ROWS = 7, 99
POSITIONS = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0])
PLANE_CLIENTS, PLANE_ROUNDS, PLANE_PRIOR_SCALE, ALPHA = 5, 20, 10.0, 1.5
BETAS = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)


def fedgvi_toys(journal: Journal, size: Size, seed: int) -> None:
    """All three."""
    num_seeds, num_planes = {Size.QUICK: (3, 2), Size.DEFAULT: (20, 10), Size.FULL: (100, 30)}[size]
    journal.settings(
        losses="beta 0.5, gamma 1.5, score matching with widths 2 (squared exponential) and 1 (inverse multi-quadric)",
        clutter=f"{CLUTTER_ROWS} rows, {CLUTTER_CLIENTS} clients, {num_seeds} seeds, prior N(0, 1)",
        influence=f"{INFLUENCE_ROWS} rows of Student t(4) and one outlier, {INFLUENCE_CLIENTS} clients, prior N(0, 1)",
        plane=f"100 rows and 6 outliers, {PLANE_CLIENTS} clients, {PLANE_ROUNDS} rounds, {num_planes} seeds; mean "
        f"field, prior variance {PLANE_PRIOR_SCALE**2:g}; beta from {BETAS} by 5 folds, Renyi {ALPHA}",
    )
    judged = size is not Size.QUICK
    _clutter(journal, seed, num_seeds, judged)
    _influence(journal, seed, judged)
    _plane(journal, seed, num_planes, judged)


def location_methods(num_clients: int) -> dict[str, Any]:
    """For the location of unit-variance normal rows."""
    model = normal_location(prior_scale=1.0)
    pool = Fixed(1 / num_clients)  # the weights depend on the cavity, so it should change slowly
    return {
        NOT_ROBUST: PVI(model),
        "beta 0.5": FedGVI(model, losses.Beta(0.5)),
        "gamma 1.5": FedGVI(model, losses.Gamma(1.5)),
        "score, SE": FedGVI(model, losses.ScoreMatching(losses.SquaredExponential(2.0)), damping=pool),
        "score, IMQ": FedGVI(model, losses.ScoreMatching(losses.InverseMultiQuadric(1.0)), damping=pool),
    }


def clutter(rng: np.random.Generator, share: float, num_rows: int = CLUTTER_ROWS) -> tuple[float, np.ndarray]:
    """The location of the inliers and the rows: (1 - share) N(theta - 2, 1) + share N(theta + 3, 0.5^2)."""
    theta = 0.5 * rng.normal()
    noise = rng.normal(size=num_rows)
    is_clutter = rng.random(num_rows) < share
    return theta - 2.0, np.where(is_clutter, theta + 3.0 + 0.5 * noise, theta - 2.0 + noise)


def _clutter(journal: Journal, seed: int, num_seeds: int, judged: bool) -> None:
    methods, densities = location_methods(CLUTTER_CLIENTS), {}
    for share in (SHARE_OF_CLUTTER, 0.0):
        misses = {name: [] for name in methods}
        for index in range(num_seeds):
            rng = np.random.default_rng((seed, 51, index))
            target, rows = clutter(rng, share)
            clients = partition.select(rows, partition.homogeneous(rng, len(rows), CLUTTER_CLIENTS))
            for name, method in methods.items():
                fit = run(method, clients, rounds=100, tolerance=1e-8)
                misses[name].append(abs(float(fit.posterior.mean[0]) - target))
                if share and index == 0:
                    densities[name] = _density(fit.posterior)
            if share and index == 0:
                _draw_clutter(journal, rows, target, densities)
        means = {name: float(np.mean(miss)) for name, miss in misses.items()}
        for name, miss in misses.items():
            journal.row("clutter", share=share, method=name, mean_miss=means[name], largest_miss=float(np.max(miss)))
        journal.say(f"clutter {share:.0%}: " + ", ".join(f"{name} {miss:.2f}" for name, miss in means.items()))
        robust = max(miss for name, miss in means.items() if name != NOT_ROBUST)
        if share:
            _check(
                journal,
                judged,
                "fedgvi-4a clutter: largest mean miss of a robust loss",
                robust,
                "<= 0.25",
                robust <= 0.25,
            )
            _check(journal, judged, "fedgvi-4b clutter: mean miss of the likelihood", means[NOT_ROBUST], ">= 0.8",
                   means[NOT_ROBUST] >= 0.8)  # fmt: skip
        else:
            worst = max(means.values())
            _check(journal, judged, "fedgvi-4c no clutter: largest mean miss", worst, "<= 0.2", worst <= 0.2)


GRID = np.linspace(-5.0, 5.0, 801)


def _density(posterior: Any) -> np.ndarray:
    """Of the location, on the grid."""
    mean, variance = float(posterior.mean[0]), float(posterior.variance[0])
    return np.exp(-0.5 * (GRID - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)


def _draw_clutter(journal: Journal, rows: np.ndarray, target: float, densities: dict[str, np.ndarray]) -> None:
    def draw() -> Any:
        figure = plots.curves(GRID, densities, x_label="location", y_label="posterior density", markers=False)
        figure.axes[0].hist(rows, bins=40, density=True, color="#d9d9d9", zorder=0)
        figure.axes[0].axvline(target, color="#8c8c8c", linestyle="--", linewidth=1)
        return figure

    journal.figure("clutter", draw)


def _influence(journal: Journal, seed: int, judged: bool) -> None:
    rng = np.random.default_rng((seed, 52))
    rows = rng.standard_t(4, size=INFLUENCE_ROWS)
    parts = partition.homogeneous(rng, INFLUENCE_ROWS, INFLUENCE_CLIENTS)
    outlier_at = next(iter(parts))
    distances = {}
    for name, method in location_methods(INFLUENCE_CLIENTS).items():
        posteriors = []
        for position in POSITIONS:
            clients = partition.select(rows, parts)
            clients[outlier_at] = np.append(clients[outlier_at], position)
            posteriors.append(run(method, clients, rounds=200, tolerance=1e-10).posterior)
        normals = [DiagonalGaussian.from_moments(q.mean, q.variance) for q in posteriors]
        distances[name] = np.array([float(FisherRao()(q, normals[0])) for q in normals])
        journal.row("influence", method=name, position=POSITIONS, fisher_rao=distances[name])
        journal.say(f"influence of an outlier at 1,000: {name} {distances[name][-1]:.3f}")
    robust = max(float(np.max(d)) for name, d in distances.items() if name != NOT_ROBUST)
    likelihood = distances[NOT_ROBUST]
    growth = float(likelihood[-1] / likelihood[POSITIONS == 10.0][0])
    _check(journal, judged, "fedgvi-5a largest influence under a robust loss", robust, "< 1", robust < 1)
    _check(journal, judged, "fedgvi-5b likelihood: influence at 1,000 over that at 10", growth, ">= 3", growth >= 3)
    journal.figure(
        "influence",
        lambda: plots.curves(
            POSITIONS, distances, x_label="position of the outlier", y_label="Fisher-Rao distance", x_log=True
        ),
    )


def plane(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, classes, and which rows are outliers: two clouds of 50, and 6 rows of class 0 beside class 1."""
    x = np.concatenate(
        [
            rng.multivariate_normal([3.0, 4.0], [[1.0, 0.35], [0.35, 0.75]], 50),
            rng.multivariate_normal([0.0, 0.0], [[0.8, -0.4], [-0.4, 1.0]], 50),
            rng.multivariate_normal([1.0, 5.0], [[0.15, 0.1], [0.1, 0.15]], 6),
        ]
    )
    return x, np.repeat([1.0, 0.0, 0.0], [50, 50, 6]), np.arange(106) >= 100


def angle(fit: Any, reference: Any) -> float:
    """Between the 0.5 boundaries of two classifiers, in degrees."""
    ours, theirs = np.asarray(fit.posterior.mean)[1:], np.asarray(reference.posterior.mean)[1:]
    cosine = ours @ theirs / (np.linalg.norm(ours) * np.linalg.norm(theirs))
    return float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))


def _plane(journal: Journal, seed: int, num_seeds: int, judged: bool) -> None:
    model = logistic_regression(2, prior_scale=PLANE_PRIOR_SCALE, covariance=DiagonalGaussian)
    options: dict[str, Any] = {"rounds": PLANE_ROUNDS, "tolerance": 1e-6}

    def robust(beta: float) -> FedGVI:
        return FedGVI(model, losses.Beta(beta), Renyi(ALPHA))

    angles: dict[str, list[float]] = {"PVI": [], "FedGVI": [], "FedGVI to its own clean fit": []}
    for index in range(num_seeds):
        rng = np.random.default_rng((seed, 53, index))
        x, y, is_outlier = plane(rng)
        clients = partition.select((x, y), partition.homogeneous(rng, len(y), PLANE_CLIENTS))
        kept = (x[~is_outlier], y[~is_outlier])
        clean = partition.select(kept, partition.homogeneous(rng, len(kept[1]), PLANE_CLIENTS))
        target, misled = run(PVI(model), clean, **options), run(PVI(model), clients, **options)
        found = choose(robust, BETAS, clients, **options)
        held = run(robust(found.chosen), clients, **options)
        own = run(robust(found.chosen), clean, **options)
        for name, value in zip(angles, (angle(misled, target), angle(held, target), angle(held, own)), strict=True):
            angles[name].append(value)
        journal.row("plane", index=index, beta=found.chosen, lowest=found.lowest, scores=found.scores,
                    **{name: values[-1] for name, values in angles.items()})  # fmt: skip
        journal.say(
            f"plane {index + 1} of {num_seeds}: beta {found.chosen} (lowest held-out loss at {found.lowest}), angle to "
            f"the clean boundary {angles['PVI'][-1]:.0f} degrees for PVI, {angles['FedGVI'][-1]:.0f} for FedGVI"
        )
        if index == 0:
            fits = {"PVI, clean rows": target, "PVI": misled, f"FedGVI, beta {found.chosen:g}": held}
            views = {name: _prediction(fit) for name, fit in fits.items()}
            journal.figure("plane", lambda x=x, y=y, o=is_outlier, views=views: plots.boundaries(x, y, o, views))
            journal.figure("beta", lambda found=found: plots.choice(found, label="beta"))
    medians = {name: float(np.median(values)) for name, values in angles.items()}
    for name, values in angles.items():
        quartiles = np.quantile(values, [0.25, 0.75])
        journal.row("angles", method=name, median=medians[name], quartiles=quartiles, all=np.sort(values))
    ratio = medians["FedGVI"] / medians["PVI"]
    _check(journal, judged, "fedgvi-6 plane: median angle of FedGVI over that of PVI", ratio, "<= 0.5", ratio <= 0.5)


def _prediction(fit: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda rows: np.asarray(fit.predict(rows).mean)


def _check(journal: Journal, judged: bool, name: str, value: float, bar: str, holds: bool) -> None:
    journal.check(name, value, bar, holds if judged else None)
