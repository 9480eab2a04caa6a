"""The speed of the local engine; each number is a ratio to a reference that is timed in turn in the same run.

Every program is compiled before it is timed, and the best of several turns is used, because other work can only make a
run slower.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from cavity import training
from cavity.aggregation import Fixed
from cavity.algorithms import PVI
from cavity.core import Algorithm
from cavity.core.client_data import prepare_clients
from cavity.distributions import DiagonalGaussian
from cavity.distributions.quadrature import normal_nodes
from cavity.errors import CavityError
from cavity.models import linear_regression, logistic_regression, mlp_classifier
from cavity.schedules import Synchronous
from cavity.simulation.local import LocalEngine
from cavity.simulation.stacks import AXIS, device_mesh
from cavity.solvers import FixedPoint, Gradient, NaturalGradient
from cavity_experiments import handwritten
from cavity_experiments.runner import Journal

NUM_CLIENTS = 10
Rows = tuple[np.ndarray, np.ndarray]


class Contestant:
    """A method over some clients in the local engine, whose rounds are timed."""

    def __init__(self, algorithm: Algorithm, clients: Mapping[str, Rows], seed: int):
        self._algorithm = algorithm
        self._data = prepare_clients(algorithm.model, clients)
        self._seed = seed
        self.restart()

    def restart(self) -> None:
        """Back to the prior; what is compiled stays."""
        self.engine = LocalEngine(self._algorithm, self._data, seed=self._seed)
        self.server = training.open_federation(self._algorithm, Synchronous(), list(self._data), self._seed)

    def round(self) -> Any:
        """One synchronous round, ledger and all; returns the posterior."""
        self.server, _ = training.run_round(self._algorithm, self.engine, Synchronous(), self.server)
        return self.server.posterior

    def block(self, num_rounds: int) -> Any:
        """Some rounds as one program; returns the posterior."""
        advanced = self.engine.advance(self.server, num_rounds)
        if advanced is None or len(advanced[1]) < num_rounds:
            raise CavityError("the block did not run as one program; is double precision on?")
        self.server = advanced[0]
        return self.server.posterior


def timed(run: Callable[[], Any]) -> float:
    """Seconds until the result is there."""
    began = perf_counter()
    jax.block_until_ready(run())
    return perf_counter() - began


def best_of(repeats: int, **contestants: Callable[[], Any]) -> dict[str, float]:
    """The least seconds of each, after one turn that does not count."""
    for run in contestants.values():
        timed(run)
    turns = [{name: timed(run) for name, run in contestants.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in turns) for name in contestants}


def logistic_rows(seed: int, num_rows: int, num_columns: int, dtype: Any = np.float64) -> Rows:
    """Standard normal columns and outcomes of a logistic model."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_columns))
    theta = rng.normal(size=num_columns) * 2 / np.sqrt(num_columns)
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ theta))
    return x.astype(dtype), y.astype(dtype)


def shared_out(rows: Rows, num_clients: int) -> dict[str, Rows]:
    """Equal numbers of rows, in random order."""
    x, y = (np.split(leaf, num_clients) for leaf in rows)
    return {f"client-{i}": share for i, share in enumerate(zip(x, y, strict=True))}


def adam_steps(journal: Journal, *, quick: bool, seed: int) -> None:
    """(a) Adam on mini-batches of a logistic regression."""
    num_rows, num_columns, num_steps, batch_size = (2_000, 10, 50, 16) if quick else (40_000, 100, 2_000, 128)
    repeats = 1 if quick else 5
    with jax.enable_x64(False):
        rows = logistic_rows(seed, num_rows, num_columns, np.float32)
        model = logistic_regression(num_columns, prior_scale=1.0, covariance=DiagonalGaussian, intercept=False)
        solver = Gradient(optax.adam, 1e-2, num_steps, batch_size)
        cavity = Contestant(PVI(model, solver=solver), shared_out(rows, NUM_CLIENTS), seed)
        x, y = (jnp.asarray(leaf).reshape(NUM_CLIENTS, -1, *leaf.shape[1:]) for leaf in rows)
        keys = jax.random.split(jax.random.key(seed), NUM_CLIENTS)

        def loop(*clients: Any) -> Any:
            return handwritten.adam_steps(*clients, num_steps=num_steps, batch_size=batch_size)

        def one_by_one() -> Any:
            return [loop(keys[i : i + 1], x[i : i + 1], y[i : i + 1]) for i in range(NUM_CLIENTS)]

        seconds = best_of(
            repeats, cavity=cavity.round, scan_of_all=lambda: loop(keys, x, y), scan_one_by_one=one_by_one
        )
    for name, taken in seconds.items():
        journal.row("adam_steps", program=name, steps_per_second=NUM_CLIENTS * num_steps / taken)
    ratio = min(seconds["scan_of_all"], seconds["scan_one_by_one"]) / seconds["cavity"]
    judge(journal, "speed-1a Adam steps per second / hand-written scan", ratio, ">= 0.75", ratio >= 0.75, quick)


