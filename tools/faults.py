"""Every fault of a real network, each in a study of its own, and ten thousand simulated sequences of faults.

    .venv/bin/python tools/faults.py processes     # real processes, killed: about 15 minutes
    .venv/bin/python tools/faults.py schedules     # simulated: about 8 minutes

Prints what was done, how far the posterior is from that of an undisturbed run, and how long it took; ends with exit
code 1 at the first fault that does harm.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.flower_network import Network, study_text
from tests.network.test_kills import LONG
from tests.network.test_protocol import play_schedules
from tests.network_faults import FAULTS

BAR = 1e-8  # nats


def processes() -> None:
    """Kill processes, restart them, and compare the posterior."""
    for fault in FAULTS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, Network(Path(folder), study_text(2, LONG)) as network:
            fault(network)
            network.wait_for("Results:", seconds=600)
            kl = network.kl()
        print(f"{fault.__name__.replace('_', ' ')}: KL {kl:.1e}, {time.monotonic() - began:.0f} s", flush=True)
        assert kl < BAR


def schedules(total: int = 10_000, block: int = 1_000) -> None:
    """Simulate sequences of faults; check the invariant to 1e-9 after every step, and the fixed point at the end."""
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
