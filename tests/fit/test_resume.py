"""A run that was killed and resumed is, bit for bit, the run that was not; a file that cannot be read says so."""

import io
import json
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

import cavity
from cavity.aggregation import Fixed
from cavity.errors import CavityError, CheckpointError
from cavity.io import serialization
from cavity.io.checkpoints import CHECKPOINT, HISTORY, RunDirectory
from cavity.schedules import Sequential, SequentialLargestFirst, SequentialShuffled, Synchronous
from tests import scenarios
from tests.marks import thorough

RARELY = [pytest.mark.slow, pytest.mark.exhaustive]
SCHEDULES = [Synchronous(), Sequential(), SequentialShuffled(), SequentialLargestFirst()]
ROUNDS = 10


def logistic_clients():
    problem = scenarios.logistic(60, 1)
    return scenarios.clients(problem.x, problem.y, scenarios.label_sorted(problem.y, 3))


def linear_algorithm():
    return cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0))


class Killed(Exception):
    """What the observer below raises."""


def kill_in_round(number):
    def observer(record, server):
        if record["round"] == number:
            raise Killed

    return observer


def bits(tree):
    """Structure and every bit of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(np.asarray(leaf).dtype, np.asarray(leaf).tobytes()) for leaf in leaves]


def without_seconds(history):
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def assert_same_run(fit, other):
    for part in ("posterior", "prior", "entries", "method", "schedule", "clients", "version", "seed"):
        assert bits(getattr(fit.server, part)) == bits(getattr(other.server, part)), part
    assert bits(dict(fit.client_states)) == bits(dict(other.client_states))
    np.testing.assert_equal(without_seconds(fit.history), without_seconds(other.history))
    assert fit.stopped == other.stopped


@pytest.mark.parametrize("double", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["float64", "float32"])
@pytest.mark.parametrize("factors", ["server", "clients"])
@pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULES[0],
        *(pytest.param(schedule, marks=RARELY) for schedule in SCHEDULES[1:]),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_killed_and_resumed(tmp_path, schedule, factors, double):
    clients = logistic_clients()
    with jax.enable_x64(double):
        if isinstance(schedule, Synchronous):
            # one class per client and a wide prior: the damping backs off at first
            algorithm = cavity.PVI(cavity.models.logistic_regression(1, prior_scale=20.0))
        else:
            algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0), damping=Fixed(0.7))
        options = {
            "schedule": schedule,
            "factors": factors,
            "rounds": ROUNDS,
            "tolerance": 0.0,
            "seed": 7,
        }
        whole = cavity.run(algorithm, clients, **options)
        assert len(whole.history) == ROUNDS
        assert min(record["exponent"] for record in whole.history) < 1
        for last in (2, 5, ROUNDS):
            directory = tmp_path / str(last)
            with pytest.raises(Killed):
                cavity.run(
                    algorithm,
                    clients,
                    directory=directory,
                    checkpoint_seconds=0.0,
                    observers=[kill_in_round(last)],
                    **options,
                )
            assert len(cavity.load(directory).history) == last - 1
            resumed = cavity.resume(directory, clients, rounds=ROUNDS, tolerance=0.0)
            assert_same_run(resumed, whole)
    assert whole.posterior.precision.dtype == np.float64


def test_killed_again_and_again(tmp_path):
    clients = logistic_clients()
    algorithm = linear_algorithm()
    whole = cavity.run(algorithm, clients, rounds=6, tolerance=0.0)
    options = {"rounds": 6, "tolerance": 0.0, "checkpoint_seconds": 0.0}
    with pytest.raises(Killed):
        cavity.run(algorithm, clients, directory=tmp_path, observers=[kill_in_round(2)], **options)
    for number in (3, 3, 5):
        with pytest.raises(Killed):
            cavity.resume(tmp_path, clients, observers=[kill_in_round(number)], **options)
    assert_same_run(cavity.resume(tmp_path, clients, **options), whole)


def test_a_run_that_is_finished_is_only_read(tmp_path):
    clients = logistic_clients()
    algorithm = linear_algorithm()
    fit = cavity.run(algorithm, clients, directory=tmp_path)
    again = cavity.resume(tmp_path, clients, observers=[kill_in_round(1)])
    assert again.converged
    assert_same_run(again, fit)


def test_checkpoints_are_as_rare_as_asked(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(RunDirectory, "write", lambda self, state, history: written.append(len(history)))
    clients = logistic_clients()
    algorithm = linear_algorithm()
    cavity.run(algorithm, clients, rounds=3, tolerance=0.0, directory=tmp_path, checkpoint_seconds=0.0)
    assert written == [1, 2, 3, 3]
    written.clear()
    cavity.run(algorithm, clients, rounds=3, tolerance=0.0, directory=tmp_path, checkpoint_seconds=1e9)
    assert written == [3]


def test_the_history_can_be_read_without_cavity(tmp_path):
    fit = cavity.run(linear_algorithm(), logistic_clients(), directory=tmp_path)
    lines = (tmp_path / HISTORY).read_text().splitlines()
    np.testing.assert_equal([json.loads(line) for line in lines], fit.history)


def test_save_and_load(tmp_path):
    clients = logistic_clients()
    fit = cavity.run(cavity.PVI(cavity.models.linear_regression(["dose"], noise_sd=1.0)), clients)
    fit.save(tmp_path / "deep" / "fit.npz")
    again = cavity.load(tmp_path / "deep" / "fit.npz", clients=clients)
    assert_same_run(again, fit)
    assert str(again.summary()) == str(fit.summary())
    x = np.array([[0.3], [-1.0]])
    np.testing.assert_array_equal(again.predict(x).mean, fit.predict(x).mean)
    name = fit.server.names[0]
    assert bits(again.withdraw(name).posterior) == bits(fit.withdraw(name).posterior)


def test_a_file_holds_no_data(tmp_path):
    """A saved fit may be passed on; the rows stay at home."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 1)), rng.normal(size=30)
    fit = cavity.run(cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0)), {"leeds": (x, y)})
    fit.save(tmp_path / "fit.npz")
    with np.load(tmp_path / "fit.npz") as file:
        numbers = np.concatenate([file[name].ravel() for name in file.files if file[name].dtype == float])
    assert not np.isin(x, numbers).any()
    assert not np.isin(y, numbers).any()


