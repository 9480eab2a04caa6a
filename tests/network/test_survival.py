"""Survival families and splines over a network, with the real encoding of messages, are `cavity run` in one process."""

import numpy as np
import pytest

from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.server import ServerConfig, StudyServer
from cavity.network.worker import Worker
from cavity.study import as_table, parse_study
from cavity.study.run import run_study
from tests.marks import thorough
from tests.simulated_transport import SimulatedTransport
from tests.study.test_survival import CLIENTS, PIECEWISE, STUDY

pytestmark = pytest.mark.usefixtures("quick_to_compile")

COX = 'family = "cox"\n'
STUDIES = {
    "cox": STUDY,
    "cox, splines": STUDY.replace("~ age", "~ ns(age, knots=[50, 65], range=[0, 120])"),
    "weibull": STUDY.replace(COX, 'family = "weibull"\n'),
    "lognormal": STUDY.replace(COX, 'family = "lognormal"\n'),
    "exponential": STUDY.replace(COX, 'family = "exponential"\n'),
    "shared baseline": STUDY.replace(COX, PIECEWISE),
    "baselines of clients": STUDY.replace(COX, PIECEWISE + 'baseline = "client"\n'),
}


@thorough
@pytest.mark.parametrize("name", STUDIES)
def test_every_family_over_a_network_is_the_same(tmp_path, name):
    text, lines = STUDIES[name], []
    study, tables = parse_study(text), {client: as_table(columns) for client, columns in CLIENTS.items()}

    def worker(client):
        folder = tmp_path / client
        site = site_of(study, client, tables[client], folder, lines.append)
        return Worker(site, ClientStore(folder), SentLog(folder / "sent.jsonl"), notify=lines.append).handle

    transport = SimulatedTransport({client: worker(client) for client in study.clients})
    config = ServerConfig(notify=lines.append, round_timeout=20.0, report=False)
    run = tmp_path / "run"
    fit = StudyServer(study, text, run, transport, config, clock=transport.clock, sleep=transport.sleep).run()
    alone = run_study(study, tables)
    assert fit.converged
    assert not [line for line in lines if "refused" in line]
    sd = np.sqrt(np.diag(alone.posterior.covariance))
    assert np.max(np.abs(fit.posterior.mean - alone.posterior.mean) / sd) < 1e-6
    np.testing.assert_allclose(np.sqrt(np.diag(fit.posterior.covariance)), sd, rtol=1e-6)
