"""Tests run in double precision, as the command does; single precision is a context in the tests that ask for it."""

import jax

jax.config.update("jax_enable_x64", True)
