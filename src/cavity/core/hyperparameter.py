"""Numbers of a model that are learned, not inferred."""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from cavity.core.model import Data, Model


class Hyperparameter(eqx.Module):
    """One or more numbers epsilon of a model, moved to where the free energy F is highest (PVI, appendix A).

    With q at its fixed point the gradient of F sees epsilon in the log joint alone:

        dF / d epsilon = sum_m E_q[d log p(y_m | theta, epsilon)] + E_q[d log p(theta | epsilon)]           (6)

    The first term is a sum over clients, and all that they send; the second is the server's.
    """

    @abc.abstractmethod
    def check(self, model: Model) -> None:
        """Raise UnsuitableError unless the model has this hyperparameter."""

    @abc.abstractmethod
    def init(self, model: Model) -> PyTree:
        """The state before the first step, with numpy leaves."""

    @abc.abstractmethod
    def sums(self, state: PyTree, model: Model, q: Any, data: Data) -> PyTree:
        """What a client sends: sums over its rows, under the posterior q; None for nothing. Traced."""

    @abc.abstractmethod
    def step(
        self, state: PyTree, model: Model, q: Any, sums: PyTree
    ) -> tuple[Model, Float[np.ndarray | Array, " e"], PyTree]:
        """The model with the next value, from the clients' sums added up; dF / d log epsilon before; and the state."""
