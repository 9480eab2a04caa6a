"""Partitioned variational inference (Ashman et al., 2022), Algorithm 1.

This file chooses the parts. The client's update is `FactorClient` in `factors.py`, with the step that removes the
client's factor in `cavities.py` (`OwnFactor`); the server's is `EntryServer` in `cavity.aggregation.entries`.

| paper | in `FactorClient` |
| --- | --- |
| q^(i-1) | `inputs.posterior` |
| t_k^(i-1) | `inputs.entry`, this client's factor |
| q^(i-1) / t_k^(i-1) | `cavity` |
| q_k^(i) | `solution.tilted`, the maximiser of the local free energy (2) |
| Delta_k^(i) | `delta` |
| F_k(q) of property 2.2 | `free_energy`, at the posterior received |
| rho | the exponent that the server's damping chooses |

Other choices of solver, damping, schedule and of what is removed are other methods: docs/methods.md.

In the paper the client also updates its factor, t_k = (q_k / q) t_k; here the server does this in its ledger, with the
same delta.
"""

from __future__ import annotations

from cavity.aggregation.damping import Adaptive, Probing
from cavity.algorithms.cavities import OwnFactor, Removal
from cavity.algorithms.factors import FactorAlgorithm, Factors, check_parts
from cavity.core import Damping, LatentModel, Model, Solver
from cavity.core.fields import require_kind
from cavity.divergences.kl import KL
from cavity.losses.nll import NegativeLogLikelihood
from cavity.models.mixed.marginal import with_likelihood
from cavity.solvers.default import default_solver


class PVI(FactorAlgorithm):
    """PVI for any model, solver and damping. The defaults have no settings that need tuning.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        solver: finds the tilted distribution; None chooses by the model (closed form, else natural gradient).
        damping: the server's choice of exponents.
        loss: the negative log likelihood; `FedGVI` takes others.
        divergence: KL; `FedGVI` takes others.
        removed: what a client removes from the posterior before it refits; its own factor by default.
    """

    def __init__(
        self,
        model: Model | LatentModel,
        *,
        solver: Solver | None = None,
        damping: Damping | None = None,
        removed: Removal | None = None,
    ):
        removed = OwnFactor() if removed is None else removed
        self.removed = require_kind(removed, Removal, "`removed` must be one of cavity.cavities, such as Nothing()")
        model = with_likelihood(model)
        self.model = model
        self.loss = NegativeLogLikelihood()
        self.divergence = KL()
        self.solver = default_solver(model, self.loss, self.divergence) if solver is None else solver
        adaptive = Adaptive() if model.row_model is not None else Probing()
        self.damping = adaptive if damping is None else damping
        check_parts(model, self.loss, self.divergence, self.solver)

    @property
    def entries(self) -> Factors:
        return Factors(self.prior)
