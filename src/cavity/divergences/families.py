"""For which families a divergence is defined."""

from __future__ import annotations

from cavity.core import Distribution
from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError


def require_gaussian(family: Distribution, name: str) -> None:
    """Raise UnsuitableError unless `family` is a member of a Gaussian family.

    Args:
        family: the member.
        name: the divergence, for the message.
    """
    if not isinstance(family, Gaussian):
        raise UnsuitableError(f"{name} is for Gaussian families, not {type(family).__name__}; use KL")
