"""Both halves of a method in one file."""

from cavity.algorithms.fedep import FedEP
from cavity.algorithms.fedgvi import FedGVI
from cavity.algorithms.pvi import PVI
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.algorithms.stateless import FedAvg, FedPA, FedSEP

__all__ = ["PVI", "SFVI", "FedAvg", "FedEP", "FedGVI", "FedPA", "FedSEP", "SFVIAvg"]
