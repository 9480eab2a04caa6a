"""What the server does with replies."""

from cavity.server.damping import Adaptive, Fixed, one_over

__all__ = ["Adaptive", "Fixed", "one_over"]
