"""Regression with effects that vary between groups: generalised linear mixed models.

    y ~ likelihood(f, ...),     f = X beta + sum over terms t of Z_t b_t,     b_t = L_t u_t,     u ~ N(0, I) per group

X is a client's matrix of fixed effects, Z_t [n, l_t] the columns of term t (ones for an intercept, values for a slope),
and every row has the number of its group. L_t is diag(sd) times the Cholesky root of the correlations. The shared
parameters are

    Z_G = (intercept, beta, further parameters of the likelihood, log sds, atanh of partial correlations)

and the local latents u of a group stay at its client, as do the names of groups.

Names are those of bambi: `1|ward_sigma` and `age|ward_sigma` for standard deviations, `sigma` for the noise; the
correlation is `1,age|ward_corr`. They and the effects themselves (`1|ward[L1]`) are in the units of the data.
"""

from __future__ import annotations

import abc
import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, Encoding, LatentModel, Likelihood
from cavity.core.checks import numeric_matrix, numeric_outcomes
from cavity.core.fields import as_number
from cavity.core.messages import Record
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
    num_correlations,
)

ETA = 2.0  # of LKJ: weakly prefers small correlations
START_SCALE = 0.1


@dataclass(frozen=True)
class GroupEffects(Record):
    """The effects of one term, `(age | ward)`.

    Attributes:
        names: `1` for the intercept, then the slopes.
        group: the column of the groups, or `client`.
        correlated: whether the effects are.
    """

    names: tuple[str, ...]
    group: str
    correlated: bool = True

    @property
    def num_correlations(self) -> int:
        """How many correlations are parameters."""
        return num_correlations(len(self.names)) if self.correlated else 0

    @property
    def full_names(self) -> tuple[str, ...]:
        """`1|ward`, `age|ward`."""
        return tuple(f"{name}|{self.group}" for name in self.names)

    @property
    def correlation_names(self) -> tuple[str, ...]:
        """`1,age|ward_corr`, row by row below the diagonal."""
        if not self.correlated:
            return ()
        pairs = [(first, second) for i, second in enumerate(self.names) for first in self.names[:i]]
        return tuple(f"{first},{second}|{self.group}_corr" for first, second in pairs)


@dataclass(frozen=True)
class GroupedRows:
    """A client's rows. It is no record that can be stored or sent: it has the names of groups.

    Attributes:
        x: fixed effects [n, p], without ones.
        y: outcomes [n]; None for new rows.
        z: the columns of all group terms [n, l].
        labels: the group of each row; None where the group is the client.
        offset: of new rows, in the units of the outcome; None if there is none.
    """

    x: np.ndarray
    y: np.ndarray | None
    z: np.ndarray
    labels: tuple[Hashable, ...] | None
    offset: np.ndarray | None = None


class GroupEncoding(Encoding):
    """Capability: a table also has the columns and the groups of group terms."""

    @abc.abstractmethod
    def grouped_rows(self, table: PyTree, *, with_outcome: bool = True) -> GroupedRows:
        """The rows of a client's table, or new rows without outcomes. Raises DataError naming all problems."""


