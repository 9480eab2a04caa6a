"""Regression with effects that vary between groups: generalised linear mixed models.

    y ~ likelihood(f, ...),     f = X beta + sum over terms t of Z_t b_t,     b_t = L_t u_t,     u ~ N(0, I) per group

X is a client's matrix of fixed effects, Z_t [n, l_t] the columns of term t (ones for an intercept, values for a slope),
and every row has the number of its group. L_t is diag(sd) times the Cholesky root of the correlations. The shared
parameters are

    Z_G = (intercept, beta, further parameters of the likelihood, log sds, atanh of partial correlations)

and the local latents u of a group stay at its client, as do the names of groups.

**Groups within groups** (mothers in communities). Terms are of one group, or of two, the larger one first. Then the
units with local latents are the larger groups, and the effects of the smaller ones, which are independent given those
of their larger group, are integrated out in `log_joint` (`nested`).

Names are those of bambi: `1|ward_sigma` and `age|ward_sigma` for standard deviations, `sigma` for the noise; the
correlation is `1,age|ward_corr`. They and the effects themselves (`1|ward[L1]`) are in the units of the data.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, Likelihood
from cavity.core.base_model import Ratios
from cavity.core.fields import as_number
from cavity.core.types import Leaf
from cavity.errors import CavityError, DataError
from cavity.models.glm.columns import units_of
from cavity.models.mixed.group_priors import (
    LOG_2PI,
    correlation_root,
    lkj_sd,
    log_lkj_density,
    log_sd_density,
    log_sd_moments,
)
from cavity.models.mixed.group_rows import GroupedRows, GroupEffects, GroupEncoding, checked_rows
from cavity.models.mixed.group_structure import ONE, GroupStructure
from cavity.models.mixed.group_units import fixed_in_units

__all__ = ["GroupEffects", "GroupEncoding", "GroupedRegression", "GroupedRows", "Loadings"]

MOST_NESTED = 2  # effects of a group that has groups within it, or is within one
ETA = 2.0  # of LKJ: weakly prefers small correlations
START_SCALE = 0.1


class Loadings(NamedTuple):
    """The parts of the predictor f = fixed + outer . u + inner . w of each row, and the further predictors.

    Attributes:
        fixed: X beta.
        outer: by which the latents of a row's group are multiplied.
        inner: by which those of its smaller group are.
        family: the further predictors.
    """

    fixed: Float[Array, " n"]
    outer: Float[Array, "n l"]
    inner: Float[Array, "n k"]
    family: Float[Array, " p"]


class GroupedRegression(GroupStructure):
    """A regression whose effects vary between groups, each of which has all its rows at one client.

    Attributes:
        likelihood: of one outcome; its first predictor is f, further ones have one value for all rows.
        features: the names of the columns of x.
        effects: the group terms; all have the same group, or those of a larger group come first.
        fixed_scale: prior standard deviations of the intercept and the slopes, which have mean 0.
        family_scale: those of the further predictors.
        sd_scale: scales of the priors of standard deviations, one per effect; of a stratified one, the known value.
        sd_df: degrees of freedom of their half-t prior; None is half-normal.
        eta: of the LKJ prior of correlations.
        intercept: whether there is a fixed intercept.
        family_names: the further predictors, each the log of a positive number in the units of the outcome.
        effect_units: the columns of z are those of the data divided by these numbers.
        encoding: how a table becomes rows; None takes a dict with `x`, `y`, `z` and `group`.
        family_mean: prior means of the further predictors; None is 0.
        family_in_units: which of them are in the units of the outcome; None is all of them.
    """

    likelihood: Likelihood
    features: tuple[str, ...] = eqx.field(static=True)
    effects: tuple[GroupEffects, ...] = eqx.field(static=True)
    fixed_scale: Float[Array, " f"] = eqx.field(converter=as_number)
    family_scale: Float[Array, " k"] = eqx.field(converter=as_number)
    sd_scale: Float[Array, " l"] = eqx.field(converter=as_number)
    sd_df: Float[Array, ""] | None = eqx.field(converter=lambda df: None if df is None else as_number(df), default=None)
    eta: Float[Array, ""] = eqx.field(converter=as_number, default=ETA)
    intercept: bool = eqx.field(static=True, default=True, kw_only=True)
    family_names: tuple[str, ...] = eqx.field(static=True, default=(), kw_only=True)
    effect_units: tuple[float, ...] | None = eqx.field(static=True, default=None)
    encoding: GroupEncoding | None = None
    family_mean: Float[Array, " k"] | None = eqx.field(converter=as_number, default=None)
    family_in_units: tuple[bool, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if len(self.groups) not in (1, 2):
            raise CavityError(
                f"effects of one or two groups are needed, not {len(self.groups)}: {', '.join(self.groups)}"
            )
        if [effects.group for effects in self.effects] != [e.group for group in self.groups for e in self._of(group)]:
            raise CavityError(f"the effects of '{self.groups[0]}' come first, then those of '{self.groups[1]}'")
        if self.num_inner and max(self.num_local, self.num_inner) > MOST_NESTED:
            raise CavityError(f"groups within groups have at most {MOST_NESTED} effects each; use fewer slopes")
        sizes = {
            "fixed_scale": (self.fixed_scale.shape, (len(self.fixed_names),)),
            "family_scale": (self.family_scale.shape, (len(self.family_names),)),
            "sd_scale": (self.sd_scale.shape, (len(self.effect_names),)),
            "effect_units": ((len(self._effect_units),), (len(self.effect_names),)),
            "family_names": ((1 + len(self.family_names),), (self.likelihood.num_predictors,)),
        }
        for name, (found, expected) in sizes.items():
            if found != expected:
                raise CavityError(f"{name} has the length {found}; the model needs {expected}")

    @property
    def ratios(self) -> Ratios | None:
        return None if self.likelihood.ratio is None else Ratios(self.likelihood.ratio, self.features)

    @property
    def _effect_units(self) -> tuple[float, ...]:
        return (1.0,) * len(self.effect_names) if self.effect_units is None else self.effect_units

    @property
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """The prior's mean, with a small scale."""
        mean, spread = self._prior_moments()
        return mean, jnp.minimum(spread, START_SCALE)

    @property
    def prior_scale(self) -> Float[Array, " d"]:
        """The standard deviation of every parameter under the prior."""
        return self._prior_moments()[1]

    def _prior_moments(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        sd_mean, sd_spread = log_sd_moments(self.sd_scale[self._is_learned], self.sd_df)
        spreads = [lkj_sd(len(effects.names), self.eta) for effects in self.effects if effects.num_correlations]
        correlations = jnp.concatenate([jnp.zeros(0), *spreads])
        normal = jnp.concatenate([self.fixed_scale, self.family_scale])
        mean = jnp.concatenate([self._normal_mean, sd_mean, jnp.zeros_like(correlations)])
        return mean, jnp.concatenate([normal, sd_spread, correlations])

    @property
    def _normal_mean(self) -> Float[Array, " fk"]:
        """Prior means of the fixed effects, which are 0, and the further predictors."""
        own = jnp.zeros(len(self.family_names)) if self.family_mean is None else self.family_mean
        return jnp.concatenate([jnp.zeros(len(self.fixed_names), own.dtype), own])

    @property
    def within(self) -> GroupedRegression:
        """The model of the smaller groups alone, whose rows have an offset."""
        return replace(
            self,
            features=(),
            effects=self.effects[len(self._of(self.group)) :],
            fixed_scale=self.fixed_scale[:0],
            sd_scale=self.sd_scale[self.num_local :],
            intercept=False,
            effect_units=None,
            encoding=None,
        )

    def of_within(self, z_global: Float[Array, " g"]) -> Float[Array, " h"]:
        """The parameters of `within`."""
        _, family, log_sd, correlations = self._split(z_global)
        outer = int(self._is_learned[: self.num_local].sum())
        return jnp.concatenate([family, log_sd[outer:], *correlations[len(self._of(self.group)) :]])

    def _correlation_roots(self, correlations: Sequence[Array]) -> list[Array]:
        pairs = zip(self.effects, correlations, strict=True)
        return [
            correlation_root(v, len(effects.names)) if effects.correlated else jnp.eye(len(effects.names))
            for effects, v in pairs
        ]

    def root(self, z_global: Float[Array, " g"]) -> Float[Array, "l l"]:
        """L of all terms, block by block, with b = L u."""
        _, _, log_sd, correlations = self._split(z_global)
        roots = block_diag(*self._correlation_roots(correlations)).astype(z_global.dtype)
        sds = self.sd_scale.astype(z_global.dtype).at[np.flatnonzero(self._is_learned)].set(jnp.exp(log_sd))
        return sds[:, None] * roots

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        fixed, family, log_sd, correlations = self._split(z_global)
        scale = jnp.concatenate([self.fixed_scale, self.family_scale]).astype(z_global.dtype)
        standard = (jnp.concatenate([fixed, family]) - self._normal_mean.astype(z_global.dtype)) / scale
        found = jnp.sum(-0.5 * (standard**2 + LOG_2PI) - jnp.log(scale))
        sd_scale = self.sd_scale[self._is_learned].astype(z_global.dtype)
        found = found + jnp.sum(log_sd_density(log_sd, sd_scale, self.sd_df))
        for effects, v in zip(self.effects, correlations, strict=True):
            if effects.num_correlations:
                found = found + log_lkj_density(v, len(effects.names), self.eta)
        return found.astype(z_global.dtype)

    def loadings(self, z_global: Float[Array, " g"], batch: Mapping[str, Leaf]) -> Loadings:
        """The parts of the predictors of each row; `batch` has x and z, and may have an offset."""
        fixed, family, _, _ = self._split(z_global)
        x, z = (jnp.asarray(batch[name]) for name in ("x", "z"))
        f = x @ fixed[int(self.intercept) :] + (fixed[0] if self.intercept else 0.0) + batch.get("offset", 0.0)
        of_local = z @ self.root(z_global)  # z b = z L u
        return Loadings(f, of_local[:, : self.num_local], of_local[:, self.num_local :], family)

    def predictors(
        self,
        z_global: Float[Array, " g"],
        z_local: Float[Array, "u l"],
        batch: Mapping[str, Leaf],
        z_inner: Float[Array, "i k"] | None = None,
    ) -> Float[Array, "n p"]:
        """The predictors of each row.

        Args:
            z_global: Z_G.
            z_local: the latents of each group.
            batch: x, z and the number of each row's group; `inner` is that of its smaller group.
            z_inner: the latents of each smaller group; None leaves their effects out.
        """
        parts = self.loadings(z_global, batch)
        f = parts.fixed + jnp.sum(parts.outer * z_local[jnp.asarray(batch["unit"])], axis=-1)
        if z_inner is not None:
            f = f + jnp.sum(parts.inner * z_inner[jnp.asarray(batch["inner"])], axis=-1)
        return jnp.stack([f, *(jnp.broadcast_to(value, f.shape) for value in parts.family)], axis=-1)

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        if self.num_inner:
            from cavity.models.mixed.nested_likelihood import outer_joint  # it needs this module

            return outer_joint(self, z_global, z_local, data)
        batch = data.batch
        f = self.predictors(z_global, z_local, batch)
        weight = jnp.asarray(data.weight, f.dtype)
        rows = jnp.where(weight > 0, weight * self.likelihood.log_prob(f, jnp.asarray(batch["y"])), 0.0)
        units = jax.ops.segment_sum(rows, jnp.asarray(batch["unit"]), z_local.shape[0])
        return units - 0.5 * jnp.sum(z_local**2 + LOG_2PI, axis=-1)

    @property
    def _outcome_units(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.encoding is None else self.encoding.outcome_units

    @property
    def _predictor_units(self) -> tuple[float, float]:
        return (0.0, 1.0) if self.encoding is None else self.encoding.predictor_units

    @property
    def log_outcome_scale(self) -> float:
        return math.log(self._outcome_units[1])

    @property
    def remarks(self) -> tuple[str, ...]:
        return () if self.encoding is None else self.encoding.remarks

    @property
    def _sd_units(self) -> np.ndarray:
        """By which an effect is multiplied to be in the units of the data."""
        return self._predictor_units[1] / np.asarray(self._effect_units)

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> OrderedDict[str, Array]:
        """All parameters by name, in the units of the data, with standard deviations and correlations."""
        fixed, family, log_sd, correlations = self._split(z_global)
        _, fixed = self._in_units(fixed)
        scale = self._predictor_units[1]
        in_units = np.ones(len(family), bool) if self.family_in_units is None else np.array(self.family_in_units, bool)
        values = [
            fixed,
            np.where(in_units, scale, 1.0) * jnp.exp(family),
            jnp.exp(log_sd) * self._sd_units[self._is_learned],
        ]
        for effects, root in zip(self.effects, self._correlation_roots(correlations), strict=True):
            if effects.num_correlations:
                values.append((root @ root.T)[np.tril_indices(len(effects.names), -1)])
        return OrderedDict(zip(self.parameter_names, jnp.concatenate(values), strict=True))

    def _in_units(self, fixed: Float[Array, " f"]) -> tuple[Float[Array, ""], Float[Array, " f"]]:
        """What the units of the data add to an intercept of the groups' own, and the fixed effects in these units."""
        block = None if self.encoding is None else self.encoding.to_computed()
        own = self.has_own_intercept and not self.intercept
        return fixed_in_units(fixed, self._predictor_units, block, intercept=self.intercept, own_intercept=own)

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> OrderedDict[str, Array]:
        """The effects of each group, in the units of the data; those of groups within groups are not among them."""
        size = self.num_local
        effects = (z_local @ self.root(z_global)[:size, :size].T) * self._sd_units[:size]
        added, _ = self._in_units(self._split(z_global)[0])
        is_own = [each.stratified and name == ONE for each in self.effects for name in each.names][:size]
        effects = effects + jnp.where(np.array(is_own), added, 0.0)
        return OrderedDict(zip(self.effect_names[:size], effects.T, strict=True))

    def expected_outcome(
        self,
        theta: PyTree,
        z_global: Float[Array, " g"],
        x: PyTree,
        key: PRNGKeyArray,
        z_local: Float[Array, "u l"] | None,
        labels: Sequence[Hashable] | None,
    ) -> Float[Array, "n ..."]:
        """E[y | Z] at new rows. Groups that are among `labels` have their row of `z_local`; others are drawn.

        So are groups within groups.
        """
        if z_local is None and not self._is_learned.all():
            raise CavityError(
                "clients have coefficients of their own; predict for a client: fit.local(name).predict(x)"
            )
        rows = self._rows(x, with_outcome=False)
        groups = {name: i for i, name in enumerate(dict.fromkeys(rows.outer))}
        key, inner_key = jax.random.split(key)
        drawn = jax.random.normal(key, (len(groups), self.num_local), z_global.dtype)
        if z_local is not None:
            places = {label: i for i, label in enumerate([0] if labels is None else labels)}
            known = np.array([places.get(group, -1) for group in groups])
            drawn = jnp.where((known >= 0)[:, None], z_local[known], drawn)
        batch = {"x": rows.x, "z": rows.z, "unit": np.array([groups[name] for name in rows.outer], np.int32)}
        inner = None
        if self.num_inner:
            batch["inner"] = rows.first_of_inner()
            inner = jax.random.normal(inner_key, (len(rows.x), self.num_inner), z_global.dtype)
        centre, scale = self._outcome_units
        f = self.predictors(z_global, drawn, batch, inner)
        if rows.offset is not None:
            f = f.at[:, 0].add(jnp.asarray(rows.offset / self._predictor_units[1], f.dtype))
        return centre + scale * self.likelihood.mean(f)

    def prepare(self, value: PyTree) -> Data:
        rows = self._rows(value)
        assert rows.y is not None
        if problem := self.likelihood.check(rows.y):
            raise DataError(problem)
        num_rows = len(rows.y)
        labels = list(dict.fromkeys(rows.outer))
        places = {label: i for i, label in enumerate(labels)}
        unit = np.array([places[label] for label in rows.outer], np.int32)
        batch = {"x": rows.x, "y": rows.y, "z": rows.z, "unit": unit}
        if self.num_inner:
            batch["inner"] = rows.first_of_inner()
        units = units_of(None if rows.labels is None else labels, len(labels))
        return Data(batch, np.ones(num_rows), np.asarray(num_rows), units)

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        labels = self._rows(value).labels
        return None if labels is None else list(dict.fromkeys(labels))

    def _rows(self, value: PyTree, *, with_outcome: bool = True) -> GroupedRows:
        if isinstance(value, GroupedRows):
            rows = value
        elif self.encoding is not None:
            return self.encoding.grouped_rows(value, with_outcome=with_outcome)
        elif isinstance(value, Mapping) and {"x", "z"} <= set(value):
            labels, inner = (
                None if value.get(name) is None else tuple(np.asarray(value[name]).tolist())
                for name in ("group", "inner")
            )
            if (inner is None) == bool(self.num_inner):
                raise DataError(
                    "the smaller group of each row is `inner`"
                    if self.num_inner
                    else "`inner` is for models of groups within groups"
                )
            rows = GroupedRows(value["x"], value.get("y"), value["z"], labels, inner)
        else:
            raise DataError("give a dict with x [n, p], y [n], z [n, l] and group [n] (left out if it is the client)")
        return checked_rows(
            rows, self.features, self.effect_names, self.likelihood.num_outcomes, with_outcome=with_outcome
        )
