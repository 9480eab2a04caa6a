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
