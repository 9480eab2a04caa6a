"""Federated generalised variational inference (Mildner et al., 2025), Algorithms 1 and 2.

| paper | here |
| --- | --- |
| q_s^(t-1) | `inputs.posterior` |
| exp(-l_m^(t-1)) | `inputs.entry`, this client's factor |
| the cavity, eq. 3 | `cavity` |
| L_m, D, eq. 4 | `loss`, `divergence` |
| Delta_m, eq. 5 | -log `delta`, to the power that the server's damping chooses |
| l_s, eq. 6 | -log of the product of all factors |
| D_s, eq. 7 | `server_divergence` |

With the negative log likelihood and KL twice it is PVI. Damping 1/M makes the posterior a logarithmic opinion pool of
the clients' tilted distributions (proposition 4.3).

With multiples of KL a fixed point is a minimiser of the pooled problem (proposition 4.4). For other divergences no such
result is known: with Renyi the iteration converges in practice, with reverse KL and Fisher-Rao clients that disagree
may widen the posterior without end. The gaps of the history show it; damp more, or give the server the other
divergence.
"""

from __future__ import annotations

from collections.abc import Sequence

from cavity.aggregation.combine import combine
from cavity.aggregation.damping import Adaptive
from cavity.algorithms.cavities import OwnFactor
from cavity.algorithms.factors import FactorAlgorithm, check_parts, is_improper
from cavity.core import Damping, Distribution, Divergence, Entries, LatentModel, Loss, Model, Solver
from cavity.core.fields import require_kind
from cavity.core.messages import Stacked
from cavity.core.types import Leaf
from cavity.distributions.natural import product
from cavity.divergences.kl import KL
from cavity.errors import CavityError, UnsuitableError
from cavity.models.numpyro.globals_only import GlobalsOnly, as_rows
from cavity.solvers.default import default_solver


def _check_kinds(loss: Loss, divergence: Divergence, server_divergence: Divergence) -> None:
    require_kind(loss, Loss, "the loss must be one of cavity.losses, such as Beta(0.5)")
    for what, part in (("divergence", divergence), ("server_divergence", server_divergence)):
        require_kind(part, Divergence, f"the {what} must be one of cavity.divergences, such as Renyi(1.5)")


def _with_whole_prior(model: Model, loss: Loss, divergence: Divergence, server_divergence: Divergence) -> Model:
    """A prior outside the family counts once, whatever weight the clients' rows have."""
    if not model.server_entries():
        return model
    if not isinstance(model, GlobalsOnly):
        raise CavityError(
            "a prior of coefficients outside the Gaussian family goes with PVI; give a Gaussian prior here"
        )
    power, weight = loss.likelihood_power, divergence.kl_weight
    if power is None or weight is None or not server_divergence.is_kl:
        raise CavityError(
            "a prior that is no Gaussian on the unconstrained scale goes with a power of the likelihood and multiples "
            "of KL; for other losses and divergences give the model Gaussian priors (LogNormal for a scale)"
        )
    return model.with_correction_weight(weight / power)


class GeneralisedFactors(Entries):
    """One factor per client; the posterior minimises E[-log factors] + D_s(q : prior), eq. 7.

    Attributes:
        prior: whose power 0 is the unit factor.
        divergence: D_s.
    """

    prior: Distribution
    divergence: Divergence

    def initial(self) -> Distribution:
        return self.prior**0.0

    def merge(self, entry: Distribution, delta: Distribution, exponent: float | Leaf) -> Distribution:
        return entry * delta**exponent

    def rebuild(self, prior: Distribution, entries: Sequence[Distribution] | Stacked) -> Distribution:
        return combine(self.divergence, prior, product(entries)) if entries else prior


class FedGVI(FactorAlgorithm):
    """PVI with a robust loss, or another divergence, at the clients and at the server.

    Attributes:
        model: prior and likelihood; the posterior is of the prior's family.
        loss: what a client minimises in expectation, such as `losses.Beta(0.5)`.
        divergence: how far a client may move from its cavity; KL by default.
        server_divergence: how far the posterior may move from the prior; KL (the product of factors) by default.
        solver: finds the tilted distribution; None chooses by model, loss and divergence.
        damping: the server's choice of exponents.

    Example:
        >>> import cavity
        >>> model = cavity.models.linear_regression(["dose"], noise_sd=1.0)
        >>> robust = cavity.FedGVI(model, cavity.losses.Beta(0.5))
    """

    server_divergence: Divergence

    def __init__(
        self,
        model: Model | LatentModel,
        loss: Loss,
        divergence: Divergence | None = None,
        *,
        server_divergence: Divergence | None = None,
        solver: Solver | None = None,
        damping: Damping | None = None,
    ):
        model = as_rows(model)
        self.loss = loss
        self.divergence = KL() if divergence is None else divergence
        self.server_divergence = KL() if server_divergence is None else server_divergence
        _check_kinds(self.loss, self.divergence, self.server_divergence)
        self.loss.check(model)
        self.divergence.check(model.prior)
        self.server_divergence.check(model.prior)
        self.model = _with_whole_prior(model, self.loss, self.divergence, self.server_divergence)
        self.solver = default_solver(model, self.loss, self.divergence) if solver is None else solver
        self.damping = Adaptive() if damping is None else damping
        self.removed = OwnFactor()
        check_parts(model, self.loss, self.divergence, self.solver)
        if not self.is_product and is_improper(model.prior):
            raise UnsuitableError(
                f"with {type(self.server_divergence).__name__} the server needs a proper prior, which this one is not; "
                "give a very wide one, or leave the server's divergence out"
            )

    @property
    def is_product(self) -> bool:
        return self.server_divergence.is_kl

    @property
    def entries(self) -> GeneralisedFactors:
        return GeneralisedFactors(self.prior, self.server_divergence)
