"""The demo: its printed numbers against an independent fit, its picture, the hospital that it leaves out."""

import contextlib
import io
import re

import jax
import numpy as np
import pytest

from cavity.cli import main
from cavity.reporting import indomethacin
from tests.marks import thorough

pytest.importorskip("matplotlib")

ROW = re.compile(r"(federated|pooled|Indiana alone) +([+-][\d.]+) +([\d.]+) +([+-][\d.]+) to ([+-][\d.]+)")
NORMAL_95 = 1.959963984540054


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What the command prints, in one line, and its folder."""
    jax.devices()  # the command leaves the devices of a JAX that has started as they are
    folder = tmp_path_factory.mktemp("demo") / "made" / "by it"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as exit:
        main(["demo", "--output", str(folder), "--seed", "3"])
    assert exit.value.code == 0
    return " ".join(printed.getvalue().split()), folder


def gaussian_vi(rows, prior_sd=2.5):
    """Mean and sd of the Gaussian with the largest evidence bound, in plain NumPy.

    The fixed point of Opper and Archambeau (2009): precision = prior + X' diag(E[s']) X, and the mean where
    X' (E[s] - y) + prior * mean = 0, with s the logistic function and expectations by Gauss-Hermite quadrature.
    """
    x, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    x = np.column_stack([np.ones(len(x)), x])
    nodes, weights = np.polynomial.hermite_e.hermegauss(48)
    weights = weights / weights.sum()
    prior = np.eye(x.shape[1]) / prior_sd**2
    mean, covariance = np.zeros(x.shape[1]), np.eye(x.shape[1])
    for _ in range(200):
        spread = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
        s = 1 / (1 + np.exp(-((x @ mean)[:, None] + spread[:, None] * nodes)))
        precision = prior + x.T @ (x * (s * (1 - s) @ weights)[:, None])
        step = np.linalg.solve(precision, x.T @ (s @ weights - y) + prior @ mean)
        mean, covariance = mean - step, np.linalg.inv(precision)
    assert np.abs(step).max() < 1e-12
    return mean, np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("fit", ["federated", "pooled", "Indiana alone"])
def test_the_table_is_what_an_independent_fit_gives(demo, fit):
    hospitals, _ = indomethacin.admitted()
    rows = [hospitals["Indiana"]] if fit == "Indiana alone" else list(hospitals.values())
    mean, sd = gaussian_vi(rows)
    printed = np.array([[float(number) for number in row[1:]] for row in ROW.findall(demo[0]) if row[0] == fit])
    expected = np.column_stack([mean, sd, mean - NORMAL_95 * sd, mean + NORMAL_95 * sd])
    assert printed.shape == expected.shape == (5, 4)
    # three decimals are printed; what is left of the tolerance is far above the run's own (1e-6 nats)
    np.testing.assert_allclose(printed, expected, atol=5.5e-4)


def test_the_words_are_true(demo):
    hospitals, _ = indomethacin.admitted()
    mean, sd = (moment[1] for moment in gaussian_vi(list(hospitals.values())))
    median, lower, upper = np.exp([mean, mean - NORMAL_95 * sd, mean + NORMAL_95 * sd])
    assert f"by {median:.2f} (odds ratio, 95 % interval {lower:.2f} to {upper:.2f})" in demo[0]
    probability = re.search(r"odds ratio is below 1 is ([\d.]+) %", demo[0])
    draws = np.random.default_rng(0).normal(mean, sd, 10**6)
    # a share of a million draws has a standard error below 0.05 %, and 0.05 % is lost in print
    assert float(probability[1]) == pytest.approx(100 * np.mean(draws < 0), abs=0.1)
    divergence = re.search(r"KL\(federated : pooled\) is ([\d.e+-]+) nats", demo[0])
    assert abs(float(divergence[1])) < 1e-4


def test_rounds_and_bytes_are_shown(demo):
    rounds = re.findall(r"round (\d+): change ([\d.e+-]+) nats, ([\d.]+) kB", demo[0])
    assert [int(number) for number, _, _ in rounds] == list(range(1, len(rounds) + 1))
    assert float(rounds[-1][1]) < 1e-6
    total = re.search(r"Exchanged: (\d+) rounds, (\d+) messages to hospitals and (\d+) replies, ([\d.]+) kB", demo[0])
    assert total.groups() == (str(len(rounds)), str(3 * len(rounds)), str(3 * len(rounds)), rounds[-1][2])
    assert "No patient's data left a hospital" in demo[0]


def test_the_hospital_with_three_patients_is_left_out_with_a_reason(demo):
    hospitals, left_out = indomethacin.admitted()
    assert {name: len(y) for name, (_, y) in hospitals.items()} == {"Indiana": 413, "Michigan": 164, "Kentucky": 22}
    assert left_out == {"Case Western": 3}
    assert "Case Western is left out: it has only 3 patients, and the study requires 10" in demo[0]
    assert "3 rows for 5 coefficients" in demo[0]
    assert "602 patients of 4 hospitals: Indiana 413, Michigan 164, Kentucky 22, Case Western 3." in demo[0]
    assert "So 3 hospitals with 599 patients take part." in demo[0]


def test_help_and_output_agree_on_the_number_of_hospitals(command, demo):
    help_texts = [" ".join(command(*words)[1].replace("│", " ").split()) for words in (["--help"], ["demo", "--help"])]
    for text in help_texts:
        assert "a clinical trial of four hospitals, three of which take part" in text
    assert "three hospitals with 599 patients take part" in help_texts[1]
    assert "602 patients of 4 hospitals" in demo[0]
    assert "3 hospitals with 599 patients take part" in demo[0]


@thorough
def test_the_level_of_intervals_can_be_chosen(tmp_path, command):
    code, out, _ = command("demo", "--output", str(tmp_path), "--level", "0.5")
    assert code == 0
    assert "50 % interval" in out
    assert "95 % interval" not in out
    code, _, err = command("demo", "--output", str(tmp_path), "--level", "95")
    assert code != 0
    assert "level must be a probability between 0 and 1" in err


def test_the_picture_is_there(demo):
    text, folder = demo
    assert f"Figure: {folder}/indomethacin.png" in text
    picture = (folder / "indomethacin.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_the_units_are_fixed_beforehand():
    hospitals, features = indomethacin.indomethacin()
    assert features == ("indomethacin", "risk score, per point", "age, per decade", "male")
    assert sum(len(y) for _, y in hospitals.values()) == 602
    assert sum(y.sum() for _, y in hospitals.values()) == 79
    x, y = hospitals["Michigan"]
    # the first patient: indomethacin, risk score 2, 26 years old, a woman, pancreatitis
    np.testing.assert_allclose(x[0], [1, -0.5, -1.9, 0])
    assert y[0] == 1
