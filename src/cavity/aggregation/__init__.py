"""What the server does with replies."""

from cavity.aggregation.damping import Adaptive, Fixed, Probing, Stale
from cavity.core.lazy_loading import listing

__all__ = ["Adaptive", "Fixed", "Probing", "Stale"]

__dir__ = listing(__all__)
