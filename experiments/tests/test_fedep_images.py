"""`cavity reproduce fedep-images` and `fedep-omniglot`: methods by name, what is looked at, a tiny federation."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity import FedAvg, FedEP, FedPA, FedSEP, ledger
from cavity.distributions import DiagonalGaussian
from cavity.distributions.point import PointMass
from cavity.evaluation import metrics
from cavity.models import cnn_classifier
from cavity.schedules import SampledCount
from cavity.solvers import DiagonalFisher, NaturalVI, Point, SampleMoments, ScaledIdentity
from cavity_experiments import fedep_comparison as comparison
from cavity_experiments import fedep_images, fedep_methods, fedep_omniglot, fedep_scores, runner, sources
from cavity_experiments.fedep_comparison import Outcome, Task
from cavity_experiments.fedep_methods import FEDAVG, METHODS, STATEFUL, Choice, Setting
from cavity_experiments.runner import Journal, Size
from tests.marks import needs_data, thorough

CHOICES = dict.fromkeys(METHODS, Choice(server_step_size=0.5, precision_per_row=0.1, step_size=0.02))
TINY = Setting(clients_per_round=3, burn_in=2, rounds=2, num_epochs=1, batch_size=8, choices=CHOICES)


def tiny_model():
    return cnn_classifier((6, 6, 1), 3, channels=(2,), kernel=3)


def tiny_images(num_images, seed):
    """Bright upper, middle or lower thirds."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=num_images)
    x = 0.3 * rng.random((num_images, 6, 6, 1))
    for third in range(3):
        x[y == third, 2 * third : 2 * third + 2] += 0.7
    return x.astype(np.float32), y


def test_the_setting_is_what_is_asked_for():
    assert fedep_images.NUM_CLIENTS >= 500
    assert (fedep_images.DIRICHLET, fedep_images.SETTING.clients_per_round) == (0.1, 20)
    assert len(METHODS) == 11  # the ten, and a control
    for setting in (fedep_images.SETTING, fedep_omniglot.SETTING):
        assert setting.choices.keys() == set(METHODS)


@pytest.mark.parametrize(("name", "kind", "spread"), [
    ("FedAvg", FedAvg, Point), ("FedAvg, small steps", FedAvg, Point),
    ("FedPA", FedPA, SampleMoments), ("FedEP I", FedEP, ScaledIdentity),
    ("FedEP M", FedEP, SampleMoments), ("FedEP L", FedEP, DiagonalFisher), ("FedEP V", FedEP, NaturalVI),
    ("FedSEP I", FedSEP, ScaledIdentity), ("FedSEP V", FedSEP, NaturalVI),
])  # fmt: skip
def test_methods_by_their_names(name, kind, spread):
    method = fedep_methods.method(name, tiny_model(), TINY, 90)
    assert isinstance(method, kind)
    assert isinstance(method.solver.spread, spread)
    optimiser = method.server_optimiser if kind is FedEP else method.optimiser
    assert float(optimiser.step_size) == 0.5
    assert method.solver.num_epochs == TINY.num_epochs
    if kind in (FedPA, FedSEP):
        assert float(method.num_rows) == 90


@thorough
def test_probabilities_are_those_of_fit_predict():
    model, (x, y) = tiny_model(), tiny_images(40, 0)
    clients = {f"client {i}": (x[i::4], y[i::4]) for i in range(4)}
    fit = cavity.run(
        fedep_methods.method("FedAvg", model, TINY, 40), clients, schedule=SampledCount(2), rounds=1, tolerance=0.0
    )
    p = fedep_scores.probabilities(model, fit.posterior, x)
    np.testing.assert_allclose(p, fit.predict(x).mean, atol=1e-5)
    fit = fit.warm_start(fedep_methods.method("FedEP I", model, TINY, 40))
    p = fedep_scores.probabilities(model, fit.posterior, x)
    np.testing.assert_allclose(p, fit.predict(x, point=True).mean, atol=1e-5)
    drawn = fedep_scores.probabilities(model, fit.posterior, x, num_draws=4)
    np.testing.assert_allclose(drawn, fit.predict(x, num_draws=4, seed=0).mean, atol=1e-5)
    assert np.max(np.abs(drawn - p)) > 1e-3


def test_scores_are_in_per_cent():
    p, y = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.array([0, 1, 1])
    scores = fedep_scores.scores(p, y)
    assert scores["accuracy"] == pytest.approx(200 / 3)
    assert scores["confidence"] == pytest.approx(80.0)
    assert scores["ece"] == pytest.approx(100 * float(metrics.expected_calibration_error(p, y)))


def test_looks_average_draws_at_the_end_only():
    model, images = tiny_model(), tiny_images(20, 1)
    looks = fedep_scores.Looks(model, images, images, every=2, closely_from=4)
    dimension = model.prior.dimension
    q = DiagonalGaussian.from_moments(jnp.zeros(dimension), jnp.full(dimension, 4.0))
    server = ledger.open_ledger(fedep_methods.method("FedEP I", model, TINY, 20), ["client"], 0)
    for number in range(1, 5):
        looks({"round": number}, replace(server, posterior=q))
    early, late = looks.records
    assert (early["round"], late["round"]) == (2, 4)
    assert "marginalised ece" not in early
    assert late["validation accuracy"] == late["accuracy"]
    assert late["confidence"] == pytest.approx(100 / 3)  # of weights that are all zero
    assert late["marginalised confidence"] > 40  # each draw is sure of something
    looks({"round": 6}, replace(server, posterior=PointMass(jnp.zeros(dimension))))
    assert "marginalised ece" not in looks.records[-1]


