"""Methods: each file has the client part and the server part of one method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.algorithms.fedep import FedEP
    from cavity.algorithms.fedgvi import FedGVI
    from cavity.algorithms.hierarchical import HierarchicalPVI
    from cavity.algorithms.inducing_average import InducingAverage
    from cavity.algorithms.pvi import PVI
    from cavity.algorithms.sfvi import SFVI
    from cavity.algorithms.sfvi_avg import SFVIAvg
    from cavity.algorithms.stateless import FedAvg, FedPA, FedSEP

__all__ = [
    "PVI",
    "SFVI",
    "FedAvg",
    "FedEP",
    "FedGVI",
    "FedPA",
    "FedSEP",
    "HierarchicalPVI",
    "InducingAverage",
    "SFVIAvg",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "fedep": "FedEP",
        "fedgvi": "FedGVI",
        "hierarchical": "HierarchicalPVI",
        "inducing_average": "InducingAverage",
        "pvi": "PVI",
        "sfvi": "SFVI",
        "sfvi_avg": "SFVIAvg",
        "stateless": "FedAvg FedPA FedSEP",
    },
)
