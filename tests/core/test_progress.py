"""What a watcher of a run receives."""

import io

import numpy as np
import pytest

import cavity
from cavity.core.progress import Progress, ProgressLine
from cavity.errors import CavityError, DataError
from tests import scenarios
from tests.doubles import LoadedWhenAsked
from tests.marks import thorough


class Terminal(io.StringIO):
    def isatty(self):
        return True


def moment(**changes):
    plain = {"round": 2, "rounds": 5, "visits": 300, "visits_in_round": 1000}
    plain |= {"gap": 0.01, "clients_per_second": 1234.5, "seconds_left": 3725.0}
    return Progress(**(plain | changes))


def test_a_line_says_how_far_how_fast_and_how_long():
    text = "round 2 of at most 5, 300 of 1,000 clients, change 1.0e-02 nats, 1,234 clients/s, at most 1:02:05 left"
    assert str(moment()) == text
    sampled = str(moment(gap=float("inf"), visits_in_round=10, visits=4, clients_per_second=2.345, seconds_left=5.0))
    assert sampled == "round 2 of at most 5, 4 of 10 clients, 2.35 clients/s, at most 0:05 left"
    first = str(moment(gap=float("nan"), visits_in_round=1, seconds_left=5.0))
    assert first == "round 2 of at most 5, 1,234 clients/s, at most 0:05 left"


def test_a_terminal_gets_one_line_and_a_file_the_end(monkeypatch):
    monkeypatch.setattr("cavity.core.progress.EVERY_SECONDS", 0.0)
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = ProgressLine(stream)
        line(moment())
        line(moment(visits=600, gap=float("nan")))
        line(moment(visits=1000, seconds_left=0.0))
    assert terminal.getvalue().count("\r") == 3
    assert terminal.getvalue().endswith("\n")
    # what was longer is overwritten
    shown = terminal.getvalue().rstrip("\n").split("\r")[1:]
    assert len(shown[1]) == len(shown[0])
    assert file.getvalue() == str(moment(visits=1000, seconds_left=0.0)) + "\n"


def clients(num_clients=6, rows=5):
    problem = scenarios.logistic(num_clients * rows, 1)
    return scenarios.clients(problem.x, problem.y, np.split(np.arange(num_clients * rows), num_clients))


def algorithm():
    return cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0))  # in closed form, which compiles quickly


@pytest.mark.parametrize("block", [1, 2])
def test_a_run_in_memory_reports_every_round(block):
    seen = []
    fit = cavity.run(algorithm(), clients(), rounds=4, tolerance=0.0, progress=seen.append, rounds_per_block=block)
    assert [p.round for p in seen] == [1, 2, 3, 4][block - 1 :: block]
    assert {(p.visits, p.visits_in_round, p.rounds) for p in seen} == {(6, 6, 4)}
    assert np.isnan(seen[0].gap)
    assert seen[-1].gap == fit.history[4 - block - 1]["gap"]
    assert seen[-1].seconds_left == 0
    assert all(p.clients_per_second > 0 for p in seen)


@thorough
def test_a_stream_reports_every_chunk_and_gives_the_same_run():
    seen = []
    held = cavity.run(algorithm(), clients(), rounds=2, tolerance=0.0)
    streamed = cavity.run(
        algorithm(), LoadedWhenAsked(clients()), chunk=4, rounds=2, tolerance=0.0, progress=seen.append
    )
    assert [(p.round, p.visits) for p in seen] == [(1, 4), (1, 6), (2, 4), (2, 6)]
    np.testing.assert_allclose(streamed.posterior.precision, held.posterior.precision, rtol=1e-10)
    without = streamed.withdraw("client-1")
    np.testing.assert_allclose(without.posterior.mean, held.withdraw("client-1").posterior.mean, rtol=1e-4, atol=1e-5)
    with pytest.raises(CavityError, match="from their source only"):
        streamed.join("late", clients()["client-0"])


def test_an_interrupted_stream_resumes(tmp_path):
    whole = cavity.run(algorithm(), LoadedWhenAsked(clients()), rounds=3, tolerance=0.0)
    cavity.run(algorithm(), LoadedWhenAsked(clients()), rounds=1, tolerance=0.0, directory=tmp_path)
    resumed = cavity.resume(tmp_path, LoadedWhenAsked(clients()), rounds=3, tolerance=0.0)
    np.testing.assert_array_equal(resumed.posterior.precision, whole.posterior.precision)


def test_virtual_time_is_in_the_history():
    seconds = dict.fromkeys(clients(), 1.0) | {"client-5": 10.0}
    options = {"rounds": 3, "tolerance": 0.0, "visit_seconds": seconds}
    together = cavity.run(algorithm(), clients(), **options)
    assert [record["virtual_seconds"] for record in together.history] == [10.0, 20.0, 30.0]
    apart = cavity.run(algorithm(), clients(), schedule=cavity.schedules.Asynchronous(), **options)
    assert [record["virtual_seconds"] for record in apart.history] == [2.0, 4.0, 6.0]
    assert "virtual_seconds" not in cavity.run(algorithm(), clients(), rounds=1).history[0]


def test_bad_requests_are_refused_before_work_starts():
    some = clients()
    for options, message in (
        ({"visit_seconds": {"client-0": 1.0}}, "exactly one number per client"),
        ({"visit_seconds": dict.fromkeys(some, 0.0)}, "must be positive"),
        ({"rounds_per_block": 0}, "rounds_per_block must be a whole number of at least 1"),
        ({"chunk": 0}, "chunk must be a whole number of at least 1"),
    ):
        with pytest.raises(CavityError, match=message):
            cavity.run(algorithm(), some, **options)
    for source, options, message in (
        (LoadedWhenAsked({}), {}, "has no clients"),
        (LoadedWhenAsked(some), {"factors": "clients"}, "keep no state"),
        (LoadedWhenAsked(some), {"visit_seconds": dict.fromkeys(some, 1.0)}, "data are in memory"),
    ):
        with pytest.raises(CavityError, match=message):
            cavity.run(algorithm(), source, **options)
    bad = some | {"client-2": (np.array([[np.nan]]), np.array([1.0]))}
    with pytest.raises(DataError, match="client 'client-2'"):
        cavity.run(algorithm(), LoadedWhenAsked(bad))
