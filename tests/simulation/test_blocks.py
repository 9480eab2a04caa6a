"""One run in many ways: in blocks or round by round, padded or not, as a loop or as steps, on one device or two.

All of them give the same posterior and the same history, to rounding.
"""

import json
import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cavity import PVI, training
from cavity.aggregation import Adaptive, Fixed, Stale
from cavity.core import Data, Solution, Solver
from cavity.distributions import DiagonalGaussian
from cavity.models import function_model, logistic_regression
from cavity.schedules import Synchronous
from cavity.simulation import drive, stacks
from cavity.simulation.local import LocalEngine
from cavity.simulation.stacks import pad
from cavity.simulation.streaming import StreamingEngine
from cavity.solvers import Gradient, NaturalGradient
from tests.doubles import LoadedWhenAsked
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

ROUNDS = 20
EXACT, NOISY = "natural gradient", "mini-batches and draws"
ALGORITHMS = {
    EXACT: PVI(logistic_regression(1), solver=NaturalGradient()),
    NOISY: PVI(
        logistic_regression(1, covariance=DiagonalGaussian),
        solver=Gradient(optax.adam, 0.05, num_steps=30, batch_size=8),
    ),
}
method_of = pytest.mark.parametrize("method", ALGORITHMS)


def clients(sizes=(17, 20, 24, 31)):
    """Logistic data; sizes that share a power of two share a bucket, padded to the largest of them."""
    rng = np.random.default_rng(0)
    made = {}
    for i, size in enumerate(sizes):
        x = rng.normal(size=(size, 1))
        y = (rng.random(size) < 1 / (1 + np.exp(0.5 - 1.5 * x[:, 0]))).astype(float)
        made[f"client-{i}"] = Data((x, y), rng.uniform(0.5, 2.0, size), np.asarray(size))
    return made


def run(algorithm, engine, names, rounds_per_block=1, rounds=ROUNDS):
    server = training.open_federation(algorithm, Synchronous(), names, 3)
    stopping = training.Stopping(rounds, tolerance=0.0)
    server, history, _ = training.run(
        algorithm, engine, Synchronous(), server, [], stopping, rounds_per_block=rounds_per_block
    )
    assert len(history) == rounds
    return server, history


def run_local(algorithm, data, rounds_per_block=1, rounds=ROUNDS):
    return run(algorithm, LocalEngine(algorithm, data, seed=3), list(data), rounds_per_block, rounds)


@cache
def reference(method):
    """Round by round, padded to the longest client, as one compiled loop."""
    return run_local(ALGORITHMS[method], clients())


def assert_same(one, other):
    """The posterior, the rows, the bookkeeping and the history; only the clock may differ."""
    (server, history), (other_server, other_history) = one, other
    trees = [(s.posterior, s.entries, s.method) for s in (server, other_server)]
    for mine, theirs in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)
    assert server.version == other_server.version
    for name in server.names:
        mine, theirs = server.clients[name], other_server.clients[name]
        assert (mine.sequence, mine.waiting, mine.settled.sequence) == (
            theirs.sequence,
            theirs.waiting,
            theirs.settled.sequence,
        )
        np.testing.assert_allclose(mine.settled.exponent, theirs.settled.exponent, rtol=1e-12)
    assert_same_history(history, other_history)


def assert_same_history(history, other):
    clocks = {"seconds", "compute_seconds"}  # the second of which not every engine has
    assert [set(record) - clocks for record in history] == [set(record) - clocks for record in other]
    for key in history[0].keys() - clocks - {"gaps", "refusals"}:
        # a gap near zero is the rounding of numbers near one
        np.testing.assert_allclose(
            [record[key] for record in history], [record[key] for record in other], rtol=1e-9, atol=1e-12, err_msg=key
        )
    for record, twin in zip(history, other, strict=True):
        assert record["gaps"].keys() == twin["gaps"].keys()
        assert record["refusals"] == twin["refusals"]
        np.testing.assert_allclose(list(record["gaps"].values()), list(twin["gaps"].values()), rtol=1e-9, atol=1e-12)


@method_of
@thorough
def test_blocks_of_ten(method):
    assert_same(run_local(ALGORITHMS[method], clients(), 10), reference(method))


def test_the_reference_learns():
    """So that being the same means something."""
    server, history = reference(EXACT)
    assert history[-1]["gap"] < 1e-6 < history[0]["gap"]
    assert history[-1]["free_energy"] > history[0]["free_energy"]
    assert history[-1]["communications"] == 4 * ROUNDS
    assert float(server.posterior.mean[1]) > 0.5


