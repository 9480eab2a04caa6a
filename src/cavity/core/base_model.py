"""What every model offers, whether its latent variables are shared or stay at their client."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import equinox as eqx
from jaxtyping import PyTree

from cavity.core.dataset import Data


@dataclass(frozen=True)
class Ratios:
    """Parameters whose exponentials people report.

    Attributes:
        title: what an exponential is, such as "odds ratio".
        names: the parameters; intercepts, scales and the like are not among them.
    """

    title: str
    names: tuple[str, ...]


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
    def ratios(self) -> Ratios | None:
        """The coefficients whose exponentials are ratios; None where the model has none."""
        return None

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
