"""Figures of a fit: axes with the fit's own numbers, readable for few and for many coefficients."""

import itertools

import numpy as np
import pytest

import cavity
from cavity.errors import CavityError
from cavity.reporting.plots.densities import smoothed
from tests.reporting.test_report import frame

pytest.importorskip("matplotlib")
KINDS = ("forest", "convergence", "clients", "calibration", "posterior")


@pytest.fixture(scope="module")
def fit():
    return cavity.regression("died ~ age + rx", {"leeds": frame(0, 150), "york": frame(1, 90)})


@pytest.fixture(scope="module")
def wide():
    """60 coefficients, with long names."""
    rng = np.random.default_rng(0)
    columns = {f"a column with a long name {i}": rng.normal(size=300) for i in range(59)} | {"y": rng.normal(size=300)}
    formula = "y ~ " + " + ".join(f"`{name}`" for name in columns if name != "y")
    halves = {"leeds": slice(0, 150), "york": slice(150, 300)}
    frames = {name: {key: values[rows] for key, values in columns.items()} for name, rows in halves.items()}
    return cavity.regression(formula, frames, family="gaussian", noise_sd=1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_an_axes(fit, kind, tmp_path):
    axes = getattr(fit.plot, kind)()
    axes.figure.savefig(tmp_path / "figure.png")
    assert type(axes).__name__ == "Axes"


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_the_forest_has_the_intervals_of_the_summary(fit):
    axes = fit.plot.forest(level=0.8)
    assert labels(axes) == ["age", "rx[T.placebo]"]
    assert axes.get_xlabel() == "log odds ratio, with 80 % interval"
    drawn = axes.collections[0].get_segments()
    for segment, name in zip(drawn, labels(axes), strict=True):
        estimate = fit.summary(0.8)[name]
        np.testing.assert_allclose(segment[:, 0], [estimate.lower, estimate.upper])


def test_chosen_parameters(fit):
    assert labels(fit.plot.forest(["intercept"])) == ["intercept"]
    assert labels(fit.plot.posterior(["age", "intercept"])) == ["age", "intercept"]
    with pytest.raises(CavityError, match="no parameter 'agee'; choose from: intercept, age"):
        fit.plot.forest(["agee"])


@pytest.mark.parametrize("kind", ["forest", "posterior"])
def test_sixty_coefficients_do_not_overlap(wide, kind):
    axes = getattr(wide.plot, kind)()
    figure = axes.figure
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(boxes) == 59
    tops = sorted((box.y0, box.y1) for box in boxes)
    assert all(upper <= following for (_, upper), (following, _) in itertools.pairwise(tops))
    assert min(box.x0 for box in boxes) >= 0


def test_densities_are_those_of_the_draws():
    draws = np.random.default_rng(0).normal(3.0, 2.0, 20_000)
    x, height = smoothed(draws)
    np.testing.assert_allclose(height, np.exp(-0.5 * ((x - 3.0) / 2.0) ** 2), atol=0.06)


def test_risks_are_predictions_of_the_clients_own_rows(fit):
    predicted, observed = fit.plot._risks()
    rows = [frame(0, 150), frame(1, 90)]
    expected = np.concatenate([np.asarray(fit.predict(own).mean) for own in rows])
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)
    np.testing.assert_array_equal(observed, np.concatenate([own["died"] for own in rows]))


def test_calibration_needs_an_outcome_that_is_yes_or_no(wide):
    with pytest.raises(CavityError, match="yes or no"):
        wide.plot.calibration()
