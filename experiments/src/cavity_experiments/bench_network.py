"""`cavity bench network`: the cost of a round over Flower, relative to Flower alone, and how large a posterior may be.

All on this machine, without TLS. A round of two clients with almost no work is compared with a round trip of plain
Flower (`bare_flower.py`), and with messages that are echoed over the same nodes. SuperNodes look for messages every
three seconds, so a single round is not informative: the result is the mean of several.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from cavity import training
from cavity.algorithms import PVI
from cavity.core import Data
from cavity.core.client_data import prepare_clients
from cavity.distributions import DiagonalGaussian
from cavity.errors import CavityError
from cavity.models import linear_regression
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.engine import NetworkEngine
from cavity.network.protocol import Identity, RunConfig
from cavity.network.session import POLL_SECONDS, Session, SessionConfig
from cavity.network.worker import ClientConfig, Site, Worker
from cavity.schedules import Synchronous
from cavity.solvers import FixedPoint
from cavity.training import Stopping
from cavity_experiments.bare_flower import echo_seconds
from cavity_experiments.core_speed import judge
from cavity_experiments.loopback import Loopback, unkeyed
from cavity_experiments.runner import Journal, Size

NAMES = ("leeds", "york")
NUM_ROWS = 3
BAR = 1.25
IDENTITY, RUN = Identity("bench", "{}"), "run"
Answers = dict[str, Callable[[bytes], bytes]]


def bench_network(journal: Journal, size: Size, seed: int) -> None:
    """Rounds, and a posterior of 50 megabytes."""
    quick = size is Size.QUICK
    num_rounds, num_features = (3, 999) if quick else (10, 3_124_999)  # means and precisions of 50 MB
    journal.settings(num_clients=len(NAMES), num_rounds=num_rounds, num_features=num_features)
    updates: Answers = dict.fromkeys(NAMES, bytes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Loopback(*unkeyed(folder / "loopback", NAMES), updates) as loopback:
            echo = _echoes(loopback, num_rounds)
            journal.say(f"messages and responses: {echo:.2f} s")
            trivial = _rounds(journal, "trivial work", loopback, updates, folder, 1, num_rounds, seed)
            before = _peak_megabytes(loopback)
            _rounds(journal, "large posterior", loopback, updates, folder, num_features, 2, seed)
            for program, megabytes in _peak_megabytes(loopback).items():
                journal.row("peak memory", program=program, before=before[program], large_posterior=megabytes)
        bare = float(np.mean(echo_seconds(folder / "bare", len(NAMES), num_rounds)))
    journal.row("round trips", kind="Flower alone", seconds=bare)
    journal.row("round trips", kind="messages over the same nodes", seconds=echo)
    judge(
        journal, "network-6a round / Flower's own round trip", trivial / bare, "<= 1.25", trivial / bare <= BAR, quick
    )
    ratio = trivial / echo
    judge(journal, "network-6b round / messages over the same nodes", ratio, "<= 1.25", ratio <= BAR, quick)


def _rounds(
    journal: Journal,
    kind: str,
    loopback: Loopback,
    updates: Answers,
    folder: Path,
    num_features: int,
    num_rounds: int,
    seed: int,
) -> float:
    """Seconds per round of one step of a linear regression; the first, in which both sides compile, does not count."""
    model = linear_regression(num_features, noise_sd=1.0, covariance=DiagonalGaussian)
    algorithm = PVI(model, solver=FixedPoint(max_steps=1, newton=False))
    rng = np.random.default_rng(seed)
    rows = {name: (rng.normal(size=(NUM_ROWS, num_features)), rng.normal(size=NUM_ROWS)) for name in NAMES}
    updates |= _answers(algorithm, prepare_clients(algorithm.model, rows), folder / kind, seed)
    session = Session(loopback.transport, SessionConfig(IDENTITY, RUN, NAMES), notify=journal.say)
    engine, schedule = NetworkEngine(algorithm, session, RunConfig(None), least=len(NAMES)), Synchronous()
    server = training.open_federation(algorithm, schedule, NAMES, seed)
    _, history, _ = training.run(algorithm, engine, schedule, server, [], Stopping(num_rounds + 1, 0.0))
    if history[-1]["communications"] != len(NAMES) * (num_rounds + 1):
        raise CavityError("a round was not complete; run nothing else at the same time")
    seconds = (history[-1]["seconds"] - history[0]["seconds"]) / num_rounds
    megabytes = history[0]["bytes"] / len(NAMES) / 1e6
    journal.row("rounds", kind=kind, seconds=seconds, megabytes_per_client=megabytes)
    journal.say(f"{kind}: {seconds:.2f} s per round, {megabytes:.3g} MB sent and received per client")
    return seconds


def _answers(algorithm: PVI, data: Mapping[str, Data], folder: Path, seed: int) -> Answers:
    def worker(name: str) -> Worker:
        config = ClientConfig(algorithm, data[name], seed)
        site = Site(
            name,
            IDENTITY,
            client_config=lambda run_config: config,
            sums=lambda scaling: None,
            finish=lambda files, posterior, run_config: None,
        )
        return Worker(site, ClientStore(folder / name), SentLog(folder / name / "sent.jsonl"))

    return {name: worker(name).handle for name in NAMES}


def _echoes(loopback: Loopback, num_rounds: int) -> float:
    """Seconds for a message to every client and its response."""
    transport, deadline = loopback.transport, time.monotonic() + 120.0
    while len(addresses := list(transport.reachable())) < len(NAMES):
        if time.monotonic() > deadline:
            raise CavityError("Flower's nodes did not connect within two minutes")
        time.sleep(POLL_SECONDS)
    began = time.perf_counter()
    for _ in range(num_rounds):
        awaited = set(transport.send(dict.fromkeys(addresses, b"?"), 60.0).values())
        while awaited:
            awaited -= {delivery.number for delivery in transport.fetch(awaited)}
            time.sleep(POLL_SECONDS if awaited else 0.0)
    return (time.perf_counter() - began) / num_rounds


def _peak_megabytes(loopback: Loopback) -> dict[str, float]:
    """The peak memory of Flower's programs and of this one; empty where the system does not report it."""
    programs = {
        "SuperLink": loopback.transport.pid,
        "proxy": loopback.transport.proxy_pid,
        "server and clients": "self",
    }
    programs |= {f"SuperNode of {name}": node.pid for name, node in loopback.nodes.items()}
    found = {}
    for program, number in programs.items():
        status = Path(f"/proc/{number}/status")
        lines = status.read_text().splitlines() if status.exists() else []
        peak = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        found[program] = float(peak[0]) / 1e3 if peak else float("nan")
    return found
