"""What the server does with replies."""

from cavity.aggregation.damping import Adaptive, Fixed, Probing, Stale, one_over
from cavity.core.lazy_loading import listing

__all__ = ["Adaptive", "Fixed", "Probing", "Stale", "one_over"]

__dir__ = listing(__all__)