def newton(journal: Journal, *, quick: bool, seed: int) -> None:
    """(b) Time until KL to the pooled optimum is below 1e-4."""
    num_rows, num_columns = (2_000, 5) if quick else (40_000, 100)
    repeats, close = 1 if quick else 3, 1e-4
    rows, model = logistic_rows(seed, num_rows, num_columns), logistic_regression(num_columns, intercept=False)
    exact = Contestant(PVI(model, solver=NaturalGradient()), {"pooled": rows}, seed).round()
    pooled = Contestant(PVI(model, solver=NaturalGradient(tolerance=close)), {"pooled": rows}, seed)
    federated = Contestant(PVI(model, solver=NaturalGradient()), shared_out(rows, NUM_CLIENTS), seed)
    seconds = {"pooled": np.inf, "federated": np.inf}
    num_rounds = 0
    for turn in range(repeats + 1):
        pooled.restart()
        federated.restart()
        taken = {"pooled": timed(pooled.round), "federated": 0.0}
        distance, num_rounds = np.inf, 0
        while distance >= close:
            taken["federated"] += timed(federated.round)
            num_rounds += 1
            distance = float(federated.server.posterior.kl(exact))
        if float(pooled.server.posterior.kl(exact)) >= close:
            raise CavityError("the pooled fit missed its own optimum")
        if turn > 0:  # the first turn compiles
            seconds = {name: min(seconds[name], taken[name]) for name in seconds}
    for name, best in seconds.items():
        journal.row("newton", fit=name, seconds=best, rounds=num_rounds if name == "federated" else 1)
    ratio = seconds["federated"] / seconds["pooled"]
    judge(journal, "speed-1b time to KL < 1e-4 / pooled Newton", ratio, "<= 3", ratio <= 3, quick)


def many_clients(journal: Journal, *, quick: bool, seed: int) -> None:
    """(c) A thousand small clients against one with all rows, mean field, Adam, all rows in every step."""
    num_clients, num_columns, num_steps = (20, 5, 20) if quick else (1_000, 100, 200)
    with jax.enable_x64(False):
        rows = logistic_rows(seed, 40 * num_clients, num_columns, np.float32)
        model = logistic_regression(num_columns, prior_scale=1.0, covariance=DiagonalGaussian, intercept=False)
        solver = Gradient(optax.adam, 1e-2, num_steps, batch_size=None)
        many = Contestant(PVI(model, solver=solver), shared_out(rows, num_clients), seed)
        one = Contestant(PVI(model, solver=solver), {"all": rows}, seed)
        seconds = best_of(1 if quick else 4, many=many.round, one=one.round)
    for name, taken in seconds.items():
        clients = num_clients if name == "many" else 1
        journal.row("many_clients", clients=clients, seconds=taken, clients_per_second=clients / taken)
    ratio = seconds["many"] / seconds["one"]
    judge(journal, "speed-1c round of 1,000 clients of 40 rows / of one", ratio, "<= 2", ratio <= 2, quick)


def network(journal: Journal, *, quick: bool, seed: int) -> None:
    """(d) A Bayesian perceptron against its matrix products alone."""
    sizes, batch_size, num_steps = ((8, 4, 3), 16, 4) if quick else ((784, 200, 10), 512, 100)
    num_rows = 4 * batch_size
    with jax.enable_x64(False):
        rng = np.random.default_rng(seed)
        clients = {
            f"client-{i}": (rng.random((num_rows, sizes[0]), np.float32), rng.integers(0, sizes[-1], num_rows))
            for i in range(NUM_CLIENTS)
        }
        model = mlp_classifier(sizes[0], sizes[1:-1], sizes[-1])
        cavity = Contestant(PVI(model, solver=Gradient(optax.adam, 1e-3, num_steps, batch_size)), clients, seed)
        shapes = list(product_shapes(sizes, batch_size))
        operations = num_steps * NUM_CLIENTS * sum(2 * n * k * m for n, k, m in shapes)
        pairs = [
            tuple(rng.random((NUM_CLIENTS, *shape), np.float32) for shape in ((n, k), (k, m))) for n, k, m in shapes
        ]
        split = NamedSharding(device_mesh(), PartitionSpec(AXIS))

        def products(placed: Any) -> Callable[[], Any]:
            return lambda: [handwritten.matrix_products(placed) for _ in range(num_steps)][-1]

        contestants = {"cavity": cavity.round, "products": products(jax.device_put(pairs, jax.devices()[0]))}
        if NUM_CLIENTS % device_mesh().size == 0:
            contestants["products_on_each_core"] = products(jax.device_put(pairs, split))
        seconds = best_of(1 if quick else 4, **contestants)
    for name, taken in seconds.items():
        journal.row("network", program=name, gigaflops=operations / taken / 1e9)
    ratio = min(taken for name, taken in seconds.items() if name != "cavity") / seconds["cavity"]
    judge(journal, "speed-1d flop rate of a network / its matrix products", ratio, ">= 0.65", ratio >= 0.65, quick)