@thorough
@method_of
def test_steps(monkeypatch, method):
    """One by one from the host, which looks every few steps whether all are done."""
    monkeypatch.setattr(drive, "LARGE", 0)
    monkeypatch.setattr(drive, "LOOK_EVERY", 4)
    assert_same(run_local(ALGORITHMS[method], clients()), reference(method))


@thorough
@method_of
def test_padding(method):
    data = {name: pad(each, 50) for name, each in clients().items()}
    assert_same(run_local(ALGORITHMS[method], data), reference(method))


def test_who_shares_a_bucket(monkeypatch):
    """Clients of at most twice the size of each other; all clients if there are few rows."""
    monkeypatch.setattr(stacks, "FEW_ROWS", 100)

    def grouped(*sizes):
        rows = {f"{size}": Data(np.zeros(size), np.ones(size), np.asarray(size)) for size in sizes}
        return [(bucket.names, bucket.data.weight.shape) for bucket in stacks.buckets(rows, stacks.device_mesh())]

    assert grouped(30, 200, 99, 150) == [(("200", "150"), (2, 200)), (("99",), (1, 99)), (("30",), (1, 30))]
    assert grouped(3, 33, 12) == [(("3", "33", "12"), (3, 33))]


@thorough
def test_buckets_of_unequal_sizes(monkeypatch):
    """Two buckets where nothing is padded, against one where everything is."""
    monkeypatch.setattr(stacks, "FEW_ROWS", 0)
    algorithm, data = ALGORITHMS[NOISY], clients((3, 33))
    padded = {name: pad(each, 40) for name, each in data.items()}
    apart = run_local(algorithm, data, rounds=4)
    assert_same(apart, run_local(algorithm, padded, rounds=4))
    # several buckets are several programs, so there a block is one round after the other
    assert LocalEngine(algorithm, data).advance(apart[0], 4) is None
    assert_same(run_local(algorithm, data, 4, rounds=4), apart)


@thorough
@pytest.mark.parametrize(("method", "chunk"), [(NOISY, 1), (NOISY, 3), (EXACT, 7)])
def test_streamed_chunks(method, chunk):
    algorithm, data = ALGORITHMS[method], clients()
    engine = StreamingEngine(algorithm, LoadedWhenAsked(data), seed=3, chunk=chunk)
    assert_same(run(algorithm, engine, list(data)), reference(method))
    engine.close()


def test_a_run_of_blocks_compiles_once():
    """The log likelihood is called while tracing only, so it counts traces."""
    calls = []

    def log_likelihood(theta, batch):
        calls.append(None)
        return -0.5 * (batch - theta) ** 2

    algorithm = PVI(function_model(log_likelihood, 0.0, covariance=DiagonalGaussian), solver=NaturalGradient())
    data = {name: Data(np.arange(3.0), np.ones(3), np.asarray(3)) for name in "ab"}
    engine = LocalEngine(algorithm, data)
    server = training.open_federation(algorithm, Synchronous(), list(data), 0)
    server, _ = engine.advance(server, 3)
    traced = len(calls)
    for _ in range(3):
        server, _ = engine.advance(server, 3)
    assert len(calls) == traced > 0
    assert server.version == 12


class Puppet(Solver):
    """Returns a prescribed answer: tilted = start ** power, where `power` comes with the data, and NaN beyond a
    precision.

    A power below 1 asks for less precision than there is, and several clients together for less than none.
    """

    limit: float

    def check(self, model, loss, divergence):
        return None

    def steps_for(self, num_rows):
        return 0

    def init(self, problem):
        return problem.data.batch[0]

    def step(self, key, problem, state):
        return state

    def done(self, state):
        return jnp.asarray(True)

    def result(self, problem, state):
        tilted = problem.start**state
        broken = (jnp.max(problem.start.precision) > self.limit) & (state > 3)
        tilted = jax.tree.map(lambda leaf: jnp.where(broken, jnp.nan, leaf), tilted)
        return Solution(tilted, jnp.asarray(0.0), jnp.asarray(0), jnp.asarray(True))


def puppets(damping, powers, limit=np.inf):
    model = function_model(lambda theta, batch: batch, 0.0, prior_scale=1.0, covariance=DiagonalGaussian)
    data = {str(i): Data(np.array([power]), np.ones(1), np.asarray(1)) for i, power in enumerate(powers)}
    return PVI(model, solver=Puppet(limit), damping=damping), data


