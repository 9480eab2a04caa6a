"""Figures: the right numbers at the right place, without a display."""

import os
import subprocess
import sys

import numpy as np
import pytest

from cavity.errors import CavityError
from cavity.fit.summary import Estimate, Summary
from cavity.reporting import plots
from tests.marks import thorough

pytest.importorskip("matplotlib")

FEDERATED = Summary((Estimate("age", 0.3, 0.1, 0.14, 0.46), Estimate("treated", -1.0, 0.3, -1.5, -0.5)), 0.9)
ALONE = Summary((Estimate("age", 0.1, 0.2, -0.23, 0.43), Estimate("treated", -0.8, 0.5, -1.6, 0.0)), 0.9)
HISTORY = [
    {"round": 1, "communications": 3, "gap": 10.0, "kl": 0.1},
    {"round": 2, "communications": 6, "gap": 0.01, "kl": 1e-5},
    {"round": 3, "communications": 9, "gap": 1e-7, "kl": 0.0},
]


def test_forest_shows_means_and_intervals_of_each_fit_from_the_top():
    figure = plots.forest({"federated": FEDERATED, "alone": ALONE}, scale="log odds ratio", ratio="odds ratio")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["age", "treated"]
    assert axes.yaxis_inverted()
    assert axes.get_xlabel() == "log odds ratio, with 90 % interval"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["federated", "alone"]
    for container, summary in zip(axes.containers, (FEDERATED, ALONE), strict=True):
        means, _, (bars,) = container.lines
        np.testing.assert_allclose(means.get_xdata(), [e.mean for e in summary])
        ends = np.array([segment[:, 0] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, [[e.lower, e.upper] for e in summary])


def test_forest_marks_ratios_where_their_logarithms_are():
    figure = plots.forest({"federated": FEDERATED}, ratio="odds ratio")
    (top,) = figure.axes[0].child_axes
    shown = {float(label.get_text()): tick for label, tick in zip(top.get_xticklabels(), top.get_xticks(), strict=True)}
    assert {0.5, 1.0, 1.5} <= set(shown)
    for ratio, place in shown.items():
        assert place == pytest.approx(np.log(ratio))


def test_forest_can_choose_and_order_parameters():
    figure = plots.forest({"federated": FEDERATED}, parameters=["treated"])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["treated"]
    with pytest.raises(KeyError, match="no parameter 'sex'"):
        plots.forest({"federated": FEDERATED}, parameters=["sex"])


def test_forest_refuses_what_cannot_be_compared():
    with pytest.raises(CavityError, match=r"different levels: 0\.5, 0\.9"):
        plots.forest({"a": FEDERATED, "b": Summary(FEDERATED.estimates, 0.5)})
    with pytest.raises(CavityError, match="at least one"):
        plots.forest({})


def test_convergence_is_logarithmic_and_leaves_out_what_is_not_positive():
    figure = plots.convergence(HISTORY, {"gap": "largest residual", "kl": "KL to pooled"}, bar=1e-3)
    (axes,) = figure.axes
    gap, kl, bar = axes.lines
    np.testing.assert_array_equal(gap.get_xdata(), [1, 2, 3])
    np.testing.assert_array_equal(gap.get_ydata(), [10.0, 0.01, 1e-7])
    np.testing.assert_array_equal(kl.get_ydata(), [0.1, 1e-5, np.nan])
    assert set(bar.get_ydata()) == {1e-3}
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["largest residual", "KL to pooled"]


def test_compare_shows_one_number_of_several_runs():
    figure = plots.compare({"sequential": HISTORY[:2], "synchronous": HISTORY}, "kl", label="KL, nats")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "communications (client visits)"
    assert axes.get_ylabel() == "KL, nats"
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [3, 6])


def test_convergence_names_what_the_history_lacks():
    with pytest.raises(CavityError, match=r"no 'speed'; it has round, communications, gap, kl"):
        plots.compare({"run": HISTORY}, "speed")
    with pytest.raises(CavityError, match="nothing to draw"):
        plots.convergence([])


def test_plots_draw_on_given_axes():
    from matplotlib.figure import Figure

    page = Figure()
    left, right = page.subplots(1, 2)
    assert plots.forest({"federated": FEDERATED}, axes=left) is page
    assert plots.convergence(HISTORY, axes=right) is page