def product_shapes(sizes: tuple[int, ...], batch_size: int) -> Any:
    """(n, k, m) of each product of a step: means and variances, forwards, to the weights, and to the layer below."""
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        forwards, to_weights = (batch_size, fan_in, fan_out), (fan_in, batch_size, fan_out)
        below = [(batch_size, fan_out, fan_in)] if layer > 0 else []
        yield from 2 * [forwards, to_weights, *below]


def memory(journal: Journal, *, quick: bool) -> None:
    """(e) The peak memory of a round over streamed clients, in processes of their own."""
    few, many = (1_000, 2_000) if quick else (1_000, 100_000)
    found = {}
    for num_clients in (few, many):
        command = [sys.executable, "-m", "cavity_experiments.core_memory", str(num_clients)]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
        if finished.returncode != 0:
            raise CavityError(f"the round over {num_clients} clients fails: {finished.stderr.strip()[-300:]}")
        found[num_clients] = json.loads(finished.stdout)
        speed = num_clients / found[num_clients]["seconds"]
        journal.row("memory", **found[num_clients], clients_per_second=speed)
    ratio = found[many]["megabytes"] / found[few]["megabytes"]
    right = max(entry["relative_error"] for entry in found.values()) < 1e-5
    name = "speed-1e peak memory of 100,000 streamed clients / of 1,000"
    judge(journal, name, ratio, "<= 1.2, with the right mean", ratio <= 1.2 and right, quick)


def block_of_rounds(journal: Journal, *, quick: bool, seed: int) -> None:
    """(f) A hundred synchronous rounds as one program, one natural-gradient step of each client in each.

    Also, without a threshold, the same for a linear regression in closed form, whose rounds are so short that the
    ledger's own work (gaps, propriety, transfers to the host and back) is visible.
    """
    rows_per_client, num_columns, num_rounds = (50, 3, 5) if quick else (1_000, 20, 100)
    rows = logistic_rows(seed, NUM_CLIENTS * rows_per_client, num_columns)
    x, y = (jnp.asarray(leaf).reshape(NUM_CLIENTS, rows_per_client, *leaf.shape[1:]) for leaf in rows)
    nodes, weights = (jnp.asarray(leaf) for leaf in normal_nodes(1))
    logistic = logistic_regression(num_columns, prior_scale=1.0, intercept=False)
    linear = linear_regression(num_columns, noise_sd=1.0, prior_scale=1.0, intercept=False)
    blocks = {
        "one step": PVI(logistic, solver=FixedPoint(max_steps=1), damping=Fixed(1.0)),
        "closed form": PVI(linear, damping=Fixed(1.0)),
    }
    scans: dict[str, Callable[[], Any]] = {
        "one step": lambda: handwritten.newton_rounds(x, y, nodes[:, 0], weights, num_rounds=num_rounds, num_steps=1),
        "closed form": lambda: handwritten.conjugate_rounds(x, y, jnp.asarray(1.0), num_rounds=num_rounds),
    }
    ratios = {}
    for name, method in blocks.items():
        cavity = Contestant(method, shared_out(rows, NUM_CLIENTS), seed)

        def block(cavity: Contestant = cavity) -> Any:
            cavity.restart()
            return cavity.block(num_rounds)

        seconds = best_of(1 if quick else 4, cavity=block, scan=scans[name])
        ratios[name] = seconds["cavity"] / seconds["scan"]
        for program, taken in seconds.items():
            label = f"{program}, {name}"
            journal.row("block", program=label, seconds=taken, rounds_per_second=num_rounds / taken)
    ratio = ratios["one step"]
    judge(journal, "speed-1f block of 100 rounds / hand-written scan", ratio, "<= 1.3", ratio <= 1.3, quick)
    journal.say(f"the same in closed form: {ratios['closed form']:.3g} (no bar)")


def judge(journal: Journal, name: str, value: float, bar: str, holds: bool, quick: bool) -> None:
    """Compare a ratio with its threshold, unless the sizes are tiny."""
    journal.check(name, float(value), bar, None if quick else bool(holds))
    journal.say(f"{name}: {value:.3g} (bar {bar})")
