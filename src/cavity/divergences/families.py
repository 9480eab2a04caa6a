"""For which families a divergence is defined."""

from __future__ import annotations

from cavity.core import Distribution
from cavity.core.fields import require_kind
from cavity.distributions.gaussian import Gaussian
from cavity.errors import UnsuitableError


def require_gaussian(family: Distribution, name: str) -> None:
    """Raise UnsuitableError unless `family` is a member of a Gaussian family.

    Args:
        family: the member.
        name: the divergence, for the message.
    """
    require_kind(family, Gaussian, f"{name} is for Gaussian families (use KL for others)", UnsuitableError)