def test_without_data_a_fit_says_what_it_lacks(tmp_path):
    fit = cavity.run(linear_algorithm(), logistic_clients())
    fit.save(tmp_path / "fit.npz")
    again = cavity.load(tmp_path / "fit.npz")
    again.summary()
    for action in (lambda: again.withdraw(fit.server.names[0]), lambda: again.join("hull", None), again.refine):
        with pytest.raises(CavityError, match=r"cavity\.load\(path, clients=\.\.\.\)"):
            action()


@thorough
def test_what_cannot_be_written_is_given_again(tmp_path):
    """A log likelihood of the user's is a function; it stays out of the file."""

    def log_likelihood(parameters, batch):
        return -0.5 * (batch - parameters["location"]) ** 2

    algorithm = cavity.PVI(cavity.models.function_model(log_likelihood, {"location": 0.0}))
    clients = {"leeds": np.array([1.0, 2.0]), "york": np.array([0.5])}
    options = {"rounds": 6, "tolerance": 0.0, "checkpoint_seconds": 0.0}
    whole = cavity.run(algorithm, clients, **options)
    with pytest.raises(Killed):
        cavity.run(algorithm, clients, directory=tmp_path, observers=[kill_in_round(4)], **options)
    with pytest.raises(CavityError, match=r"parts from outside Cavity; give `algorithm=`"):
        cavity.resume(tmp_path, clients, **options)
    assert_same_run(cavity.resume(tmp_path, clients, algorithm=algorithm, **options), whole)


def test_other_clients_than_before(tmp_path):
    clients = logistic_clients()
    cavity.run(linear_algorithm(), clients, directory=tmp_path)
    fewer = {name: clients[name] for name in list(clients)[1:]}
    with pytest.raises(CavityError, match=r"differ in their clients: client-0.*fit\.join or fit\.withdraw"):
        cavity.resume(tmp_path, fewer)


class Bomb:
    """Unpickling it leaves a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def foreign_files(trace):
    bomb = Bomb(trace)
    bombs = npz(manifest=np.array([bomb], object))
    return {
        "empty": b"",
        "text": b"version,posterior\n1,2\n",
        "pickle": pickle.dumps(bomb),
        "npz": npz(x=np.zeros(3)),
        "npz with a manifest": npz(manifest=np.zeros(3)),
        "npz with objects": bombs,
        "sealed text": serialization.seal(b"version,posterior\n1,2\n"),
        "sealed pickle": serialization.seal(pickle.dumps(bomb)),
        "sealed npz": serialization.seal(npz(x=np.zeros(3))),
        "sealed npz with objects": serialization.seal(bombs),
        "another tree": serialization.to_bytes([1, 2]),
        "another dict": serialization.to_bytes({"state": 1}),
    }


def assert_refused(path, read=cavity.load):
    with pytest.raises(CheckpointError) as caught:
        read(path)
    message = str(caught.value)
    assert CHECKPOINT in message
    assert str(path) in message
    assert "start the run" in message  # the remedy


@pytest.mark.parametrize("kind", foreign_files(""))
def test_a_foreign_file(tmp_path, kind):
    trace = tmp_path / "trace"
    (tmp_path / CHECKPOINT).write_bytes(foreign_files(trace)[kind])
    assert_refused(tmp_path)
    assert_refused(tmp_path, lambda path: cavity.resume(path, logistic_clients()))
    assert not trace.exists()


def test_the_bomb_works(tmp_path):
    """Or the test above would prove nothing."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "trace"))).close()
    assert (tmp_path / "trace").exists()


