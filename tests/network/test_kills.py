"""Real processes that are killed, refused, withdrawn and late; `tools/faults.py` has more of these."""

import os
import shutil
import signal
import subprocess
from dataclasses import replace

import pytest

pytest.importorskip("flwr")

from cavity.network.keys import make_keys
from tests.flower_network import CAVITY, Network, study_text
from tests.marks import exhaustive
from tests.network_faults import dying, ends
from tests.studies import UNSCALED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(590)]

# damped, so that the run is long enough for all faults
LONG = "[algorithm]\ndamping = { fixed = 0.5 }\n[run]\ntolerance = 1e-12\nrounds = 1000\n"


def test_a_study_survives_kills_of_every_process(tmp_path):
    """Processes are killed one after the other and restarted: no data count twice, and none are lost."""
    with Network(tmp_path, study_text(2, LONG)) as network:
        network.start("server", program=dying("received", 4))
        network.start("york", program=dying("computed", 2))
        network.start("leeds")
        ends(network, "york")  # between computing and sending
        network.start("york")
        ends(network, "server")  # between receiving and writing
        network.start("server", program=dying("noted", 3))
        ends(network, "server")  # between writing and sending
        network.start("server")
        network.wait_for("resuming after round", times=2)
        network.wait_for("york is connected", times=2)
        network.wait_for("round ", times=network.output().count("round ") + 1)
        network.kill("york")
        shutil.rmtree(tmp_path / "york" / "site")  # the server has its factor
        network.start("york")
        os.kill(network.superlink(), signal.SIGKILL)
        network.wait_for("restarting it")
        network.wait_for("Results:", seconds=400)
        assert network.kl() < 1e-8
        network.wait_for("Results:", "york")


def test_strangers_are_refused(tmp_path):
    """An unregistered key, a certificate of another authority, and a second client of one name."""
    with Network(tmp_path, study_text(2, "[run]\nrounds = 5\n")) as network:
        make_keys(network.study, tmp_path / "others", ["127.0.0.1"])
        theirs = tmp_path / "others" / "clients" / "york"
        mixed = tmp_path / "mixed"
        mixed.mkdir()
        for file in ("ca.pem", "server.pem"):
            (mixed / file).write_bytes((tmp_path / "york" / "keys" / file).read_bytes())
        (mixed / "client.key").write_bytes((theirs / "client.key").read_bytes())
        network.start("server")
        network.start("york/unregistered", "--output", "unregistered", keys=str(mixed))
        network.start("york/authority", "--output", "authority", keys=str(theirs))
        network.start("leeds")
        network.wait_for("leeds is connected")
        network.start("leeds/second", "--output", "second")
        network.wait_for("the server refuses this key", "leeds/second")
        network.wait_for("the server refuses this key", "york/unregistered")
        network.wait_for("certificate", "york/authority")
        assert "york is connected" not in network.output()
        network.start("york")
        network.wait_for("Results:")
        assert network.kl() < 1e-8
        for who in ("york/unregistered", "york/authority", "leeds/second"):
            home, folder = who.split("/")
            assert not (tmp_path / home / folder / "sent.jsonl").exists()


@exhaustive
def test_without_keys_on_this_machine(tmp_path):
    """A second client of one name is refused there too."""
    with Network(tmp_path, study_text(2, "[run]\nrounds = 5\n")) as network:
        network.start("server", "--insecure")
        network.start("leeds", "--insecure")
        network.wait_for("leeds is connected")
        network.start("leeds/second", "--insecure", "--output", "second")
        assert network.processes["leeds/second"].wait(60) == 2
        assert "a second one is refused" in network.output("leeds/second")
        network.start("york", "--insecure")
        network.wait_for("Results:")
        assert network.kl() < 1e-8


@exhaustive
def test_a_client_is_withdrawn_and_another_joins_during_a_run(tmp_path):
    """The posterior is that of a study with the clients that are left."""
    run = "[algorithm]\ndamping = { fixed = 0.5 }\n[run]\ntolerance = 1e-12\n"
    with Network(tmp_path, study_text(3, run, text=UNSCALED)) as network:
        for who in ("leeds", "york"):
            network.start(who)
        network.start("server", "--min-clients", "2")
        network.wait_for("round 1:")
        network.start("hull")
        network.wait_for("hull has joined")
        request = [CAVITY, "withdraw", "york", "study.toml", "--output", "run"]
        subprocess.run(request, cwd=tmp_path / "server", check=True)
        network.wait_for("york has been withdrawn")
        network.wait_for("Results:", seconds=300)
        network.study = replace(network.study, clients=("leeds", "hull"))
        assert network.kl() < 1e-6
