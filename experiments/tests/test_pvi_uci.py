"""`cavity reproduce pvi-uci`: what is counted and judged, and that all of it runs."""

from dataclasses import replace

import numpy as np
import pytest

import cavity
from cavity import PVI, run
from cavity.aggregation import Fixed
from cavity.schedules import Sequential, Synchronous
from cavity_experiments import pvi_uci, runner, uci
from cavity_experiments.pvi_uci import farthest, near_from
from cavity_experiments.schemes import as_if_federated, counting_steps, schemes
from tests.marks import exhaustive, needs_data


def clients():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 1))
    y = (rng.random(60) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    return {"leeds": (x[:40], y[:40]), "york": (x[40:], y[40:])}


@pytest.mark.parametrize(("schedule", "combine"), [(Synchronous(), max), (Sequential(), sum)])
def test_steps_of_simultaneous_clients_count_once_and_sequential_ones_add_up(schedule, combine):
    method, taken = PVI(cavity.models.logistic_regression(["x"])), []

    def note(record, server):
        taken.append([int(client.report.steps) for client in server.clients.values()])

    fit = run(method, clients(), schedule=schedule, rounds=3, tolerance=0.0, observers=[counting_steps(schedule), note])
    expected = np.cumsum([combine(each) for each in taken])
    assert [record["gradient_steps"] for record in fit.history] == expected.tolist()
    assert all(len(each) == 2 and min(each) > 0 for each in taken)


def test_every_step_of_global_vi_would_visit_all():
    history = as_if_federated([{"round": 1, "communications": 1}, {"round": 2, "communications": 2}], 10)
    assert [record["communications"] for record in history] == [10, 20]


def test_bcm_and_vcl_are_a_first_round_and_a_first_pass():
    """BCM is undamped PVI's; VCL is streaming VB's, which continues without deletion."""
    model, chosen = cavity.models.logistic_regression(["x"]), schemes(60, 3, 2, Fixed(0.2))

    def end(name, **others):
        scheme = replace(chosen[name], **others)
        return run(PVI(model, **scheme.options), clients(), schedule=scheme.schedule, rounds=scheme.rounds).posterior

    undamped = run(PVI(model, damping=Fixed(1.0)), clients(), rounds=1).posterior
    assert cavity.kl(end("BCM (same)"), undamped) < 1e-12
    assert cavity.kl(end("VCL"), end("PVI, sequential", rounds=1)) < 1e-10
    assert cavity.kl(end("streaming VB"), end("VCL")) > 1e-2  # counts everything twice
    assert schemes(60, 3, 2, Fixed(0.2), Fixed(0.5))["PVI, sequential"].options == {"damping": Fixed(0.5)}
    assert {name: scheme.rounds for name, scheme in chosen.items()} == {
        "PVI, synchronous": 3, "PVI, sequential": 2, "BCM (same)": 1, "BCM (split)": 1, "VCL": 1, "streaming VB": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [((0.0, 0.0), 1), ((2e-3, 1e-4), 2), ((1e-4, -2e-3, 9e-4), 3), ((0.0, 2e-3), None), ((0.0, np.nan), None)],
)
def test_near_means_near_from_then_on(gaps, expected):
    history = [{"round": i, "test_log_likelihood": -0.3 + gap} for i, gap in enumerate(gaps, start=1)]
    assert near_from(history, -0.3) == expected


def test_the_farthest_since_a_round():
    assert farthest([0.5, -0.2, 0.1], 2) == 0.2
    assert farthest([0.5, -0.2], 10) == 0.2  # converged after two rounds


def test_the_thresholds():
    assert pvi_uci.WITHIN == {"mean field": {"A": 15, "B": 25}, "full covariance": {"A": 3, "B": 10}}
    assert pvi_uci.NEAR == 1e-3
    assert uci.SPLITS["credit"]["B"] == (0.3, -0.7)
    assert uci.SPLITS["bank"] == uci.SPLITS["adult"] == {"A": (0.0, 0.0), "B": (0.7, -3.0)}


@needs_data
def test_clients_are_those_of_table_2():
    for name, split, small, large in [
        ("bank", "A", (3616, 0.117), (3616, 0.117)),
        ("bank", "B", (1085, 0.466), (6148, 0.054)),
        ("credit", "A", (52, 0.55), (52, 0.55)),
        ("credit", "B", (36, 0.944), (67, 0.337)),
    ]:
        labels = uci.rows(name, 0).train[1]
        found = [(len(part), labels[part].mean()) for part in uci.parts(name, split, labels, 0).values()]
        for clients, (size, share) in ((found[:5], small), (found[5:], large)):
            assert [number for number, _ in clients] == [size] * 5
            np.testing.assert_allclose(np.mean([each for _, each in clients]), share, atol=0.025)


@exhaustive
@pytest.mark.slow
@pytest.mark.timeout(1200)
@needs_data
def test_credit_quickly(tmp_path, monkeypatch):
    # PVI converges to global VI, but its score swings on the way: in split B, seed 1, the sequential gap is -1.1e-2 at
    # pass 8, -5.0e-3 at pass 10 and within 1.3e-3 from pass 12 on. Here it is judged after the swing.
    monkeypatch.setattr(pvi_uci, "PASSES", 15)
    result = runner.run("pvi-uci", pvi_uci.pvi_uci, directory=tmp_path, size=runner.Size.QUICK)
    assert result.figures == ("credit-communications.png", "credit-gradient-steps.png")
    runs = result.results["runs"]
    assert len(runs) == 2 * 3 * 7  # splits, seeds, schemes with global VI
    assert all(row["gap"] == 0 for row in runs if row["scheme"] == "global VI")
    assert all(abs(row["gap"]) < 5e-3 for row in runs if row["scheme"].startswith("PVI"))
    assert [check.name[:14] for check in result.checks] == ["pvi-2 credit A", "pvi-2 credit B"]
