"""`cavity reproduce pvi-icu`: patients stay on one side, the thresholds, the methods, and that it runs in small."""

import numpy as np
import pytest

from cavity_experiments import pvi_icu, runner
from cavity_experiments.runner import Size
from cavity_experiments.sources.hospitals import HospitalTable
from tests.marks import needs_data


def stays(num_patients=50):
    """Two stays of every patient, whose number is the first column; the second column has missing values."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(num_patients), 2)
    x = np.column_stack([patient, rng.normal(size=2 * num_patients)]).astype(float)
    x[::7, 1] = np.nan
    hospital = np.array(["leeds", "york"])[patient % 2]
    y = rng.integers(0, 2, 2 * num_patients)
    return HospitalTable(name="stays", x=x, y=y, columns=("who", "value"), hospital=hospital, patient=patient)


def test_the_thresholds():
    assert pvi_icu.bars() == [
        (("logistic regression", "k-means"), 1e-3),
        (("logistic regression", "hospitals"), 1e-3),
        (("perceptron", "k-means"), 0.02),
        (("perceptron", "hospitals"), 0.02),
    ]
    assert all(case in pvi_icu.SETTINGS for case, _ in pvi_icu.bars())
    assert pvi_icu.HIDDEN == (50, 50)
    assert pvi_icu.SETTINGS["perceptron", "k-means"].synchronous.exponent == 0.4  # the paper's


def test_a_patient_is_on_one_side_only_and_training_stays_set_the_scale():
    data = pvi_icu.split(stays(), seed=0)
    who = [set(np.round(part[0][:, 0], 6)) for part in (data.train, data.validation, data.test)]
    assert [len(part[1]) for part in (data.train, data.validation, data.test)] == [60, 20, 20]
    assert len(who[0] | who[1] | who[2]) == sum(map(len, who)) == 50
    assert data.columns == ("who", "value", "value missing")
    np.testing.assert_allclose(data.train[0][:, :2].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(data.train[0][:, :2].std(0), 1)
    assert np.abs(data.test[0][:, :2].mean(0)).max() > 1e-3
    other = pvi_icu.split(stays(), seed=1)
    assert set(np.round(other.test[0][:, 1], 6)) != set(np.round(data.test[0][:, 1], 6))


def test_clients_divide_the_training_stays():
    data = pvi_icu.split(stays(), seed=0)
    by_hospital = pvi_icu.clients_of(data, pvi_icu.HOSPITALS, seed=0)
    assert {name: len(y) for name, (_, y) in by_hospital.items()} == {
        name: int(np.sum(data.hospital == name)) for name in ("leeds", "york")
    }
    clusters = pvi_icu.clients_of(data, pvi_icu.K_MEANS, seed=0)
    assert len(clusters) == pvi_icu.NUM_CLUSTERS
    assert sum(len(y) for _, y in clusters.values()) == 60


def test_global_vi_asks_every_client_at_each_step():
    by_steps = pvi_icu.as_exchanges([{"round": 2, "steps": 600, "communications": 2}], num_clients=5)
    by_rounds = pvi_icu.as_exchanges([{"round": 2, "steps": None, "communications": 2}], num_clients=5)
    assert (by_steps[0]["communications"], by_rounds[0]["communications"]) == (3000, None)


def test_the_gap_is_the_worse_of_both_schedules_over_seeds():
    def fits(synchronous, sequential):
        ends = {pvi_icu.GLOBAL: -0.25, pvi_icu.SYNCHRONOUS: synchronous, pvi_icu.SEQUENTIAL: sequential, "VCL": -9.0}
        return {name: [{"test_log_likelihood": -5.0}, {"test_log_likelihood": end}] for name, end in ends.items()}

    np.testing.assert_allclose(pvi_icu.largest_gap([fits(-0.26, -0.25), fits(-0.25, -0.22)]), 0.03)
    assert np.isnan(pvi_icu.largest_gap([fits(np.nan, -0.25)]))


def test_the_picture_shows_means_and_bands_and_keeps_what_is_far_below_at_the_edge():
    pytest.importorskip("matplotlib")

    def fits(shift):
        ends = dict.fromkeys(pvi_icu.METHODS, -0.25) | {"BCM (same)": -7.0, pvi_icu.SYNCHRONOUS: -0.26 + shift}
        histories = {
            name: [{"communications": 5 * i, "test_log_likelihood": end} for i in (1, 2)] for name, end in ends.items()
        }
        histories[pvi_icu.GLOBAL][0]["communications"] = None
        return histories | {"BCM (same)": histories["BCM (same)"][:1], "VCL": histories["VCL"][:1]}

    figure = pvi_icu.picture({("perceptron", "k-means"): [fits(0.0), fits(0.02)]}, "communications", "visits")
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines[pvi_icu.SYNCHRONOUS].get_ydata(), [-0.25, -0.25])
    np.testing.assert_allclose(lines["BCM (same)"].get_ydata(), [-0.25 - pvi_icu.BELOW])
    assert (lines["BCM (same)"].get_marker(), len(lines[pvi_icu.GLOBAL].get_xdata())) == (pvi_icu.OFF, 0)
    heights = [np.ptp(band.get_paths()[0].vertices[:, 1]) for band in axes.collections]
    np.testing.assert_allclose(heights, [0.02, 0.0, 0.0, 0.0], atol=1e-12)  # of those with several rounds


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_small(tmp_path):
    result = runner.run("pvi-icu", pvi_icu.pvi_icu, directory=tmp_path, size=Size.QUICK)
    assert [check.name.split()[0] for check in result.checks] == [f"pvi-icu-{letter}" for letter in "abcd"]
    assert all(check.holds is None for check in result.checks)
    assert result.checks[0].value < 0.01  # few rounds are nearly enough for the regression
    assert [check.value is None for check in result.checks] == [False, True, False, True]
    clusters, hospitals = result.results["partitions"]
    assert sum(clusters["sizes"]) == pytest.approx(0.6 * 2179, abs=60)
    assert 150 < hospitals["clients"] <= 186  # some have no stay of a training patient
    scores = {(row["model"], row["method"]): row for row in result.results["scores"]}
    assert len(scores) == 2 * len(pvi_icu.METHODS)
    assert scores["logistic regression", "global VI"]["auc"] > 0.75
    assert (
        scores["logistic regression", "global VI"]["log_likelihood"] > -0.31
    )  # the training share of deaths alone gives -0.338
    assert result.figures == ("communications.png", "gradient_steps.png")
