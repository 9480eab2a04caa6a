"""Every family over a network, with the real encoding of messages, is `cavity run` in one process."""

import jax
import numpy as np
import pytest

from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.server import ServerConfig, StudyServer
from cavity.network.worker import Worker
from cavity.study import as_table, parse_study
from cavity.study.run import run_study
from tests import family_data
from tests.marks import exhaustive, thorough
from tests.simulated_transport import SimulatedTransport

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def over_network(folder, text, tables):
    """The fit of a study whose server and clients exchange bytes."""
    study, lines = parse_study(text), []

    def worker(name):
        site = site_of(study, name, tables[name], folder / name, lines.append)
        return Worker(site, ClientStore(folder / name), SentLog(folder / name / "sent.jsonl"), notify=lines.append)

    transport = SimulatedTransport({name: worker(name).handle for name in study.clients})
    config = ServerConfig(notify=lines.append, round_timeout=20.0, report=False)
    server = StudyServer(study, text, folder / "run", transport, config, clock=transport.clock, sleep=transport.sleep)
    return server.run(), lines


def check_equal(folder, text, tables):
    with jax.enable_x64(True):
        fit, lines = over_network(folder, text, tables)
        alone = run_study(parse_study(text), tables)
    assert fit.converged
    assert not [line for line in lines if "refused" in line]
    own, other = fit.coefficients, alone.coefficients
    assert own.names == other.names
    assert np.max(np.abs(own.mean - other.mean) / other.sd) < 1e-6
    np.testing.assert_allclose(own.sd, other.sd, rtol=1e-6)


@thorough
@pytest.mark.parametrize("name", family_data.STUDIES)
def test_every_family_over_a_network_is_the_same(tmp_path, name):
    check_equal(tmp_path, family_data.STUDIES[name].text, family_data.tables())


@exhaustive
@thorough
@pytest.mark.parametrize("kind", ["laplace", "student-t", "horseshoe"])
def test_priors_that_are_not_normal(tmp_path, kind):
    text = family_data.STUDIES["bernoulli"].text.replace("[run]", f'[prior]\nfamily = "{kind}"\n[run]')
    check_equal(tmp_path, text.replace("1e-12", "1e-10"), family_data.tables())


@thorough
def test_weights(tmp_path):
    text = family_data.STUDIES["gamma"].text.replace(
        "[columns]", 'weights = "copies"\n[columns]\ncopies = { type = "number" }'
    )
    frames = {name: own | {"copies": np.resize([0, 1, 2.5], 40)} for name, own in family_data.clients().items()}
    check_equal(tmp_path, text, {name: as_table(frame) for name, frame in frames.items()})


def test_a_level_that_no_client_has_ends_the_run_with_the_remedy(tmp_path):
    text = family_data.STUDIES["ordinal logit"].text.replace('"severe"', '"severe", "worst"')
    with pytest.raises(Exception, match=r"no client has a row with the level grade\[worst\]"):
        over_network(tmp_path, text, family_data.tables())