@pytest.mark.parametrize("damping", [Fixed(0.8), Adaptive(), Stale(Adaptive())], ids=["fixed", "adaptive", "stale"])
def test_backing_off_from_an_improper_product(damping):
    """1 - 0.7 - 0.7 < 0, so the first exponents are halved, inside a block as outside."""
    algorithm, data = puppets(damping, (0.3, 0.3, 1.1))
    alone = run_local(algorithm, data, rounds=7)
    assert alone[1][0]["exponent"] <= 0.5
    # in blocks of 3, 3 and 1
    assert_same(run_local(algorithm, data, 3, rounds=7), alone)
    if isinstance(damping, Adaptive):
        assert alone[1][1]["exponent"] == 0.5 * 1.25


@thorough
def test_backing_off_from_a_residual_that_grows():
    """Mean field on two nearly equal columns: synchronous updates overshoot until the damping reduces them."""
    rng = np.random.default_rng(1)
    made = {}
    for i in range(4):
        x = rng.normal(size=(20, 1)) + 0.1 * rng.normal(size=(20, 3))
        made[str(i)] = Data((x, (x[:, 0] > 0).astype(float)), np.ones(20), np.asarray(20))
    algorithm = PVI(logistic_regression(3, covariance=DiagonalGaussian, intercept=False))
    alone = run_local(algorithm, made, rounds=8)
    exponents = [record["exponent"] for record in alone[1]]
    assert min(exponents) < 1.0
    assert_same(run_local(algorithm, made, 8, rounds=8), alone)


def test_a_broken_client_is_refused_as_the_ledger_refuses_it(caplog):
    """It fails when the precision exceeds 40, in the middle of a block; then it is refused, and named, every time."""
    algorithm, data = puppets(Adaptive(), (1.1, 1.2, 3.5), limit=40.0)
    with caplog.at_level(logging.WARNING, "cavity"):
        alone = run_local(algorithm, data, rounds=8)
        warnings = [record.getMessage() for record in caplog.records]
        caplog.clear()
        block = run_local(algorithm, data, 8, rounds=8)
    assert_same(block, alone)
    assert [record.getMessage() for record in caplog.records] == warnings
    refusals = [record["refused"] for record in alone[1]]
    assert refusals[:2] == [0, 0]
    assert refusals[-1] > 0
    assert all("'2'" in warning and "NaN" in warning for warning in warnings)
    assert len(warnings) == sum(refusals)


def test_a_product_that_no_exponent_saves_ends_the_block():
    """Nothing has happened then, and the ledger has its turn."""
    algorithm, data = puppets(Fixed(1.0), (-1e30, 1.0))
    server = training.open_federation(algorithm, Synchronous(), list(data), 0)
    after, rounds = LocalEngine(algorithm, data).advance(server, 3)
    assert list(rounds) == []
    assert after is server


def two_devices():
    """Run in a process with two devices; prints what it found."""
    assert len(jax.devices()) == 2
    jax.config.update("jax_disable_most_optimizations", True)
    found = {
        f"{EXACT}, blocks": summary(run_local(ALGORITHMS[EXACT], clients(), 10)),
        f"{NOISY}, rounds": summary(run_local(ALGORITHMS[NOISY], clients())),
        # three clients do not divide into two shares
        f"{NOISY}, three": summary(run_local(ALGORITHMS[NOISY], clients((17, 20, 24)), rounds=4)),
    }
    drive.LARGE = 0
    found[f"{NOISY}, steps"] = summary(run_local(ALGORITHMS[NOISY], clients()))
    print(json.dumps(found))


def summary(outcome):
    server, history = outcome
    return {"posterior": [leaf.tolist() for leaf in jax.tree.leaves(server.posterior)], "history": history}


@pytest.mark.slow
def test_two_devices():
    root = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": "1",
    }
    command = [sys.executable, "-c", "from tests.simulation.test_blocks import two_devices; two_devices()"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert process.returncode == 0, process.stderr
    for name, found in json.loads(process.stdout).items():
        method, way = name.split(", ")
        one = reference(method)
        if way == "three":
            one = run_local(ALGORITHMS[method], clients((17, 20, 24)), rounds=4)
        for mine, theirs in zip(found["posterior"], summary(one)["posterior"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, err_msg=name)
        assert_same_history(found["history"], one[1])
