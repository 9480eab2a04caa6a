"""The contract of a hyperparameter: a number of a model that is learned by maximising the free energy."""

from __future__ import annotations

import abc

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.core.dataset import Data
from cavity.core.distribution import Distribution
from cavity.core.model import Model


class Hyperparameter(eqx.Module):
    """One or more numbers epsilon of a model, learned by maximising the free energy F (PVI, appendix A).

    With q at its fixed point the gradient of F depends on epsilon through the log joint density alone:

        dF / d epsilon = sum_m E_q[d log p(y_m | theta, epsilon)] + E_q[d log p(theta | epsilon)]           (6)

    The first term is a sum over clients, and all that they send; the server computes the second.
    """

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UnsuitableError unless the model has this hyperparameter."""

    @abc.abstractmethod
    def init(self, model: Model) -> PyTree:
        """The state before the first step, with numpy leaves."""

    @abc.abstractmethod
    def sums(self, state: PyTree, model: Model, q: Distribution, data: Data) -> PyTree:
        """What a client sends: sums over its rows under the posterior q, or None. Traced."""

    @abc.abstractmethod
    def step(
        self, state: PyTree, model: Model, q: Distribution, sums: PyTree
    ) -> tuple[Model, Float[np.ndarray | Array, " e"], PyTree]:
        """One step, given the total of the clients' sums.

        Returns:
            The model with the next value, dF / d log epsilon at the previous value, and the next state.
        """
