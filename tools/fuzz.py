"""Send changed messages and files, sealed and signed again, to all code that reads them.

    .venv/bin/python tools/fuzz.py messages --count 1000000 --seed 0
    .venv/bin/python tools/fuzz.py files --count 200000 --seed 0

Each must be accepted, or refused with a `ProtocolError` or `CheckpointError`. Any other exception is printed, and its
traceback is written to the folder `--keep`. Prints how many of each kind were accepted and refused, and by how much the
memory of the process grew. The exit code is 1 after any other exception, or if memory grew by more than 64 MB.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pytest

from cavity.io import serialization
from tests.fuzz_targets import Files, Receivers, play_files, play_messages, without_solves

MOST_MEMORY = 64.0  # MB
REPORTS = 20


def memory(what: str) -> float:
    """VmRSS, the memory of this process now, or VmHWM, the largest since `forget_peak`; in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


def forget_peak() -> float:
    """Reset VmHWM; returns the memory in use now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def main() -> int:
    """Run, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("messages", "files"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for tracebacks")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    escaped: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=Path("/dev/shm") if Path("/dev/shm").is_dir() else None) as folder:
        play, target = _target(options.what, Path(folder))
        began, baseline = time.monotonic(), forget_peak()
        for i in range(options.count):
            rng = random.Random(options.seed * 10**9 + i)
            try:
                play(target, rng, seen)
            except Exception as error:
                _note(error, options, i, escaped)
            if (i + 1) % max(options.count // REPORTS, 1) == 0:
                rate, above = (time.monotonic() - began) / (i + 1) * 1e6, memory("VmHWM") - baseline
                others = sum(escaped.values())
                print(
                    f"{i + 1:,}: {others} other exceptions, {above:.1f} MB more memory, {rate:.0f} us each", flush=True
                )
        more = memory("VmHWM") - baseline
    print(", ".join(f"{what} {count:,}" for what, count in sorted(seen.items())))
    for what, count in escaped.most_common():
        print(f"{count:,} x {what}")
    return 1 if escaped or more > MOST_MEMORY else 0


def _target(what: str, folder: Path):
    """The function to call and its target. One valid item of each kind is read first, to compile the programs."""
    logging.getLogger("cavity").setLevel(logging.CRITICAL)
    if what == "files":
        files = Files(folder)
        for kind, parts in files.kinds.items():
            assert files.read(kind, serialization.seal(parts.container)), kind
        return play_files, files
    receivers = Receivers(folder)
    without_solves(pytest.MonkeyPatch())
    for kind, parts in receivers.to_server.items():
        receivers.served(kind, serialization.seal(parts.container))
    for parts in receivers.to_client.values():
        receivers.answered(serialization.seal(parts.container))
    return play_messages, receivers


def _note(error: Exception, options: argparse.Namespace, i: int, escaped: Counter[str]) -> None:
    error = error.__context__ if type(error).__name__ == "Escaped" and error.__context__ is not None else error  # pyright: ignore[reportAssignmentType]
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
    if escaped[what] == 0 and len(escaped) < 50:
        print(f"number {i}: {what}", flush=True)
        if options.keep is not None:
            options.keep.mkdir(parents=True, exist_ok=True)
            text = "".join(traceback.format_exception(error))
            (options.keep / f"{options.what}-{options.seed}-{i}.txt").write_text(text, errors="backslashreplace")
    escaped[what] += 1


if __name__ == "__main__":
    sys.exit(main())