def test_running_averages():
    looks = [{"round": r, "accuracy": a, "ece": 1.0} for r, a in ((5, 60.0), (10, 82.0), (15, 80.0), (20, 70.0))]
    assert fedep_scores.averaged(looks, 2) == {"accuracy": 75.0, "ece": 1.0}
    assert fedep_scores.rounds_to(looks, 81.0, 2) == 15
    assert fedep_scores.rounds_to(looks, 82.0, 1) == 10
    assert fedep_scores.rounds_to(looks, 81.5, 2) is None


def _outcomes(avg, best, ece, marginalised_ece):
    def outcome(validation, accuracy):
        scores = {"validation accuracy": validation, "accuracy": accuracy, "ece": ece}
        return Outcome([], scores | {"marginalised ece": marginalised_ece}, None)

    found = {name: outcome(50.0, 99.0) for name in STATEFUL}  # best on test images, which must not choose
    found["FedEP L"] = outcome(60.0, best)
    plain = Outcome([], {"validation accuracy": 0.0, "accuracy": avg, "ece": 4.0}, None)
    return found | {FEDAVG: plain}


def test_the_thresholds_over_seeds(tmp_path):
    def verdicts(*numbers, judged=True):
        journal = Journal("bars", tmp_path)
        comparison.judge(journal, [_outcomes(*numbers)], "fedep-4", judged=judged)
        return [check.holds for check in journal.close().checks]

    assert verdicts(80.0, 80.1, 2.1, 2.0) == [True, True, False]
    assert verdicts(80.0, 79.9, 1.9, 2.1) == [False, False, True]
    assert verdicts(80.0, 79.9, 1.9, 2.1, judged=False) == [None, None, None]
    assert comparison.best_by_validation([_outcomes(80.0, 0.0, 1.0, 1.0)]) == "FedEP L"


@thorough
@pytest.mark.timeout(600)
def test_a_tiny_federation(tmp_path):
    """All ten methods, the table, the thresholds and the pictures; stripes are learned better than by chance."""
    model, (x, y) = tiny_model(), tiny_images(120, 2)
    clients = {f"client {i}": (x[i::8], y[i::8]) for i in range(8)}
    setting = replace(TINY, num_epochs=3)
    names = []

    def federation(seed):
        names.append(seed)
        return Task(model, clients, tiny_images(60, 3), tiny_images(60, 4), setting, 1, 2, (10.0, 100.1), seed)

    journal = Journal("tiny", tmp_path)
    comparison.run_all(journal, (0, 1), federation, "fedep-4", judged=True)
    result = journal.close()
    rows = result.results["methods"]
    assert [row["method"] for row in rows] == 2 * list(METHODS)
    assert names == [0, 1]
    for row in rows:
        assert row["refused"] == 0
        assert row["rounds_to_10"] == 2  # the first round with two looks
        assert row["rounds_to_100.1"] is None
        assert (row["averaged_ece"] is None) == row["method"].startswith(FEDAVG)
    assert np.mean([row["accuracy"] for row in rows]) > 45
    assert len(result.checks) == 3
    assert set(result.figures) == {"rounds.png", "reliability.png"}
    for records in result.results["looks of seed 1"].values():
        assert [look["round"] for look in records] == [1, 2, 3, 4]


def test_no_drawing_is_used_twice():
    drawers = np.array([f"{alphabet}-{i:02d}" for alphabet in "ab" for _ in range(26) for i in range(20)])
    labels = np.repeat(np.arange(52), 20)
    table = sources.Omniglot(np.zeros((1040, 1)), labels, np.array([name[0] for name in drawers]), drawers)
    parts = fedep_omniglot.dealt(np.random.default_rng(0), table)
    rows = np.concatenate(list(parts.values()))
    assert len(np.unique(rows)) == len(rows) == 2 * 24 * 20
    for name, number in (("test", 3), ("validation", 2), ("clients", 15)):
        counts = np.bincount(labels[parts[name]], minlength=52)
        assert set(counts[:24]) == {number}
        assert set(counts[24:26]) == {0}  # only the first 24 characters of an alphabet
    assert set(np.unique(drawers[parts["clients"]], return_counts=True)[1]) == {18}


@needs_data
@thorough
def test_the_federations_hold_out_what_they_say():
    task = fedep_images.federation(0, fedep_images.SETTING, num_images=6_000)
    sizes = [len(y) for _, y in task.clients.values()]
    assert (len(sizes), sum(sizes), len(task.validation[1]), len(task.test[1])) == (500, 5_000, 1_000, 10_000)
    assert np.mean([len(np.unique(y)) for _, y in task.clients.values()]) < 4
    drawers = fedep_omniglot.drawers(0, fedep_omniglot.SETTING)
    assert len(drawers.clients) == 160
    assert (drawers.num_rows, len(drawers.validation[1]), len(drawers.test[1])) == (183 * 15, 183 * 2, 183 * 3)
    assert np.bincount(drawers.test[1]).tolist() == [3] * 183
    assert {len(y) for _, y in drawers.clients.values()} <= set(range(12, 19))


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "experiment",
    [pytest.param(fedep_images.fedep_images, marks=pytest.mark.exhaustive), fedep_omniglot.fedep_omniglot],
)
def test_in_small(experiment, tmp_path):
    result = runner.run("fedep", experiment, directory=tmp_path, size=Size.QUICK)
    assert [row["method"] for row in result.results["methods"]] == list(METHODS)
    assert [check.holds for check in result.checks] == [None] * 3
