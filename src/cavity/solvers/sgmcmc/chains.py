"""Stochastic gradient Markov chains: how theta moves, given noisy gradients of the energy.

The energy is U(theta) = loss on all rows - log cavity(theta); a slope is an unbiased estimate of dU/dtheta by the rows
of one mini-batch.

| chain | a step |
| --- | --- |
| `SGDIterates` | an optimiser's, on U per row: only the noise of the mini-batches moves the chain (FedPA, FedEP) |
| `SGLD` | theta - h dU + sqrt(2 h) noise (Welling and Teh, 2011), by blackjax |
| `SGHMC` | with friction and momentum (Chen et al., 2014), by blackjax |

Iterates of plain descent have a spread that follows the step size and the batch, not the posterior (Mandt et al.,
2017). They are for networks, with a `Spread` that ignores or shrinks this spread. The other two chains sample the
tilted distribution itself, as their steps become small.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from types import ModuleType

import equinox as eqx
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree

from cavity.core.fields import as_number, require
from cavity.errors import CavityError
from cavity.solvers.optimiser import MakeOptimiser, Optimiser

Slope = Callable[[Float[Array, " d"]], Float[Array, " d"]]


class Chain(eqx.Module):
    """A kernel over theta."""

    def init(self, theta: Float[Array, " d"]) -> PyTree:
        """The state of the chain besides theta; None for most chains."""
        return None

    @abc.abstractmethod
    def step(
        self, key: PRNGKeyArray, theta: Float[Array, " d"], memory: PyTree, slope: Slope, num_rows: Float[Array, ""]
    ) -> tuple[Float[Array, " d"], PyTree]:
        """The next theta."""


class SGDIterates(Chain):
    """The iterates of any optax optimiser on the energy per row, in whose units step sizes are those of FedAvg.

    Attributes:
        optimiser: a function that makes an optax gradient transformation from a step size. Define it once.
        step_size: the step size of the optimiser.
        momentum: of `optax.sgd`, where no optimiser is given.
    """

    step_size: Float[Array, ""] = eqx.field(converter=as_number)
    momentum: Float[Array, ""] = eqx.field(converter=as_number, default=0.0)
    optimiser: MakeOptimiser | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        require(self.step_size, lambda size: size > 0, "the step size must be positive")
        require(self.momentum, lambda momentum: 0 <= momentum < 1, "momentum must be in [0, 1)")
        if self.optimiser is not None and not callable(self.optimiser):
            raise CavityError("the optimiser is a function of the step size, such as optax.adam, not what it returns")

    def _optimiser(self, dtype: DTypeLike) -> Optimiser:
        if self.optimiser is not None:
            return self.optimiser(self.step_size.astype(dtype))
        import optax

        return optax.sgd(self.step_size.astype(dtype), self.momentum.astype(dtype))

    def init(self, theta: Float[Array, " d"]) -> PyTree:
        return self._optimiser(theta.dtype).init(theta)

    def step(
        self, key: PRNGKeyArray, theta: Float[Array, " d"], memory: PyTree, slope: Slope, num_rows: Float[Array, ""]
    ) -> tuple[Float[Array, " d"], PyTree]:
        update, memory = self._optimiser(theta.dtype).update(slope(theta) / num_rows, memory, theta)
        return theta + update, memory


class SGLD(Chain):
    """Langevin dynamics without a Metropolis step: exact as the step size goes to zero.

    Attributes:
        step_size: h, in units of theta squared; well below the smallest variance of the tilted distribution.
    """

    step_size: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.step_size, lambda size: size > 0, "the step size must be positive")

    def step(
        self, key: PRNGKeyArray, theta: Float[Array, " d"], memory: PyTree, slope: Slope, num_rows: Float[Array, ""]
    ) -> tuple[Float[Array, " d"], PyTree]:
        kernel = _blackjax().sgld(lambda position, batch: -slope(position))
        return kernel.step(key, theta, None, self.step_size.astype(theta.dtype)), memory


class SGHMC(Chain):
    """Hamiltonian dynamics with friction; a new momentum is drawn in every step.

    Attributes:
        step_size: of the integrator, in units of theta: well below the smallest standard deviation.
        num_integration_steps: between two draws of the momentum, all on one mini-batch.
        friction: per unit of time, as many steps as make up one unit of theta.
    """

    step_size: Float[Array, ""] = eqx.field(converter=as_number)
    num_integration_steps: int = eqx.field(static=True, default=10)
    friction: Float[Array, ""] = eqx.field(converter=as_number, default=1.0)

    def __check_init__(self) -> None:
        require(self.step_size, lambda size: size > 0, "the step size must be positive")
        require(self.friction, lambda friction: friction > 0, "the friction must be positive")
        if self.num_integration_steps < 1:
            raise CavityError(f"there must be at least one integration step, not {self.num_integration_steps}")

    def step(
        self, key: PRNGKeyArray, theta: Float[Array, " d"], memory: PyTree, slope: Slope, num_rows: Float[Array, ""]
    ) -> tuple[Float[Array, " d"], PyTree]:
        friction = self.friction.astype(theta.dtype)
        kernel = _blackjax().sghmc(lambda position, batch: -slope(position), self.num_integration_steps, friction)
        return kernel.step(key, theta, None, self.step_size.astype(theta.dtype)), memory


def _blackjax() -> ModuleType:
    try:
        import blackjax
    except ImportError:
        raise CavityError("SGLD and SGHMC come from blackjax: pip install 'cavity[mcmc]'") from None
    return blackjax
