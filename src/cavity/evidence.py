"""The evidence of a model, log p(y), from the free energy at a fixed point (PVI, property 2.2 a)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cavity.algorithms.factors import FactorAlgorithm
from cavity.errors import CavityError
from cavity.federation import Record
from cavity.ledger import is_proper

NO_EVIDENCE = "under an improper prior there is no evidence, for its constant could be anything; give a proper prior"


def log_evidence(algorithm: Any, history: Sequence[Record]) -> float:
    """The free energy of the last round, where it bounds log p(y); else a CavityError that says why not."""
    if not isinstance(algorithm, FactorAlgorithm):
        raise CavityError(
            f"{type(algorithm).__name__} follows a bound with Monte Carlo noise, by which models cannot be compared; "
            "use PVI"
        )
    if algorithm.likelihood_power is None or not math.isclose(algorithm.likelihood_power, 1.0):
        raise CavityError(
            "a generalised loss or divergence has no evidence, since its likelihood is not that of the data; compare "
            "what held-out rows say, with cavity.choose"
        )
    if not is_proper(algorithm.prior):
        raise CavityError(NO_EVIDENCE)
    found = history[-1]["free_energy"] if history else math.nan
    if math.isnan(found):
        raise CavityError("the free energy is not known yet: not every client has replied; go on with fit.refine()")
    return float(found)