def test_no_file(tmp_path):
    assert_refused(tmp_path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    model = cavity.models.linear_regression(1, noise_sd=1.0)
    cavity.run(cavity.PVI(model), {"leeds": ([[1.0], [2.0]], [1.0, 2.0])}, directory=directory)
    return (directory / CHECKPOINT).read_bytes()


def test_a_file_that_was_cut_off(tmp_path, checkpoint):
    for length in {*range(0, len(checkpoint), 61), *range(len(checkpoint) - 60, len(checkpoint))}:
        (tmp_path / CHECKPOINT).write_bytes(checkpoint[:length])
        assert_refused(tmp_path)


def test_a_file_with_a_flipped_byte(tmp_path, checkpoint):
    rng = np.random.default_rng(0)
    for place in {*range(0, len(checkpoint), 37), *range(len(checkpoint) - 60, len(checkpoint))}:
        damaged = bytearray(checkpoint)
        damaged[place] ^= int(rng.integers(1, 256))
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        assert_refused(tmp_path)


def test_a_file_that_was_lengthened(tmp_path, checkpoint):
    (tmp_path / CHECKPOINT).write_bytes(checkpoint + b"\0")
    assert_refused(tmp_path)


def test_a_file_of_another_format(tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(serialization, "FORMAT", 99)
    content = serialization.to_bytes({"state": {}, "history": []})
    monkeypatch.undo()
    (tmp_path / CHECKPOINT).write_bytes(content)
    assert_refused(tmp_path)
    with pytest.raises(CheckpointError, match=rf"format 99.*reads format {serialization.FORMAT}"):
        cavity.load(tmp_path)


class Crash(Exception):
    """The machine stops between two operations on a file."""


@pytest.mark.parametrize("operation", range(6))
def test_a_crash_while_writing_leaves_a_checkpoint(tmp_path, monkeypatch, operation):
    """Two files are written; each takes a sync, a rename and a sync of the folder."""
    directory = RunDirectory(tmp_path)
    directory.write({"number": 1}, [{"round": 1}])
    left = [operation]

    def crashing(function):
        def crash_or_call(*arguments):
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            return function(*arguments)

        return crash_or_call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crashing(os.fsync))
        patch.setattr(os, "replace", crashing(os.replace))
        with pytest.raises(Crash):
            directory.write({"number": 2}, [{"round": 1}, {"round": 2}])
    state, history = directory.read()
    renamed = operation >= 2
    assert state == {"number": 2 if renamed else 1}
    assert len(history) == (2 if renamed else 1)
    # and the next write goes through, over whatever the crash has left
    directory.write({"number": 3}, [])
    assert directory.read()[0] == {"number": 3}


def test_a_write_takes_six_operations(tmp_path, monkeypatch):
    """Or the test above would leave some out."""
    seen = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda *a: (seen.append("sync"), sync(*a)))
    monkeypatch.setattr(os, "replace", lambda *a: (seen.append("rename"), rename(*a)))
    RunDirectory(tmp_path).write({}, [])
    assert seen == ["sync", "rename", "sync"] * 2
    assert sorted(os.listdir(tmp_path)) == sorted([CHECKPOINT, HISTORY])


def test_only_complete_content_is_renamed(tmp_path, monkeypatch):
    """What takes the place of the old file is on the disk already, and whole."""
    complete = {}
    rename = os.replace

    def look_and_rename(source, target):
        complete[os.path.basename(target)] = Path(source).read_bytes()
        rename(source, target)

    monkeypatch.setattr(os, "replace", look_and_rename)
    RunDirectory(tmp_path).write({"number": 1}, [])
    assert complete[CHECKPOINT] == (tmp_path / CHECKPOINT).read_bytes()


def test_a_foreign_class_in_a_checkpoint(tmp_path, checkpoint):
    """A file from elsewhere names a class: it is neither imported nor made."""
    fit = serialization.from_bytes(checkpoint)
    hostile = json.dumps(
        {"format": serialization.FORMAT, "tree": {"dict": [["state", {"type": "antigravity:Fly", "fields": {}}]]}}
    )
    (tmp_path / CHECKPOINT).write_bytes(serialization.seal(npz(manifest=np.frombuffer(hostile.encode(), np.uint8))))
    assert_refused(tmp_path)
    assert fit["state"]["server"].names == ("leeds",)
