"""Both halves of a method in one file."""

from cavity.algorithms.fedgvi import FedGVI
from cavity.algorithms.pvi import PVI
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg

__all__ = ["PVI", "SFVI", "FedGVI", "SFVIAvg"]
