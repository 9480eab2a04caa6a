"""Which parameters a regression with group terms has, and where each is in the vector of shared parameters."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.core import LatentModel, Likelihood
from cavity.models.mixed.group_rows import GroupEffects

ONE = "1"  # the name of an intercept


class GroupStructure(LatentModel):
    """The names and sizes of the parameters of a regression with group terms.

    Attributes:
        likelihood: of one outcome.
        features: the names of the columns of x.
        effects: the group terms.
        intercept: whether there is a fixed intercept.
        family_names: the further predictors of the likelihood.
    """

    likelihood: eqx.AbstractVar[Likelihood]
    features: eqx.AbstractVar[tuple[str, ...]]
    effects: eqx.AbstractVar[tuple[GroupEffects, ...]]
    intercept: eqx.AbstractVar[bool]
    family_names: eqx.AbstractVar[tuple[str, ...]]

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """The intercept and the slopes."""
        return (*(("intercept",) if self.intercept else ()), *self.features)

    @property
    def effect_names(self) -> tuple[str, ...]:
        """One per column of z: `1|ward`, `age|ward`."""
        return tuple(name for effects in self.effects for name in effects.full_names)

    @property
    def group(self) -> str:
        """The group whose latents are local: the larger one where groups are within groups."""
        return self.groups[0]

    @property
    def groups(self) -> tuple[str, ...]:
        """The column of the groups, or `client`; where groups are within groups, the larger one first."""
        return tuple(dict.fromkeys(effects.group for effects in self.effects))

    def _of(self, group: str) -> tuple[GroupEffects, ...]:
        return tuple(effects for effects in self.effects if effects.group == group)

    @property
    def num_global(self) -> int:
        correlations = sum(effects.num_correlations for effects in self.effects)
        return len(self.fixed_names) + len(self.family_names) + int(self._is_learned.sum()) + correlations

    @property
    def num_local(self) -> int:
        return sum(len(effects.names) for effects in self._of(self.group))

    @property
    def num_inner(self) -> int:
        """The effects of a group within a group; 0 where there are none."""
        return len(self.effect_names) - self.num_local

    @property
    def has_own_intercept(self) -> bool:
        """Whether each group has its own intercept, with the prior of an intercept."""
        return any(effects.stratified and ONE in effects.names for effects in self.effects)

    @property
    def _is_learned(self) -> np.ndarray:
        """Of each effect, whether its standard deviation is a parameter."""
        return np.array([not effects.stratified for effects in self.effects for _ in effects.names], bool)

    @property
    def theta(self) -> None:
        return None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        sds = (f"{name}_sigma" for name, learned in zip(self.effect_names, self._is_learned, strict=True) if learned)
        correlations = (name for effects in self.effects for name in effects.correlation_names)
        return (*self.fixed_names, *self.family_names, *sds, *correlations)

    @property
    def is_log_sd(self) -> np.ndarray:
        """Of each parameter, whether it is the log of a standard deviation between groups."""
        place = np.arange(self.num_global) - len(self.fixed_names) - len(self.family_names)
        return (place >= 0) & (place < self._is_learned.sum())

    def _split(self, z: Float[Array, " g"]) -> tuple[Array, Array, Array, list[Array]]:
        """Fixed effects, further predictors, log sds, and the correlation parameters of each term."""
        sizes = [len(self.fixed_names), len(self.family_names), int(self._is_learned.sum())]
        sizes += [effects.num_correlations for effects in self.effects]
        fixed, family, log_sd, *correlations = jnp.split(z, np.cumsum(sizes)[:-1])
        return fixed, family, log_sd, correlations
