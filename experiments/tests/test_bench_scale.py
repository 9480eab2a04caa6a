"""`cavity bench scale`: its method learns, and its quick form runs and says what it measured."""

import json

import numpy as np
import pytest

import cavity
from cavity.aggregation import combining
from cavity.datasets.sources import Generated
from cavity.models import bag_of_words
from cavity.schedules import SampledCount
from cavity.solvers import SGMCMC, ScaledIdentity, SGDIterates
from cavity_experiments import scale_run
from tests.marks import thorough


@pytest.fixture(scope="module")
def method():
    solver = SGMCMC(SGDIterates(1.0), ScaledIdentity(1e-3), num_epochs=3, burn_in=1, batch_size=20)
    return cavity.FedSEP(bag_of_words(40, 10), solver=solver)


def source(num_clients):
    """Two lengths once they are padded: each is a program of its own."""
    return Generated(num_clients, [30, 7, 17, 5] * (num_clients // 4), scale_run.texts(40, 10), seed=1)


def test_made_texts_suit_the_model(method):
    for words, tags in source(8).load(["client-0", "client-5"]):
        method.model.prepare((words, tags))
        assert (tags >= 0).sum(axis=1).min() >= 3


@thorough
def test_rounds_learn_and_do_not_depend_on_the_chunk(method):
    options = {"schedule": SampledCount(4), "rounds": 15, "tolerance": 0.0}
    fit = cavity.run(method, source(40), chunk=4, **options)
    other = cavity.run(method, source(40), chunk=1, **options)
    np.testing.assert_allclose(fit.posterior.precision_mean, other.posterior.precision_mean, rtol=1e-4, atol=1e-4)
    words, tags = source(80).load(["client-78"])[0]  # a client that took no part
    before, after = (np.mean(method.model.row_log_prob(q.mean, (words, tags))) for q in (method.prior, fit.posterior))
    assert after > before + 0.1
    assert [len(record["gaps"]) for record in fit.history] == [4] * 15


def test_large_answers_are_combined_as_small_ones(method, monkeypatch):
    """Of millions of weights they are stacked within the program, which changes no number."""
    options = {"schedule": SampledCount(4), "rounds": 2, "tolerance": 0.0}
    small = cavity.run(method, source(8), **options)
    monkeypatch.setattr(combining, "LARGE", 1)
    large = cavity.run(method, source(8), **options)
    np.testing.assert_allclose(large.posterior.precision_mean, small.posterior.precision_mean, rtol=1e-12)
    assert large.posterior.precision_mean.dtype == np.float64


@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_compile")
def test_the_quick_form(command, tmp_path):
    code, out, err = command("bench", "scale", "--quick", "--json", "--output", str(tmp_path))
    assert code == 0, err
    assert "round 2 of at most 2, 10 of 10 clients" in err
    assert "clients/s, at most 0:00 left" in err
    report = json.loads(out)
    rows = report["results"]["scale"]
    assert [row["clients"] for row in rows] == [100, 20_000]
    assert all(0 < row["compute_share"] <= 1 and row["megabytes"] > 0 for row in rows)
    assert [check["name"][:8] for check in report["checks"]] == ["scale-5a", "scale-5b", "scale-5c"]
    assert all(check["holds"] is None for check in report["checks"])