class GroupedRegression(LatentModel):
    """A regression whose effects vary between groups, each of which has all its rows at one client.

    Attributes:
        likelihood: of one outcome; its first predictor is f, further ones have one value for all rows.
        features: the names of the columns of x.
        effects: the group terms; all have the same group.
        fixed_scale: prior standard deviations of the intercept and the slopes, which have mean 0.
        family_scale: those of the further predictors.
        sd_scale: scales of the priors of standard deviations, one per effect.
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
    intercept: bool = eqx.field(static=True, default=True)
    family_names: tuple[str, ...] = eqx.field(static=True, default=())
    effect_units: tuple[float, ...] | None = eqx.field(static=True, default=None)
    encoding: GroupEncoding | None = None
    family_mean: Float[Array, " k"] | None = eqx.field(converter=as_number, default=None)
    family_in_units: tuple[bool, ...] | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        groups = {effects.group for effects in self.effects}
        if len(groups) != 1:
            raise CavityError(f"one group of effects is needed, not {len(groups)}: {', '.join(sorted(groups))}")
        sizes = {
            "fixed_scale": (self.fixed_scale.shape, (len(self.fixed_names),)),
            "family_scale": (self.family_scale.shape, (len(self.family_names),)),
            "sd_scale": (self.sd_scale.shape, (self.num_local,)),
            "effect_units": ((len(self._effect_units),), (self.num_local,)),
            "family_names": ((1 + len(self.family_names),), (self.likelihood.num_predictors,)),
        }
        for name, (found, expected) in sizes.items():
            if found != expected:
                raise CavityError(f"{name} has the length {found}; the model needs {expected}")

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
        """The column of the groups, or `client`."""
        return self.effects[0].group

    @property
    def _effect_units(self) -> tuple[float, ...]:
        return (1.0,) * self.num_local if self.effect_units is None else self.effect_units

    @property
    def num_global(self) -> int:
        correlations = sum(effects.num_correlations for effects in self.effects)
        return len(self.fixed_names) + len(self.family_names) + self.num_local + correlations

    @property
    def num_local(self) -> int:
        return sum(len(effects.names) for effects in self.effects)

    @property
    def theta(self) -> None:
        return None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        sds = (f"{name}_sigma" for name in self.effect_names)
        correlations = (name for effects in self.effects for name in effects.correlation_names)
        return (*self.fixed_names, *self.family_names, *sds, *correlations)

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
        sd_mean, sd_spread = log_sd_moments(self.sd_scale, self.sd_df)
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

    def _split(self, z: Float[Array, " g"]) -> tuple[Array, Array, Array, list[Array]]:
        """Fixed effects, further predictors, log sds, and the correlation parameters of each term."""
        sizes = [len(self.fixed_names), len(self.family_names), self.num_local]
        sizes += [effects.num_correlations for effects in self.effects]
        fixed, family, log_sd, *correlations = jnp.split(z, np.cumsum(sizes)[:-1])
        return fixed, family, log_sd, correlations

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
        return jnp.exp(log_sd)[:, None] * roots

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        fixed, family, log_sd, correlations = self._split(z_global)
        scale = jnp.concatenate([self.fixed_scale, self.family_scale]).astype(z_global.dtype)
        standard = (jnp.concatenate([fixed, family]) - self._normal_mean.astype(z_global.dtype)) / scale
        found = jnp.sum(-0.5 * (standard**2 + LOG_2PI) - jnp.log(scale))
        found = found + jnp.sum(log_sd_density(log_sd, self.sd_scale.astype(z_global.dtype), self.sd_df))
        for effects, v in zip(self.effects, correlations, strict=True):
            if effects.num_correlations:
                found = found + log_lkj_density(v, len(effects.names), self.eta)
        return found.astype(z_global.dtype)

    def predictors(
        self, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], batch: Mapping[str, Leaf]
    ) -> Float[Array, "n k"]:
        """The predictors of each row; `batch` has x, z and the number of each row's group."""
        fixed, family, _, _ = self._split(z_global)
        x, z, unit = (jnp.asarray(batch[name]) for name in ("x", "z", "unit"))
        f = x @ fixed[int(self.intercept) :] + (fixed[0] if self.intercept else 0.0)
        effects = z_local @ self.root(z_global).T  # b = L u
        f = f + jnp.sum(z * effects[unit], axis=-1)
        return jnp.stack([f, *(jnp.broadcast_to(value, f.shape) for value in family)], axis=-1)

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
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
        centre, scale = self._predictor_units
        block = None if self.encoding is None else self.encoding.to_computed()
        fixed = scale * fixed
        if self.intercept:
            fixed = fixed.at[0].add(centre)
        if block is not None:  # X reported = centre + scale (Z computed), and Z = X block^-1
            fixed = jnp.asarray(np.linalg.inv(block), fixed.dtype) @ fixed
        in_units = np.ones(len(family), bool) if self.family_in_units is None else np.array(self.family_in_units, bool)
        values = [fixed, np.where(in_units, scale, 1.0) * jnp.exp(family), jnp.exp(log_sd) * self._sd_units]
        for effects, root in zip(self.effects, self._correlation_roots(correlations), strict=True):
            if effects.num_correlations:
                values.append((root @ root.T)[np.tril_indices(len(effects.names), -1)])
        return OrderedDict(zip(self.parameter_names, jnp.concatenate(values), strict=True))

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> OrderedDict[str, Array]:
        """The effects of each group, in the units of the data."""
        effects = (z_local @ self.root(z_global).T) * self._sd_units
        return OrderedDict(zip(self.effect_names, effects.T, strict=True))

    def expected_outcome(
        self,
        theta: PyTree,
        z_global: Float[Array, " g"],
        x: PyTree,
        key: PRNGKeyArray,
        z_local: Float[Array, "u l"] | None,
        labels: Sequence[Hashable] | None,
    ) -> Float[Array, "n ..."]:
        """E[y | Z] at new rows. Groups that are among `labels` have their row of `z_local`; others are drawn."""
        rows = self._rows(x, with_outcome=False)
        names = [0] * len(rows.x) if rows.labels is None else list(rows.labels)
        groups = {name: i for i, name in enumerate(dict.fromkeys(names))}
        drawn = jax.random.normal(key, (len(groups), self.num_local), z_global.dtype)
        if z_local is not None:
            places = {label: i for i, label in enumerate([0] if labels is None else labels)}
            known = np.array([places.get(group, -1) for group in groups])
            drawn = jnp.where((known >= 0)[:, None], z_local[known], drawn)
        batch = {"x": rows.x, "z": rows.z, "unit": np.array([groups[name] for name in names], np.int32)}
        centre, scale = self._outcome_units
        f = self.predictors(z_global, drawn, batch)
        if rows.offset is not None:
            f = f.at[:, 0].add(jnp.asarray(rows.offset / self._predictor_units[1], f.dtype))
        return centre + scale * self.likelihood.mean(f)

    def prepare(self, value: PyTree) -> Data:
        rows = self._rows(value)
        assert rows.y is not None
        if problem := self.likelihood.check(rows.y):
            raise DataError(problem)
        num_rows = len(rows.y)
        labels = None if rows.labels is None else list(dict.fromkeys(rows.labels))
        places = {label: i for i, label in enumerate(labels or ())}
        unit = [0] * num_rows if rows.labels is None else [places[label] for label in rows.labels]
        batch = {"x": rows.x, "y": rows.y, "z": rows.z, "unit": np.array(unit, np.int32)}
        units = units_of(labels, 1 if labels is None else len(labels))
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
            labels = value.get("group")
            labels = None if labels is None else tuple(np.asarray(labels).tolist())
            rows = GroupedRows(value["x"], value.get("y"), value["z"], labels)
        else:
            raise DataError("give a dict with x [n, p], y [n], z [n, l] and group [n] (left out if it is the client)")
        return _checked(rows, self.features, self.effect_names, self.likelihood.num_outcomes, with_outcome=with_outcome)


def _checked(
    rows: GroupedRows, features: Sequence[str], effects: Sequence[str], num_outcomes: int, *, with_outcome: bool
) -> GroupedRows:
    """Rows that a user gave as arrays. Raises DataError."""
    if with_outcome and rows.y is None:
        raise DataError("the outcomes y are missing")
    x, z = numeric_matrix(rows.x, features), numeric_matrix(rows.z, effects)
    y = None if rows.y is None else numeric_outcomes(rows.y, num_outcomes)
    lengths = {"x": len(x), "z": len(z)} | ({} if y is None else {"y": len(y)})
    if rows.labels is not None:
        lengths["group"] = len(rows.labels)
        if unnamed := [i for i, label in enumerate(rows.labels) if label is None or label != label]:
            raise DataError(f"{len(unnamed)} rows have no group (rows {str(unnamed[:10])[1:-1]})")
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays have different numbers of rows: {lengths}")
    return GroupedRows(x, y, z, rows.labels)
