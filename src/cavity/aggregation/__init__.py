"""What the server does with replies."""

from cavity.aggregation.damping import Adaptive, Fixed, Stale, one_over

__all__ = ["Adaptive", "Fixed", "Stale", "one_over"]
