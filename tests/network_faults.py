"""Faults of real processes: each function starts a `Network` of two clients, kills processes and restarts them."""

import os
import shutil
import signal
import sys
from pathlib import Path


def dying(moment, count):
    """The command that kills itself at a moment; see `killed.py`."""
    return sys.executable, str(Path(__file__).with_name("killed.py")), moment, str(count)


def ends(network, who):
    assert network.processes[who].wait(300) == -signal.SIGKILL, network.output(who)


def client_in_a_round(network):
    network.start_all()
    network.wait_for("round 2:")
    network.kill("york")
    network.start("york")


def client_between_computing_and_sending(network):
    network.start("server")
    network.start("leeds")
    network.start("york", program=dying("computed", 3))
    ends(network, "york")
    network.start("york")


def client_whose_disk_is_wiped(network):
    network.start_all()
    network.wait_for("round 2:")
    network.kill("york")
    shutil.rmtree(network.folder / "york" / "site")
    network.start("york")


def server_in_a_round(network):
    network.start_all()
    network.wait_for("round 2:")
    network.kill("server")
    network.start("server")


def server_between_receiving_and_writing(network):
    network.start("server", program=dying("received", 3))
    network.start("leeds")
    network.start("york")
    ends(network, "server")
    network.start("server")


def server_between_writing_and_sending(network):
    network.start("server", program=dying("noted", 5))
    network.start("leeds")
    network.start("york")
    ends(network, "server")
    network.start("server")


def superlink(network):
    network.start_all()
    network.wait_for("round 2:")
    os.kill(network.superlink(), signal.SIGKILL)


def all_at_once(network):
    network.start_all()
    network.wait_for("round 3:")
    for who in ("leeds", "server", "york"):
        network.kill(who)
    network.start_all()


FAULTS = (
    client_in_a_round,
    client_between_computing_and_sending,
    client_whose_disk_is_wiped,
    server_in_a_round,
    server_between_receiving_and_writing,
    server_between_writing_and_sending,
    superlink,
    all_at_once,
)
