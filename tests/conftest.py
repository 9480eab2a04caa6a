"""Tests run in double precision, as the command does; single precision is a context in the tests that ask for it."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="module")
def quick_to_compile():
    """For many small programs, which take longer to compile well than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


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
