"""The level of credible intervals, in one place.

An interval of level 0.95 is central: 2.5 % of the posterior lies below it, and 2.5 % above.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from jaxtyping import PyTree

from cavity.errors import CavityError

DEFAULT_LEVEL = 0.95


def check_level(level: PyTree) -> float:
    """Check the level of an interval.

    Args:
        level: what was given as the probability that the interval has.

    Returns:
        The level.

    Raises:
        CavityError: unless it is a number between 0 and 1.
    """
    try:
        number = math.nan if isinstance(level, str) else float(level)
    except (TypeError, ValueError):
        number = math.nan
    if 0 < number < 1:
        return number
    hint = f"; for {number:g} % give {number / 100:g}" if 1 < number < 100 else ""
    raise CavityError(f"level must be a probability between 0 and 1, such as {DEFAULT_LEVEL}, not {level!r}{hint}")


def tails(level: float) -> tuple[float, float]:
    """The two quantiles at the ends of a central interval.

    Args:
        level: the probability that the interval has.

    Returns:
        The probability below the lower end, and below the upper end.

    Example:
        >>> tails(0.5)
        (0.25, 0.75)
    """
    check_level(level)
    return (1 - level) / 2, (1 + level) / 2


def half_width(level: float) -> float:
    """Half of the width of a central interval of the standard normal.

    Args:
        level: the probability that the interval has.

    Returns:
        The number of standard deviations from the mean to either end.

    Example:
        >>> round(half_width(0.95), 3)
        1.96
    """
    return NormalDist().inv_cdf(tails(level)[1])


def percent(level: float) -> str:
    """A level as text.

    Args:
        level: the probability that the interval has.

    Returns:
        The level in percent.

    Example:
        >>> percent(0.95), percent(0.999)
        ('95 %', '99.9 %')
    """
    return f"{100 * level:.10g} %"
