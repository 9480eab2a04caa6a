"""How far q may move from the cavity."""

from cavity.divergences.f_divergence import FDivergence
from cavity.divergences.fisher_rao import FisherRao
from cavity.divergences.kl import KL, WeightedKL
from cavity.divergences.renyi import Renyi
from cavity.divergences.reverse_kl import ReverseKL

__all__ = ["KL", "FDivergence", "FisherRao", "Renyi", "ReverseKL", "WeightedKL"]
