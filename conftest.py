"""Tests run in double precision, as the command does; single precision is a context in the tests that ask for it.

Their programs are small: most take longer to compile well than to run, so they are compiled quickly.
"""

import gc
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does; it is read when JAX loads LAPACK
# Programs are compiled once for all workers, for the processes that tests start, and for later runs.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".jax_cache"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA comments on every program that it loads from there

import jax
import pytest

# XLA reads this when it starts its first device. Without the newer emitters of fusions, and with the code of a program
# in one piece, compilation takes a third of the time. Newer versions have no other emitters; XLA ends the process at a
# flag that it does not know.
flags = ["--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):
    flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(flags))
jax.config.update("jax_enable_x64", True)

MAPS, MANY_MAPS = Path("/proc/self/maps"), 20_000


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks():
    """What a power cut would lose no test can see; that files are synced, and when, is tested by who calls this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="module")
def quick_to_compile():
    """For modules whose slow tests, too, run many small programs."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile well what runs for long: slow tests, unless their module asks otherwise. Child processes do the same."""
    well = item.get_closest_marker("slow") is not None and "quick_to_compile" not in item.fixturenames
    jax.config.update("jax_disable_most_optimizations", not well)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if well else "1"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs after a module's tests where they have become many.

    Each holds memory maps, of which Linux gives a process 65,530 by default; XLA crashes where it gets no more.
    """
    last = nextitem is None or nextitem.path != item.path
    if last and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def command(capsys):
    """The command with these words: its exit code, and what it printed to either stream."""
    from cavity.cli.main import main

    def run(*words):
        with pytest.raises(SystemExit) as exit:
            main(words)
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run