@thorough
def test_neither_a_display_nor_pyplot_is_needed(tmp_path):
    program = (
        "import sys\nfrom cavity.reporting import plots\n"
        "figure = plots.convergence([{'round': 1, 'gap': 1.0}, {'round': 2, 'gap': 0.1}])\n"
        "figure.savefig('a.png')\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    env = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND")}
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, env=env
    )
    assert finished.stdout.strip() == "False"
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_curves_of_influence():
    x = np.array([0.0, 1.0, 10.0, 1000.0])
    figure = plots.curves(x, {"likelihood": x, "beta": np.minimum(x, 1)}, x_label="row", y_label="kl", x_log=True)
    axes = figure.axes[0]
    assert axes.get_xscale() == "symlog"
    assert [line.get_label() for line in axes.lines] == ["likelihood", "beta"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [0, 1, 1, 1])


def test_boundaries_stand_side_by_side():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), np.repeat([0.0, 1.0], 10)
    views = {name: lambda rows, sign=sign: 1 / (1 + np.exp(-sign * rows[:, 0])) for name, sign in (("a", 1), ("b", -1))}
    figure = plots.boundaries(x, y, np.arange(20) >= 18, views)
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]


def test_spread_is_the_mean_over_seeds_with_a_standard_deviation_to_either_side():
    histories = [[{"communications": 10, "error": 0.3}, {"communications": 20, "error": 0.1}],
                 [{"communications": 10, "error": 0.5}, {"communications": 20, "error": 0.3},
                  {"communications": 30, "error": 0.0}]]  # fmt: skip
    (axes,) = plots.spread({"PVI": histories, "VCL": histories[:1]}, "error", reference=0.2).axes
    line, single, reference = axes.lines
    np.testing.assert_allclose(line.get_xydata(), [[10, 0.4], [20, 0.2]])
    np.testing.assert_allclose(single.get_ydata(), [0.3, 0.1])
    np.testing.assert_allclose(reference.get_ydata(), 0.2)
    (band,) = axes.collections  # one history has no spread
    heights = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [0.1, 0.5], atol=1e-12)
    with pytest.raises(CavityError, match="no method has a run"):
        plots.spread({}, "error")
    with pytest.raises(CavityError, match="'VCL': it has no round"):
        plots.spread({"VCL": []}, "error")


def test_calibration_groups_by_risk_and_compares_with_shares():
    risks = np.array([0.1, 0.2, 0.3, 0.7, 0.8, 0.9])
    outcomes = np.array([0, 0, 1, 1, 1, 0])
    figure = plots.calibration({"alone": risks, "together": risks / 2}, outcomes, num_bins=2, rings="together")
    diagonal, alone, together = figure.axes[0].lines
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    np.testing.assert_allclose(alone.get_xdata(), [0.2, 0.8])
    np.testing.assert_allclose(alone.get_ydata(), [1 / 3, 2 / 3])
    np.testing.assert_allclose(together.get_xdata(), [0.1, 0.4])
    assert together.get_linestyle() == "None"
    (intervals,) = figure.axes[0].collections  # rings have none
    ends = np.array([segment[:, 1] for segment in intervals.get_segments()])
    # Wilson, z = 1.96, n = 3: (1/3 + 0.6402 +- 1.96 sqrt(2/27 + 0.1067)) / 2.2805
    np.testing.assert_allclose(ends[0], [0.0615, 0.7923], atol=2e-4)
    np.testing.assert_allclose(ends[1], [1 - 0.7923, 1 - 0.0615], atol=2e-4)


def test_calibration_refuses_what_is_not_there():
    with pytest.raises(CavityError, match="at least one"):
        plots.calibration({}, np.array([0, 1]))
    with pytest.raises(CavityError, match="no 'pooled' to draw as rings; choose one of: alone"):
        plots.calibration({"alone": np.array([0.2, 0.4])}, np.array([0, 1]), rings="pooled")


def test_reliability_has_confidence_against_accuracy():
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.05, 0.95]])
    labels = np.array([0, 1, 1, 1])
    figure = plots.reliability({"ours": p, "sure": np.round(p)}, labels, num_bins=2, fewest=1)
    _, ours, sure = figure.axes[0].lines
    np.testing.assert_allclose((ours.get_xdata(), ours.get_ydata()), [[0.7875], [0.75]], rtol=1e-6)
    np.testing.assert_allclose((sure.get_xdata(), sure.get_ydata()), [[1.0], [0.75]], rtol=1e-6)
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert texts == ["ours, ECE 3.8 %", "sure, ECE 25.0 %"]
    few = plots.reliability({"ours": p}, labels, num_bins=15, fewest=5)
    assert len(few.axes[0].lines[1].get_xdata()) == 0
    with pytest.raises(CavityError, match="at least one"):
        plots.reliability({}, labels)
