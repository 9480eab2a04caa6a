"""Every fault of a real network, each in a study of its own, and ten thousand schedules of faults over the protocol.

    .venv/bin/python tools/faults.py processes     # real processes, killed: about 15 minutes
    .venv/bin/python tools/faults.py schedules     # simulated: about 8 minutes

Prints what was done, how far the posterior is from that of an undisturbed run, and how long it took; ends with exit
code 1 at the first fault that does harm.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.network import Network, study_text
from tests.test_network_kills import LONG, dying
from tests.test_network_protocol import play_schedules

BAR = 1e-8  # nats


def client_in_a_round(network):
    network.start_all()
    network.wait_for("round 2,")
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
    network.wait_for("round 2,")
    network.kill("york")
    shutil.rmtree(network.folder / "york" / "site")
    network.start("york")


def server_in_a_round(network):
    network.start_all()
    network.wait_for("round 2,")
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
    network.wait_for("round 2,")
    os.kill(network.superlink(), signal.SIGKILL)


def everybody_at_once(network):
    network.start_all()
    network.wait_for("round 3,")
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
    everybody_at_once,
)


def ends(network, who):
    assert network.processes[who].wait(300) == -signal.SIGKILL, network.said(who)


def processes() -> None:
    """Kill, start again, and look at the posterior."""
    for fault in FAULTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, Network(Path(folder), study_text(2, LONG)) as network:
            fault(network)
            network.wait_for("Results:", seconds=600)
            kl = network.kl()
        print(f"{fault.__name__.replace('_', ' ')}: KL {kl:.1e}, {time.monotonic() - began:.0f} s", flush=True)
        assert kl < BAR


def schedules(total: int = 10_000, block: int = 1_000) -> None:
    """Play schedules by letter; the invariant is checked to 1e-9 after every step, the fixed point in the end."""
    seen: Counter[str] = Counter()
    for first in range(0, total, block):
        began = time.monotonic()
        seen.update(play_schedules(100_000 + first, block))
        print(f"{first + block} schedules, {time.monotonic() - began:.0f} s for the last {block}", flush=True)
    print(", ".join(f"{event} {count}" for event, count in sorted(seen.items())))


if __name__ == "__main__":
    parts = {"processes": processes, "schedules": schedules}
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    parts[sys.argv[1]]()
