"""The experiments on Gaussian processes, in their quick form, and what their figures rest on."""

import numpy as np
import pytest

from cavity.models.gp.factor_forms import Coupled
from cavity_experiments import gp_data, sgp_banana, sgp_uci
from cavity_experiments.bench_gp import bench_gp
from cavity_experiments.gp_methods import CPO, DPO, FIXED, POOLED, Setting, form_of, model_of, pooled, score
from cavity_experiments.runner import Journal, Size, run
from cavity_experiments.sgp_synthetic import sgp_synthetic
from cavity_experiments.sgp_weather import sgp_weather
from tests.marks import needs_data, thorough

SYNTHETIC = gp_data.synthetic_1d(0)
TINY = Setting(num_inducing=12, central_steps=40, num_draws=5)


def test_methods_are_the_documented_choices():
    clients = {"a": (np.zeros((10, 2)), np.zeros(10)), "b": (np.zeros((7, 2)), np.zeros(7))}
    assert form_of(DPO, clients, Setting()).size == 8  # 0.8 of the largest client's ten rows
    assert form_of(DPO, clients, Setting(most_pseudo=5)).size == 5
    assert isinstance(form_of(CPO, clients, Setting()), Coupled)
    models = {method: model_of(method, clients, TINY, 3) for method in (DPO, CPO, FIXED)}
    assert [model.learns_inducing for model in models.values()] == [True, True, False]
    np.testing.assert_array_equal(models[DPO].inducing, models[FIXED].inducing)


@thorough
def test_the_standard_is_near_the_exact_process():
    """The pooled fit learns hyperparameters; with the true ones the exact process has 0.718 nats per point."""
    model = model_of(POOLED, SYNTHETIC.clients, TINY, 0)
    found = score(model, pooled(model, SYNTHETIC.clients, TINY), SYNTHETIC.test, TINY)
    x, y = (np.concatenate([rows[i] for rows in SYNTHETIC.clients.values()]) for i in range(2))
    new, outcomes = SYNTHETIC.test
    k = lambda a, b: gp_data.SCALE**2 * np.exp(-0.5 * ((a - b.T) / gp_data.LENGTH_SCALE) ** 2)  # noqa: E731
    within = k(x, x) + gp_data.NOISE_SD**2 * np.eye(len(x))
    mean = k(new, x) @ np.linalg.solve(within, y)
    variance = gp_data.SCALE**2 + gp_data.NOISE_SD**2 - np.sum(k(new, x) * np.linalg.solve(within, k(x, new)).T, axis=1)
    exact = np.mean(-0.5 * np.log(2 * np.pi * variance) - 0.5 * (outcomes - mean) ** 2 / variance)
    assert exact == pytest.approx(0.718, abs=1e-3)
    assert found["log_likelihood"] > exact - 0.4


def test_differences_are_paired_and_judged(tmp_path):
    journal = Journal("sgp-uci", tmp_path)
    scores = {
        ("boston", split, method): {"log_likelihood": value + 0.1 * split}
        for split in range(2)
        for method, value in ((DPO, -0.2), (CPO, -0.3), (FIXED, -0.9), (POOLED, -0.16))
    }
    sgp_uci.judge(journal, sgp_uci.paired_differences(journal, scores, ["boston"]), ["boston"], judged=True)
    result = journal.close()
    rows = {row["other"]: row for row in result.results["differences"]}
    assert rows[CPO]["difference"] == pytest.approx(0.1)
    assert rows[POOLED]["difference"] == pytest.approx(-0.04)
    assert rows[POOLED]["standard_error"] == pytest.approx(0.0, abs=1e-12)
    assert [check.holds for check in result.checks] == [True, True]


def test_visits_needed_are_those_from_which_on_it_is_near(tmp_path):
    journal = Journal("sgp-uci", tmp_path)
    by_visit = {
        ("boston", split): [
            {"visits": 10 * (i + 1), "log_likelihood": value + noise} for i, value in enumerate((0.0, -0.2, -0.04, 0.1))
        ]
        for split, noise in enumerate((0.01, -0.01))
    }
    by_visit |= {("yacht", split): [{"visits": 10, "log_likelihood": -0.2}] * 4 for split in range(2)}
    scores = {(name, split, POOLED): {"log_likelihood": 0.0} for name, split in by_visit}
    sgp_uci.visits_needed(journal, by_visit, scores, ["boston", "yacht"])
    boston, yacht = journal.close().results["visits needed"]
    assert boston["visits"] == 30  # near after ten too, but not after twenty
    assert boston["gap 2"] == pytest.approx(-0.2)
    assert yacht["visits"] is None


@needs_data
def test_validation_rows_are_not_fitted(monkeypatch):
    seen = {}
    monkeypatch.setattr(sgp_uci, "federated", lambda model, clients, *rest: seen.update(clients))
    sgp_uci.at_alpha("yacht", 10, 0.1, TINY, 0)
    before = gp_data.uci("yacht", 10).clients
    assert sum(len(y) for _, y in seen.values()) == sum(len(y) - len(y) // 10 for _, y in before.values())


@needs_data
def test_banana_is_split_along_a_coordinate():
    clients, test = sgp_banana.banana_clients(0)
    assert len(clients) == 5
    assert len(test[1]) == 1060
    assert sum(len(y) for _, y in clients.values()) == 4240
    assert {0.0, 1.0} == set(np.unique(test[1]))


EXPERIMENTS = {"synthetic": sgp_synthetic, "bench": bench_gp}
WITH_DATA = {
    "uci": sgp_uci.sgp_uci,
    "large": sgp_uci.sgp_uci_large,
    "weather": sgp_weather,
    "banana": sgp_banana.sgp_banana,
}


def quick_form(name, experiment, directory):
    result = run(name, experiment, directory=directory, size=Size.QUICK)
    assert result.complete
    assert not result.failed
    return result


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_quick_forms(name, tmp_path):
    quick_form(name, EXPERIMENTS[name], tmp_path)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "banana" else pytest.mark.exhaustive) for name in WITH_DATA],
)
def test_quick_forms_with_data(name, tmp_path):
    result = quick_form(name, WITH_DATA[name], tmp_path)
    assert all(np.isfinite(row["log_likelihood"]) for row in result.results["visits"])
