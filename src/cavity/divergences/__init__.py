"""Divergences: how far a client's posterior may move from its cavity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.divergences.f_divergence import FDivergence
    from cavity.divergences.fisher_rao import FisherRao
    from cavity.divergences.kl import KL, WeightedKL
    from cavity.divergences.renyi import Renyi
    from cavity.divergences.reverse_kl import ReverseKL

__all__ = ["KL", "FDivergence", "FisherRao", "Renyi", "ReverseKL", "WeightedKL"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "f_divergence": "FDivergence",
        "fisher_rao": "FisherRao",
        "kl": "KL WeightedKL",
        "renyi": "Renyi",
        "reverse_kl": "ReverseKL",
    },
)
