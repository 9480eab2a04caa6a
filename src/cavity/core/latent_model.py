"""The contract of a model with latent variables that stay at their client."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence

from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core.base_model import BaseModel
from cavity.core.dataset import Data


class LatentModel(BaseModel):
    """p_theta(Z_G) times the product of p_theta(Z_u, y_u | Z_G) over all units of all clients (SFVI, eqs. 1-3).

    Z_G is a flat vector; the local latents of a client are a matrix with one row per unit. A client whose latents
    belong to it as a whole has one unit; a model without local latents has one unit with none. `theta` is learned by
    maximum likelihood, not inferred. The names of parameters are those of what `constrain` returns.
    """

    @property
    @abc.abstractmethod
    def num_global(self) -> int:
        """The length of Z_G."""

    @property
    def global_names(self) -> tuple[str, ...]:
        """One name per entry of Z_G, in its order: those of the parameters where there are as many."""
        names = self.parameter_names
        return names if len(names) == self.num_global else tuple(f"Z[{i}]" for i in range(self.num_global))

    @property
    @abc.abstractmethod
    def num_local(self) -> int:
        """The number of local latents per unit; may be 0."""

    @property
    @abc.abstractmethod
    def theta(self) -> PyTree:
        """The initial values of the learned parameters; None if there are none."""

    @property
    @abc.abstractmethod
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Mean and scale of q(Z_G) before any data."""

    @property
    def log_outcome_scale(self) -> float:
        """Log s where the model computes with outcomes / s: the excess of a row's log density."""
        return 0.0

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes on the units of the parameters, for a summary."""
        return ()

    @abc.abstractmethod
    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        """Log p_theta(Z_G), which the server computes."""

    @abc.abstractmethod
    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        """Log p_theta(y_u, Z_u | Z_G) of each unit, which the client computes.

        Terms that belong to no unit are added to the first one. Rows are weighted by `data.weight`; units of weight 0
        are padding, and their values are ignored. The key is for models that draw rows themselves.
        """

    def alone(self, data: Data) -> LatentModel:
        """The model for the columns of this client alone."""
        return self

    def local_size(self, data: Data) -> int:
        """The number of local latents per unit at this client, at most `num_local`."""
        return self.num_local

    @property
    def independent_rows(self) -> bool:
        """Whether every row is a unit with no other latents. A mini-batch is then some rows with their latents."""
        return False

    def encode(self, theta: PyTree, data: Data) -> tuple[Float[Array, "u l"], Float[Array, "u l"]] | None:
        """Mean and log scale of each unit's q(Z_u), by an inference network in theta (amortised inference).

        None where every unit has its own variational parameters, which stay at its client.
        """
        return None

    @abc.abstractmethod
    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> PyTree:
        """The global latents and learned parameters as the author of the model named and scaled them."""

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> PyTree:
        """The local latents as the author of the model named and scaled them, with the units as first axis."""
        return {"local": z_local}

    @abc.abstractmethod
    def prepare(self, value: PyTree) -> Data:
        """One client's raw data in this model's form, with its units. Raises DataError saying what is wrong."""

    @abc.abstractmethod
    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        """The names of a client's units, in their order; None where units have no names."""
