"""What a client removes from the posterior before it refits: the deletion step, and the choices of related methods.

    cavity = posterior / removed
    delta  = (tilted / cavity) / replaced

| method | removed, and replaced | here |
| --- | --- | --- |
| PVI, EP | the client's own factor | `OwnFactor` |
| VCL, streaming VB | nothing: data that are visited twice count twice | `Nothing` |
| stochastic EP | the average factor, (posterior / prior) ** (1 / M) | `AverageFactor` |
| global VI, one client at a time | everything: a client's rows stand for all rows | `Everything` |
| BCM (split) | everything, and all of the prior but the client's share; the client's own factor is replaced |
`AllButShare` |
| FedPA | everything, and all of the prior (a flat cavity); the client's own factor is replaced | `WholePosterior` |

Where the same is removed and replaced, delta is tilted / posterior. In every case the posterior is the prior times the
entries of the ledger; but only with `OwnFactor`, `AllButShare` and `WholePosterior` does an entry hold exactly what its
client's data contribute, so that withdrawing it is exact.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.core import Data, Distribution, Loss
from cavity.core.fields import as_number, require
from cavity.core.messages import ClientInput
from cavity.core.types import Leaf
from cavity.losses.tempered import Tempered


class Removal(eqx.Module):
    """What a client removes from the posterior before it refits."""

    is_own_factor: ClassVar[bool] = False  # whether it is exactly the client's own factor

    @abc.abstractmethod
    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        """What is left of the posterior, in whose context the client refits."""

    def delta(self, inputs: ClientInput, cavity: Distribution, tilted: Distribution) -> Distribution:
        """The client's change of the posterior."""
        return tilted / inputs.posterior

    def loss(self, loss: Loss, data: Data) -> Loss:
        """The loss of a client's rows in that context."""
        return loss


class OwnFactor(Removal):
    """The client's own factor: PVI."""

    is_own_factor: ClassVar[bool] = True

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return inputs.posterior / inputs.entry


class Nothing(Removal):
    """The posterior so far is the prior of the next client (PVI, eq. 5): one pass is VCL, many are streaming VB."""

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return inputs.posterior


class AverageFactor(Removal):
    """The average of all clients' factors (PVI, Algorithm 4): stochastic EP over clients.

    The algorithm's q ** (1 - M rho / alpha) * tilted ** (M rho / alpha) is this with damping M rho; one synchronous,
    undamped round makes the new factors' product of all refits.

    Attributes:
        num_clients: M.
    """

    num_clients: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.num_clients, lambda count: count >= 1, "the average needs the number of clients, at least 1")

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return inputs.posterior / _of_total(inputs.posterior / prior, 1.0, self.num_clients)


class _KnowsAllRows(Removal):
    """A removal that depends on a client's share of all rows.

    Attributes:
        num_rows: N, of all clients together (the sum of their weights).
    """

    num_rows: eqx.AbstractVar[Float[Array, ""]]

    def __check_init__(self) -> None:
        require(self.num_rows, lambda count: count > 0, "the number of rows of all clients must be positive")


class Everything(_KnowsAllRows):
    """A client's rows stand for all N rows, in the context of the prior alone: global VI, one client at a time.

    The paper (section 5 and its note 11) prints N_k / N as the weight of the client's expected log likelihood, with
    which the data would count less than once. As an estimate of the global free energy by the rows of one client the
    weight is N / N_k. With one damped step per visit this is VI with clients as mini-batches (eq. 25). It ends near the
    pooled optimum only as the steps become small, and where clients are of one size: a row of a small client weighs
    more, and is visited as often.
    """

    num_rows: Float[Array, ""] = eqx.field(converter=as_number)

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return prior

    def loss(self, loss: Loss, data: Data) -> Loss:
        own = jnp.sum(jnp.asarray(data.weight))
        return Tempered(self.num_rows.astype(own.dtype) / own, loss)


class AllButShare(_KnowsAllRows):
    """The prior to the power N_m / N is the client's own: with one undamped round, BCM (split)."""

    num_rows: Float[Array, ""] = eqx.field(converter=as_number)

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return _of_total(prior, jnp.sum(jnp.asarray(data.weight)), self.num_rows)

    def delta(self, inputs: ClientInput, cavity: Distribution, tilted: Distribution) -> Distribution:
        return tilted / cavity / inputs.entry


class WholePosterior(Removal):
    """The cavity is flat, so a client's update depends on its own rows only: FedPA (FedEP, section 2.1).

    A second round changes nothing, except for noise of the solver. From a flat prior it is EP's first round.
    """

    def cavity(self, inputs: ClientInput, prior: Distribution, data: Data) -> Distribution:
        return inputs.posterior**0.0

    def delta(self, inputs: ClientInput, cavity: Distribution, tilted: Distribution) -> Distribution:
        return tilted / inputs.entry


def _of_total(q: Distribution, part: float | Leaf, total: Float[Array, ""]) -> Distribution:
    """Q ** (part / total), in the precision of q."""
    return jax.tree.map(lambda eta: (part / total).astype(eta.dtype) * eta, q)
