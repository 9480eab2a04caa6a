"""A NumPyro model over clients. Tracing it shows which latents are global and which belong to a unit.

The model function is run three times on an example of a client's data: as it is, with twice the rows, and with one more
unit. What grows with the units is local, what grows with the rows is an observation per row, and the rest is global.
Latents live on a flat unconstrained vector, by NumPyro's own bijections.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel
from cavity.core.types import Leaf
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.models.glm.columns import as_mapping, labels_of, table, units_of
from cavity.models.numpyro.sites import (
    Columns,
    ModelFunction,
    arguments,
    drawn_rows,
    run_model,
    site_log_prob,
    sum_but,
    unconstrained_value,
)


class Latent(eqx.Module):
    """One latent site on the unconstrained scale: its name, shape, and (for a unit's) the axis of the units."""

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    unit_axis: int | None = eqx.field(static=True, default=None)

    @property
    def size(self) -> int:
        """Numbers in all, or per unit."""
        return math.prod(self.shape)


class NumpyroModel(LatentModel):
    """A NumPyro model function as a federated model; made by `numpyro_model`.

    Attributes:
        function: the model, called with a client's columns as keywords.
        example: a client's columns; only names, kinds and shapes matter.
        latents: the global sites, in order.
        locals_: the sites of a unit, or of a client.
        learned: the unconstrained start of each `numpyro.param`.
        row_axes: observed site -> the axis of its rows, counted from the last.
        begin: mean and scale of q(Z_G) before any data.
        prior_scale: the spread of the prior.
        unit: the column that says which unit a row belongs to.
        num_units: the argument that takes the number of units.
        missing: columns that may hold NaN, which the model masks itself.
        drawn: observed sites whose plate draws rows.
        others: the same global latents with other columns, likelihoods and local latents; see `numpyro_kinds`.
    """

    function: ModelFunction = eqx.field(static=True)
    example: dict[str, np.ndarray]
    latents: tuple[Latent, ...]
    locals_: tuple[Latent, ...]
    learned: dict[str, Array] | None
    row_axes: tuple[tuple[str, int], ...] = eqx.field(static=True)
    begin: tuple[Array, Array]
    prior_scale: Array
    unit: str | None = eqx.field(static=True)
    num_units: str | None = eqx.field(static=True)
    missing: tuple[str, ...] = eqx.field(static=True)
    drawn: tuple[str, ...] = eqx.field(static=True)
    others: tuple[NumpyroModel, ...] = ()

    @property
    def kinds(self) -> tuple[NumpyroModel, ...]:
        """This one, and those for clients with other columns."""
        return (self, *self.others)

    @property
    def has_kinds(self) -> bool:
        return bool(self.others)

    @property
    def draws_rows(self) -> bool:
        return any(model.drawn for model in self.kinds)

    def kind(self, columns: Iterable[str]) -> NumpyroModel:
        """The one for a client with these columns."""
        for model in self.others:
            if model.has_columns(columns):
                return model
        return self

    def _kind_for(self, columns: Iterable[str]) -> NumpyroModel:
        """The one that knows all of these columns, which need not have the outcome, and lacks the fewest."""
        known = [model for model in self.kinds if set(columns) <= {*model.example, model.unit}]
        return min(known or self.kinds, key=lambda model: len({*model.example, model.unit} - {*columns, None}))

    def has_columns(self, columns: Iterable[str]) -> bool:
        """Whether these are the columns of this kind, with or without that of the units."""
        return set(columns) - {self.unit} == set(self.example) - {self.unit}

    def alone(self, data: Data) -> NumpyroModel:
        return replace(self.kind(data.batch), others=())

    def local_size(self, data: Data) -> int:
        return self.kind(data.batch).own_num_local

    @property
    def own_num_local(self) -> int:
        """The local latents of a unit of this kind."""
        return sum(latent.size for latent in self.locals_)

    @property
    def num_global(self) -> int:
        return sum(latent.size for latent in self.latents)

    @property
    def num_local(self) -> int:
        return max(model.own_num_local for model in self.kinds)

    @property
    def theta(self) -> dict[str, Array] | None:
        return self.learned

    @property
    def parameter_names(self) -> tuple[str, ...]:
        with_shapes = jax.eval_shape(self.constrain, self.theta, jnp.zeros(self.num_global))
        return entry_names(with_shapes)

    @property
    def global_names(self) -> tuple[str, ...]:
        """In the order of the program, while `parameter_names` are in that of the alphabet."""
        each = (entry_names({latent.name: np.zeros(latent.shape)}) for latent in self.latents)
        return tuple(name for names in each for name in names)

    @property
    def start(self) -> tuple[Array, Array]:
        return self.begin

    @property
    def rows_are_units(self) -> bool:
        """Whether every row is a unit of its own: there are local latents per row, and no column of units."""
        return self.has_units and not self._indexed

    @property
    def has_units(self) -> bool:
        """Whether its local latents belong to units, and not to a client as a whole."""
        return any(latent.unit_axis is not None for latent in self.locals_)

    @property
    def _indexed(self) -> bool:
        return self.unit is not None and self.unit in inspect.signature(self.function).parameters

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        values = cut(self.latents, z_global)
        sites, log_dets = run_model(self.function, self._arguments(self.example, None), values, theta)
        total = jnp.zeros((), z_global.dtype)
        for latent in self.latents:
            total += jnp.sum(site_log_prob(sites[latent.name])) + jnp.sum(log_dets[latent.name])
        return total

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        terms = self.terms(theta, z_global, z_local, data, key)
        return sum(terms.values(), start=jnp.zeros(z_local.shape[0], z_global.dtype))

    def terms(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> dict[str, Float[Array, " u"]]:
        """What each local or observed site contributes to `log_joint`."""
        if (model := self.kind(data.batch)) is not self:
            return model.terms(theta, z_global, z_local, data, key)
        num_units = z_local.shape[0]
        weight = jnp.asarray(data.weight, z_global.dtype)
        if self.rows_are_units and len(weight) != num_units:
            raise CavityError(
                f"every row is a unit of this model, but there are {len(weight)} rows and {num_units} units; rows "
                "cannot be drawn without their latents (leave `batch_size` out)"
            )
        values = cut(self.latents, z_global) | cut_units(self.locals_, z_local)
        sites, log_dets = run_model(self.function, self._arguments(data.batch, num_units), values, theta, key)
        found = {}
        for latent in self.locals_:
            term = site_log_prob(sites[latent.name]) + log_dets[latent.name]
            found[latent.name] = jnp.sum(term)[None] if latent.unit_axis is None else sum_but(term, latent.unit_axis)
        for name, axis in self.row_axes:
            drawn = drawn_rows(sites, name, axis)
            here = slice(None) if drawn is None else drawn
            rows = sum_but(site_log_prob(sites[name]), axis) * weight[here]
            if num_units == 1:
                found[name] = jnp.sum(rows)[None]
            elif self.rows_are_units and drawn is None:
                found[name] = rows
            else:
                places = jnp.arange(num_units) if self.rows_are_units else jnp.asarray(data.batch[self.unit])
                found[name] = jax.ops.segment_sum(rows, places[here], num_units)
        return found

    def row_log_prob(self, z_global: Float[Array, " g"], columns: Columns) -> Float[Array, " n"]:
        """Log p(row | Z_G) of each row, for a model without local latents that sees all rows."""
        if (model := self.kind(columns)) is not self:
            return model.row_log_prob(z_global, columns)
        values = cut(self.latents, z_global)
        sites, _ = run_model(self.function, self._arguments(columns, None), values, self.learned)
        rows = [sum_but(site_log_prob(sites[name]), axis) for name, axis in self.row_axes]
        return sum(rows[1:], start=rows[0])

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        values = cut(self.latents, z_global)
        sites, _ = run_model(self.function, self._arguments(self.example, None), values, theta)
        wanted = [latent.name for latent in self.latents] + sorted(self.learned or {})
        return {name: sites[name]["value"] for name in wanted}

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> dict[str, Array]:
        if (model := self.kind(data.batch)) is not self:
            return model.constrain_local(theta, z_global, z_local, data)
        values = cut(self.latents, z_global) | cut_units(self.locals_, z_local)
        sites, _ = run_model(self.function, self._arguments(data.batch, z_local.shape[0]), values, theta)
        return {
            latent.name: sites[latent.name]["value"][None]
            if latent.unit_axis is None
            else jnp.moveaxis(sites[latent.name]["value"], latent.unit_axis, 0)
            for latent in self.locals_
        }

    def expected_outcome(
        self,
        theta: PyTree,
        z_global: Float[Array, " g"],
        x: PyTree,
        key: PRNGKeyArray,
        z_local: Float[Array, "u l"] | None,
        labels: Sequence[Hashable] | None,
    ) -> Float[Array, "n ..."]:
        """E[y | Z] of the first observed site at new rows, which need not have the observed columns.

        Units that are among `labels` have their row of `z_local`; all others are drawn from p(Z_u | Z_G).
        """
        given = as_mapping(x)
        if (model := self._kind_for(given)) is not self:
            return model.expected_outcome(theta, z_global, x, key, z_local, labels)
        columns = {name: jnp.asarray(given[name]) for name in self.example if name in given and name != self.unit}
        absent = {name: None for name in self.example if name not in given and name != self.unit}
        num_rows = len(next(iter(columns.values())))
        mine: list[Hashable] = labels_of(x, self.unit) if self.unit is not None and self.locals_ else [*range(num_rows)]
        units = list(dict.fromkeys(mine)) if self._indexed else mine
        if self._indexed and self.unit is not None:
            columns[self.unit] = jnp.asarray([units.index(label) for label in mine])
        called_with = arguments(self.function, columns | absent, self.num_units, len(units))
        values = cut(self.latents, z_global)
        sites, _ = run_model(self.function, called_with, values, theta, key)
        if self.locals_ and z_local is not None:
            is_clients_own = self.locals_[0].unit_axis is None
            known = (
                [0] if is_clients_own else [list(labels or ()).index(u) if u in (labels or ()) else -1 for u in units]
            )
            picked = cut_units(self.locals_, z_local[jnp.asarray(known)])
            for latent in self.locals_:
                drawn = unconstrained_value(sites[latent.name])
                seen = jnp.asarray(known) >= 0
                axis = latent.unit_axis
                if axis is not None:
                    seen = jnp.expand_dims(seen, [i for i in range(drawn.ndim) if i != axis])
                    values[latent.name] = jnp.where(seen, picked[latent.name], drawn)
                else:
                    values[latent.name] = picked[latent.name]
            sites, _ = run_model(self.function, called_with, values, theta, key)
        return sites[self.row_axes[0][0]]["fn"].mean

    def prepare(self, value: PyTree) -> Data:
        if self.others and not any(model.has_columns(as_mapping(value)) for model in self.kinds):
            known = "; or ".join(", ".join(model.example) for model in self.kinds)
            raise DataError(f"no kind of client has the columns {', '.join(as_mapping(value))}; there are {known}")
        if (model := self.kind(as_mapping(value))) is not self:
            return model.prepare(value)
        columns = table(value, self.example, self.unit, self.missing)
        num_rows = len(next(iter(columns.values())))
        labels = self.unit_labels(value)
        if labels is None:
            units = num_rows if self.rows_are_units else 1
            return Data(columns, np.ones(num_rows), np.asarray(num_rows), units_of(None, units))
        if self._indexed:
            assert self.unit is not None
            places = {label: i for i, label in enumerate(labels)}
            columns[self.unit] = np.array([places[label] for label in labels_of(value, self.unit)], np.int32)
        elif len(labels) != num_rows:
            raise DataError(f"the column '{self.unit}' names a unit twice, but the model has latents for every row")
        return Data(columns, np.ones(num_rows), np.asarray(num_rows), units_of(labels, len(labels)))

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        if (model := self.kind(as_mapping(value))) is not self:
            return model.unit_labels(value)
        if self.unit is None or not self.has_units:
            return None
        return list(dict.fromkeys(labels_of(value, self.unit)))

    def _arguments(self, columns: Columns, num_units: int | None) -> dict[str, Leaf | int | None]:
        return arguments(self.function, columns, self.num_units, num_units)


def cut(latents: Sequence[Latent], z: Array) -> dict[str, Array]:
    """The flat vector as the unconstrained value of each site."""
    values, at = {}, 0
    for latent in latents:
        values[latent.name] = z[at : at + latent.size].reshape(latent.shape)
        at += latent.size
    return values


def cut_units(latents: Sequence[Latent], z: Array) -> dict[str, Array]:
    """One row per unit as the unconstrained value of each local site."""
    values, at = {}, 0
    for latent in latents:
        part = z[:, at : at + latent.size]
        at += latent.size
        if latent.unit_axis is None:
            values[latent.name] = part[0].reshape(latent.shape)
        else:
            values[latent.name] = jnp.moveaxis(part.reshape(-1, *latent.shape), 0, latent.unit_axis)
    return values
