"""Small studies over a network, for `record_runs.py`: through the real encoding in one process, and over Flower.

In memory, the server and the workers of a study exchange encoded messages by a transport that loses none. Over Flower,
each party is a process of `cavity server` or `cavity client` on the loopback interface, with TLS, keys and signatures;
they compute in double precision, as this process does.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cavity
from cavity.fit.fit import Fit
from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.server import ServerConfig, StudyServer
from cavity.network.worker import Worker
from cavity.study import as_table, parse_study
from cavity.study.table import Table
from tests import own_models
from tests.flower_network import NAMES, Network, study_text
from tests.simulated_transport import Faults, SimulatedTransport
from tests.studies import patients

SECONDS = 600.0  # that a study over Flower may take
NEW = {"rx": ["low", "placebo"], "age": [70.0, 40.0], "sex": ["f", "m"]}
FEDGVI = '[algorithm]\nmethod = "fedgvi"\nloss = { beta = 0.2 }\ndamping = { fixed = 0.7 }\n'
ROUNDS = "[run]\nrounds = 3\ntolerance = 1e-30\n"

NetworkRun = tuple[Fit, Any]  # a fit, and rows to predict; None predicts nothing


def network_runs() -> Iterator[tuple[str, Callable[[], NetworkRun]]]:
    """Methods and schedules in memory, and two methods over Flower."""
    trial = {name: as_table(patients(50 + 10 * i, i)) for i, name in enumerate(NAMES)}
    wards = own_models.ward_tables(NAMES)
    for name, text, tables, new in (
        ("pvi", study_text(4, ROUNDS), trial, NEW),
        ("pvi, sequential", study_text(4, ROUNDS + 'schedule = "sequential"\n'), trial, NEW),
        ("pvi, sampled", study_text(4, ROUNDS + "schedule = { sampled-count = 2 }\n"), trial, NEW),
        ("pvi, asynchronous", study_text(4, ROUNDS + 'schedule = "asynchronous"\n'), trial, NEW),
        ("pvi, held by clients", study_text(4, '[algorithm]\nfactors = "clients"\n' + ROUNDS), trial, NEW),
        ("pvi, prior at the server", study_text(4, ROUNDS, own_models.SPREAD), wards, None),
        ("fedgvi", study_text(4, FEDGVI + ROUNDS), trial, NEW),
        ("sfvi-avg", study_text(4, "[run]\nrounds = 2\n", own_models.WARDS), wards, None),
    ):
        faults = Faults(delay=0.5) if "asynchronous" in name else Faults()  # replies arrive one after the other
        yield (
            f"network {name}",
            lambda text=text, tables=tables, new=new, faults=faults: (in_memory(text, tables, faults), new),
        )
    for name, text in (("pvi", study_text(3, ROUNDS)), ("fedgvi", study_text(3, FEDGVI + ROUNDS))):
        yield f"flower {name}", lambda text=text: (over_flower(text), NEW)


def in_memory(text: str, tables: Mapping[str, Table], faults: Faults) -> Fit:
    """The fit of a study whose server and clients exchange encoded messages within this process."""
    study = parse_study(text, allow_models=[own_models.__name__])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def worker(name: str) -> Worker:
            site = site_of(study, name, tables[name], folder / name, lambda line: None)
            return Worker(site, ClientStore(folder / name), SentLog(folder / name / "sent.jsonl"))

        transport = SimulatedTransport({name: worker(name).handle for name in study.clients}, faults=faults)
        server = StudyServer(
            study, text, folder / "run", transport, ServerConfig(), clock=transport.clock, sleep=transport.sleep
        )
        fit = server.run()
    assert fit is not None
    return fit


def over_flower(text: str) -> Fit:
    """The fit of a study whose parties are processes that Flower connects."""
    os.environ["JAX_ENABLE_X64"] = "1"  # of the processes that are started here
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), text) as network:
        network.start_all()
        if network.processes["server"].wait(SECONDS) != 0:
            raise RuntimeError(f"the server failed; its output ends:\n{network.output()[-3000:]}")
        return cavity.load(Path(folder) / "server" / "run")
