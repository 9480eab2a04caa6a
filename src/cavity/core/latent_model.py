"""Models with latent variables that stay with their rows."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core.model import Data


class LatentModel(eqx.Module):
    """p_theta(Z_G) times, over all units of all silos, p_theta(Z_u, y_u | Z_G)  (SFVI, eqs. 1-3).

    Z_G is a flat vector, the local latents of a silo are a matrix with one row per unit. A silo whose latents belong
    to itself has one unit; a model without local latents has one unit with none. `theta` is learned, not inferred.
    """

    @property
    @abc.abstractmethod
    def num_global(self) -> int:
        """The length of Z_G."""

    @property
    @abc.abstractmethod
    def num_local(self) -> int:
        """The number of local latents of a unit; may be 0."""

    @property
    @abc.abstractmethod
    def theta(self) -> PyTree:
        """Where the learned parameters start; None if there are none."""

    @property
    @abc.abstractmethod
    def parameter_names(self) -> tuple[str, ...]:
        """One name per entry of what `constrain` returns, raveled."""

    @property
    @abc.abstractmethod
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Mean and scale of q(Z_G) before any data."""

    @abc.abstractmethod
    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        """Log p_theta(Z_G): the server's part."""

    @abc.abstractmethod
    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        """Log p_theta(y_u, Z_u | Z_G) of each unit: the silo's part. What is of no unit counts with the first one.

        Rows are weighted by `data.weight`; units of weight 0 are padding, and whatever they give is left out. The key
        is for models that draw rows themselves.
        """

    @property
    def has_kinds(self) -> bool:
        """Whether clients may differ in their columns."""
        return False

    def alone(self, data: Data) -> LatentModel:
        """The model of this silo's kind alone."""
        return self

    def local_size(self, data: Data) -> int:
        """The number of local latents of a unit at this silo, at most `num_local`."""
        return self.num_local

    @property
    def independent_rows(self) -> bool:
        """Whether every row is a unit of its own and has no other latents: then a batch is rows with their latents."""
        return False

    def encode(self, theta: PyTree, data: Data) -> tuple[Float[Array, "u l"], Float[Array, "u l"]] | None:
        """Mean and log scale of each unit's q(Z_u), by an inference network in theta (amortised inference).

        None where every unit has numbers of its own, which stay at its silo.
        """
        return None

    @abc.abstractmethod
    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> PyTree:
        """The global latents and learned parameters in the terms of the model's author."""

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> PyTree:
        """The local latents in the terms of the model's author, with the units as first axis."""
        return {"local": z_local}

    @abc.abstractmethod
    def prepare(self, value: PyTree) -> Data:
        """One silo's raw data in this model's form, with its units. Raises DataError saying what is wrong."""

    @abc.abstractmethod
    def unit_labels(self, value: PyTree) -> Sequence[Any] | None:
        """The names of a silo's units, in their order; None where the author gave none."""
