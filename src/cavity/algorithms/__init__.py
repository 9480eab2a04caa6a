"""Both halves of a method in one file."""

from cavity.algorithms.fedgvi import FedGVI
from cavity.algorithms.pvi import PVI

__all__ = ["PVI", "FedGVI"]
