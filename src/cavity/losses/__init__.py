"""What a client minimises in expectation."""

from cavity.losses.nll import NegativeLogLikelihood

__all__ = ["NegativeLogLikelihood"]
