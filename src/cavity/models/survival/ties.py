"""The denominator of Cox's partial likelihood at a time with several events.

With R the sum of exp(eta) over those at risk who have no event at this time, D the sum over those who have, and W their
number,

    Breslow:   W log(R + D)
    Efron:     sum over l = 0, ..., W - 1 of  log(R + D - l D / W)

Efron's sum is W log u + log Gamma(x + W) - log Gamma(x) with u = D / W and x = 1 + R / u. This takes no loop, and it
also defines the sum where W is the weight of the events and no whole number: a row of weight 2 is the same row twice,
and two rows of weight 1/2 are one. (R's `coxph` with `weights` computes another approximation, for which this is not
so.) Both Gamma functions are huge where R is much larger than u, so their ratio is computed by Stirling's series at
y = x + 8,

    log Gamma(y + W) - log Gamma(y) = (y - 1/2) log(1 + W / y) + W log(y + W) - W + c(y + W) - c(y),

times the eight factors (x + i) / (x + i + W), as a function of v = 1 / y.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

TIES = ("efron", "breslow")
STEPS = 8
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)  # c(z) = sum of a_k / z^(2k + 1)
SMALLEST = 1e-80  # of u, relative to the largest exp(eta): below it makes no difference


def log_denominator(
    others: Float[Array, " n"], events: Float[Array, " n"], num_events: Float[Array, " n"], ties: str
) -> Float[Array, " n"]:
    """One number per time; 0 where there is no event.

    Args:
        others: R.
        events: D.
        num_events: W.
        ties: "efron" or "breslow".

    Returns:
        The logarithm that is subtracted from the log partial likelihood.
    """
    present = num_events > 0
    r, d, w = (jnp.where(present, each, 1.0) for each in (others, events, num_events))
    found = w * jnp.log(r + d) if ties == "breslow" else _efron(r, d, w)
    return jnp.where(present, found, 0.0)


def _efron(r: Float[Array, " n"], d: Float[Array, " n"], w: Float[Array, " n"]) -> Float[Array, " n"]:
    tiny = SMALLEST if r.dtype == jnp.float64 else 1e-12
    u = jnp.maximum(d / w, tiny)
    scale = r + (1 + STEPS) * u  # u y
    v = u / scale
    share = w * v
    above, below = 1.0 - v, 1.0 + share - v
    for j in range(2, 1 + STEPS):
        above, below = above * (1.0 - j * v), below * (1.0 + share - j * v)
    log1p = jnp.log1p(share)
    found = w * jnp.log(scale + d) + w * (log1p / share - 1.0) - 0.5 * log1p
    return found + _stirling(v / (1.0 + share)) - _stirling(v) + jnp.log(above / below)


def _stirling(v: Float[Array, " n"]) -> Float[Array, " n"]:
    """c(1 / v)."""
    square, found = v * v, jnp.zeros_like(v)
    for coefficient in reversed(STIRLING):
        found = found * square + coefficient
    return found * v
