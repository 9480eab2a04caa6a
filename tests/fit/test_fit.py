"""What a fit shows at the prompt, in a table and in a notebook; the level of intervals; the file of results."""

import re

import numpy as np
import pytest

import cavity
from cavity.core.intervals import DEFAULT_LEVEL, check_level, half_width, percent, tails
from cavity.errors import CavityError, CheckpointError
from cavity.fit.run import prepare
from cavity.fit.summary import Estimate, Summary
from cavity.study.run import write_results
from tests.contracts.faults import types_unchecked
from tests.doubles import LoadedWhenAsked

X = np.linspace(-1.0, 1.0, 12)[:, None]
CLIENTS = {"leeds": (X, X[:, 0] + 0.1), "york": (X[:7], 2 * X[:7, 0])}
ALGORITHM = cavity.PVI(cavity.models.linear_regression(["dose"], noise_sd=1.0))


def test_the_prompt_shows_a_few_lines():
    fit = cavity.run(ALGORITHM, CLIENTS)
    assert repr(fit).splitlines() == [
        "Fit of Regression with GaussianNoise by PVI, 2 parameters",
        "  clients: 2 with 19 rows",
        f"  rounds: {len(fit.history)}, converged",
        "  approximation: not assessed yet; see fit.verdict",
        "  print(fit.summary()) shows the estimates",
    ]
    assert fit.verdict.verdict in repr(fit)


def test_the_prompt_before_the_first_round_and_of_streamed_clients(tmp_path):
    assert "rounds: 0, not started" in repr(prepare(ALGORITHM, CLIENTS))
    streamed = cavity.run(ALGORITHM, LoadedWhenAsked(CLIENTS), rounds=1, tolerance=0.0)
    assert "clients: 2, streamed" in repr(streamed)
    assert "rounds: 1, not converged" in repr(streamed)
    streamed.save(tmp_path / "fit.npz")
    assert "clients: 2, whose data are not in this process" in repr(cavity.load(tmp_path / "fit.npz"))


def test_intervals_have_95_percent_unless_another_level_is_given():
    fit = cavity.run(ALGORITHM, CLIENTS)
    summary = fit.summary()
    assert DEFAULT_LEVEL == summary.level == 0.95
    for estimate, other in zip(summary, fit.summary(level=0.5), strict=True):
        np.testing.assert_allclose(estimate.upper - estimate.mean, 1.959964 * estimate.sd, rtol=1e-6)
        np.testing.assert_allclose(estimate.mean - estimate.lower, 1.959964 * estimate.sd, rtol=1e-6)
        np.testing.assert_allclose(other.upper - other.mean, 0.674490 * other.sd, rtol=1e-5)
    assert "2.5%       97.5%" in str(summary)
    prediction = fit.predict(X)
    np.testing.assert_allclose(prediction.upper - prediction.mean, 1.959964 * prediction.sd, rtol=1e-5)


def test_levels():
    assert tails(0.9) == pytest.approx((0.05, 0.95))
    assert half_width(0.9) == pytest.approx(1.6448536269514722)
    assert percent(0.95) == "95 %"
    assert check_level(np.float32(0.5)) == 0.5


def test_a_level_that_is_no_probability(tmp_path):
    fit = cavity.run(ALGORITHM, CLIENTS)
    users = (fit.summary, lambda level: fit.predict(X, level=level), lambda level: write_results(fit, tmp_path, level))
    hint = "95; for 95 % give 0.95"
    for level, shown in ((0, "0"), (1, "1"), (95, hint), (-0.5, "-0.5"), ("a", "'a'"), (None, "None")):
        for use in (check_level, *users):
            message = f"level must be a probability between 0 and 1, such as 0.95, not {shown}"
            with types_unchecked(), pytest.raises(CavityError, match=f"^{message}$"):
                use(level)
    with pytest.raises(CavityError, match="not nan"):
        check_level(float("nan"))


@pytest.mark.parametrize("num_draws", [None, 4000], ids=["closed form", "draws"])
def test_the_level_of_a_prediction(num_draws):
    """The expected outcome of a linear regression is Gaussian, also in the units of an outcome that was scaled."""
    frames = {name: {"dose": x[:, 0], "y": 500.0 + 30.0 * y} for name, (x, y) in CLIENTS.items()}
    scaled = cavity.regression("y ~ dose", frames, family="gaussian", noise_sd=20.0)
    for fit, x in ((cavity.run(ALGORITHM, CLIENTS), X), (scaled, {"dose": X[:, 0]})):
        wide = fit.predict(x, num_draws=num_draws)
        assert wide.level == 0.95
        assert wide.intervals is None
        for level in (0.5, 0.99):
            found = fit.predict(x, level=level, num_draws=num_draws)
            assert found.level == level
            np.testing.assert_array_equal(found.mean, wide.mean)
            half = half_width(level) * np.asarray(found.sd)
            # standard errors of these quantiles of 4,000 draws are 0.02 and 0.06 sds; the same noise for all rows
            atol = 1e-5 * half.max() if num_draws is None else 0.25 * np.max(found.sd)
            np.testing.assert_allclose(np.asarray(found.upper) - found.mean, half, atol=atol)
            np.testing.assert_allclose(np.asarray(found.mean) - found.lower, half, atol=atol)
    with pytest.raises(CavityError, match="95 % only"):
        wide.with_level(0.9)


def test_headings_of_intervals_are_not_rounded_to_0_or_100():
    for level, heading in ((0.9, ["5%", "95%"]), (0.999, ["0.05%", "99.95%"]), (2 / 3, ["16.6667%", "83.3333%"])):
        assert str(Summary((), level)).split()[-2:] == heading


def test_a_notebook_shows_a_table():
    summary = cavity.run(ALGORITHM, CLIENTS).summary()
    page = summary._repr_html_()
    assert re.findall(r"<th>(.*?)</th>", page) == ["parameter", "mean", "sd", "2.5%", "97.5%"]
    assert re.findall(r"<tr><td>(.*?)</td>", page) == ["intercept", "dose"]
    assert "<p>note: 2 clients, " in page
    assert "<p>note: approximation: " in page


def test_names_and_notes_are_escaped_in_a_notebook():
    estimate = Estimate("<script>alert(1)</script>", 0.0, 1.0, -1.0, 1.0)
    page = Summary((estimate,), 0.95, remarks=("a < b & c",))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &lt; b &amp; c" in page


def test_the_file_of_results_is_explained(tmp_path):
    fit = cavity.run(ALGORITHM, CLIENTS, directory=tmp_path)
    write_results(fit, tmp_path)
    with pytest.raises(CheckpointError, match=r"names, mean, covariance.* numpy.load.*cavity\.load\('"):
        cavity.load(tmp_path / "posterior.npz")
    np.testing.assert_array_equal(cavity.load(tmp_path).posterior.mean, fit.posterior.mean)
