"""Tests run in double precision, as the command does; single precision is a context in the tests that ask for it.

Their programs are small: most take longer to compile well than to run, so they are compiled quickly.
"""

import os

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="module")
def quick_to_compile():
    """For modules whose slow tests, too, run many small programs."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile well what runs for long: slow tests, unless their module asks otherwise. Child processes do the same."""
    well = item.get_closest_marker("slow") is not None and "quick_to_compile" not in item.fixturenames
    jax.config.update("jax_disable_most_optimizations", not well)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0" if well else "1"


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
