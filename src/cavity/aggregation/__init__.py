"""What the server does with replies."""

from cavity.aggregation.damping import Adaptive, Fixed, Stale
from cavity.core.lazy_loading import listing

__all__ = ["Adaptive", "Fixed", "Stale"]

__dir__ = listing(__all__)
