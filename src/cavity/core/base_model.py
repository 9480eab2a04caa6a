"""What every model offers, whether its latent variables are shared or stay at their client."""

from __future__ import annotations

import abc

import equinox as eqx
from jaxtyping import PyTree

from cavity.core.dataset import Data


class BaseModel(eqx.Module):
    """What the rows of a client become, and whose parameters are inferred. `Model` and `LatentModel` are its kinds."""

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """One name per entry of the parameters that are reported, flattened."""

    @abc.abstractmethod
    def prepare(self, batch: PyTree) -> PyTree:
        """One client's raw data as numeric arrays in this model's form.

        Raises:
            DataError: what is wrong with the data, and the remedy.
        """

    @property
    def has_kinds(self) -> bool:
        """Whether clients may differ in their columns."""
        return False

    @property
    def row_cost(self) -> float:
        """About how many densities of an outcome the log likelihood of a row takes."""
        return 1.0

    def server_entries(self) -> dict[str, Data]:
        """The part of the prior outside the family, as rows that the server owns: name -> data. Mostly empty."""
        return {}
