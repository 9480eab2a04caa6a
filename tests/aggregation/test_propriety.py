"""Halving until a posterior is proper: the same on the host and traced, and no more halvings than needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity.aggregation.propriety import halved, proper_scale

CASES = [(2.0, 1.0), (1.0, 1.0), (0.9, 0.5), (0.5, 0.5), (0.3, 0.25), (2.0**-40, 2.0**-40), (2.0**-41, 0.0), (0.0, 0.0)]


@pytest.mark.parametrize(("limit", "expected"), CASES)
def test_the_largest_power_of_a_half_that_is_proper(limit, expected):
    calls = []

    def is_proper(scale):
        calls.append(scale)
        return scale <= limit

    assert proper_scale(is_proper) == expected
    assert calls == [2.0**-k for k in range(len(calls))]
    traced = jax.jit(lambda limit: proper_scale(lambda scale: jnp.asarray(scale <= limit)))
    assert float(traced(limit)) == expected


def test_fewer_halvings_are_a_limit():
    assert proper_scale(lambda scale: scale <= 0.2, 3) == 0.125
    assert proper_scale(lambda scale: scale <= 0.2, 2) == 0.0


@pytest.mark.parametrize("halvings", [0, 1, 5, 40])
def test_a_state_changes_once_for_each_halving(halvings):
    scale = 2.0**-halvings
    assert halved(scale, lambda state: state + 1, 0) == halvings
    traced = jax.jit(lambda scale: halved(scale, lambda state: state + 1.0, jnp.zeros(())))
    assert float(traced(scale)) == halvings
    assert not np.isnan(float(traced(0.0)))  # nothing was proper: the caller keeps the old state
