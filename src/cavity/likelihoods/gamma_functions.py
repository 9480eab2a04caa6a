"""Differences of log gamma functions that keep their digits in single precision.

    log Gamma(x) = (x - 1/2) log x - x + log(2 pi) / 2 + stirling_error(x),     stirling_error(x) = 1 / (12 x) - ...

A difference of two large log gammas loses all its digits; here the large terms cancel before they are rounded.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

LARGE = 16.0  # from here four terms of Stirling's series are exact to 2e-12
HALF_LOG_TWO_PI = 0.5 * float(np.log(2 * np.pi))
Values = Float[Array, "..."]


def stirling_error(x: Values) -> Values:
    """The error of Stirling's formula at x, of at least 16."""
    square = x**-2.0
    return (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))) / x


def excess_ratio(x: Values, d: Values | float) -> Values:
    """Log of Gamma(x + d) / (Gamma(x) x^d), for x and x + d of at least 16."""
    return (x + (d - 0.5)) * jnp.log1p(d / x) - d + stirling_error(x + d) - stirling_error(x)


def log_ratio(x: Values, d: Values | float) -> Values:
    """Log of Gamma(x + d) / Gamma(x), for x > 0 and d of at least 0."""
    is_large = x >= LARGE
    large, small = jnp.where(is_large, x, LARGE), jnp.where(is_large, 1.0, x)
    direct = gammaln(small + d) - gammaln(small)
    return jnp.asarray(jnp.where(is_large, excess_ratio(large, d) + d * jnp.log(large), direct))


def log_peak(a: Values) -> Values:
    """Log of a^a e^-a / Gamma(a), for a > 0: the log density at its mean of a gamma variable of shape a, times a."""
    is_large = a >= LARGE
    large, small = jnp.where(is_large, a, LARGE), jnp.where(is_large, 1.0, a)
    series = 0.5 * jnp.log(large) - HALF_LOG_TWO_PI - stirling_error(large)
    return jnp.asarray(jnp.where(is_large, series, small * jnp.log(small) - small - gammaln(small)))
