"""Any NumPyro model over silos: which latents are global and which stay with their unit is found by tracing it.

The model function is run three times on an example of a silo's data: as it is, with twice the rows, and with one more
unit. What grows with the units is local, what grows with the rows is an observation per row, and the rest is global.
Latents live on a flat unconstrained vector, by NumPyro's own bijections.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.interfaces import Data, LatentModel
from cavity.models.columns import as_mapping, labels_of, table, units_of
from cavity.models.sites import (
    arguments,
    grown_axis,
    probe,
    row_weights,
    run_model,
    site_log_prob,
    subsampled_axis,
    sum_but,
    unconstrained_param,
)

START_DRAWS = 200
START_SCALE = 0.1


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
        function: the model, called with a silo's columns as keywords.
        example: a silo's columns; only names, kinds and shapes matter.
        latents: the global sites, in order.
        locals_: the sites of a unit, or of a silo.
        learned: the unconstrained start of each `numpyro.param`.
        row_axes: observed site -> the axis of its rows (or of the units, where rows are units).
        begin: mean and scale of q(Z_G) before any data.
        unit: the column that says which unit a row belongs to.
        num_units: the argument that takes the number of units.
        missing: columns that may hold NaN, which the model masks itself.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    example: dict[str, np.ndarray]
    latents: tuple[Latent, ...]
    locals_: tuple[Latent, ...]
    learned: dict[str, Array] | None
    row_axes: tuple[tuple[str, int], ...] = eqx.field(static=True)
    begin: tuple[Array, Array]
    unit: str | None = eqx.field(static=True)
    num_units: str | None = eqx.field(static=True)
    missing: tuple[str, ...] = eqx.field(static=True)

    @property
    def num_global(self) -> int:
        return sum(latent.size for latent in self.latents)

    @property
    def num_local(self) -> int:
        return sum(latent.size for latent in self.locals_)

    @property
    def theta(self) -> dict[str, Array] | None:
        return self.learned

    @property
    def parameter_names(self) -> tuple[str, ...]:
        with_shapes = jax.eval_shape(self.constrain, self.theta, jnp.zeros(self.num_global))
        return entry_names(with_shapes)

    @property
    def start(self) -> tuple[Array, Array]:
        return self.begin

    @property
    def rows_are_units(self) -> bool:
        """Whether every row is a unit of its own: there are local latents per row, and no column of units."""
        return any(latent.unit_axis is not None for latent in self.locals_) and not self._indexed

    @property
    def _indexed(self) -> bool:
        return self.unit is not None and self.unit in inspect.signature(self.function).parameters

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        values = _cut(self.latents, z_global)
        sites, log_dets = run_model(self.function, self._arguments(self.example, None), values, theta)
        total = jnp.zeros((), z_global.dtype)
        for latent in self.latents:
            total += jnp.sum(site_log_prob(sites[latent.name])) + jnp.sum(log_dets[latent.name])
        return total

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        num_units = z_local.shape[0]
        values = _cut(self.latents, z_global) | _cut_units(self.locals_, z_local)
        sites, log_dets = run_model(self.function, self._arguments(data.batch, num_units), values, theta, key)
        total = jnp.zeros(num_units, z_global.dtype)
        for latent in self.locals_:
            for term in (site_log_prob(sites[latent.name]), log_dets[latent.name]):
                total += jnp.sum(term)[None] if latent.unit_axis is None else sum_but(term, latent.unit_axis)
        for name, axis in self.row_axes:
            term = site_log_prob(sites[name])
            rows = sum_but(term, axis % term.ndim) * row_weights(sites, name, data.weight)
            if self.rows_are_units:
                total += rows
            elif num_units == 1:
                total += jnp.sum(rows)[None]
            else:
                assert self.unit is not None
                total += jax.ops.segment_sum(rows, data.batch[self.unit], num_units)
        return total

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        values = _cut(self.latents, z_global)
        sites, _ = run_model(self.function, self._arguments(self.example, None), values, theta)
        wanted = [latent.name for latent in self.latents] + sorted(self.learned or {})
        return {name: sites[name]["value"] for name in wanted}

    def prepare(self, value: PyTree) -> Data:
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

    def unit_labels(self, value: PyTree) -> Sequence[Any] | None:
        if self.unit is None or not any(latent.unit_axis is not None for latent in self.locals_):
            return None
        return list(dict.fromkeys(labels_of(value, self.unit)))

    def _arguments(self, columns: Mapping[str, Any], num_units: int | None) -> dict[str, Any]:
        return arguments(self.function, columns, self.num_units, num_units)


def numpyro_model(
    function: Callable[..., Any],
    example: Any,
    *,
    unit: str | None = None,
    num_units: str | None = None,
    local: Sequence[str] = (),
    missing: Sequence[str] = (),
    start: Mapping[str, Any] | None = None,
) -> NumpyroModel:
    """A NumPyro model over silos.

    Args:
        function: an ordinary model, called with a silo's columns as keywords. Bind anything else beforehand, with
            `functools.partial`.
        example: data such as a silo has, a dict of arrays or a table with a few rows; only the columns matter.
        unit: the column that names the unit (county, patient) of each row. Where the function takes it as an argument,
            it gets the units of a silo numbered 0, 1, ...; where it does not, every row is a unit.
        num_units: the argument through which the function wants to know a silo's number of units.
        local: latent sites that belong to a silo as a whole (its own intercept, its own weights).
        missing: columns that may hold NaN; the model then masks these observations itself.
        start: unconstrained values from which sites start, where the median of the prior is no good start.

    Raises:
        CavityError: naming the site that cannot be carried: a discrete latent, an observation that is not one per row,
            a local site that a global one depends on, a prior that looks at the data.
    """
    columns = _example_columns(example, function, unit, num_units)
    traces = probe(function, columns, unit, num_units)
    base = traces["as it is"]
    latents, locals_, row_axes, learned = [], [], [], {}
    indexed = unit is not None and unit in columns and unit in inspect.signature(function).parameters
    for name, site in base.items():
        if site["type"] == "param":
            learned[name] = unconstrained_param(site)
        if site["type"] != "sample":
            continue
        row_axis, unit_axis = (grown_axis(name, traces, which) for which in ("twice the rows", "one more unit"))
        if site["is_observed"]:
            axis = unit_axis if row_axis is None else row_axis
            row_axes.append((name, subsampled_axis(site, base) if axis is None else axis))
            continue
        latent = Latent(name, site["unconstrained_shape"])
        if name in local:
            if row_axis is not None or unit_axis is not None:
                raise CavityError(f"the site {name!r} is named as a silo's own, but has one value per row or unit")
            locals_.append(latent)
        elif indexed and row_axis is not None:
            raise CavityError(
                f"the latent site {name!r} has one value per row, but the units are those of the column {unit!r}; "
                "make every row a unit (leave the column out of the function's arguments)"
            )
        elif (axis := unit_axis if indexed else row_axis) is not None:
            shape = tuple(n for i, n in enumerate(latent.shape) if i != axis)
            locals_.append(Latent(name, shape, axis))
        else:
            latents.append(latent)
    for name in local:
        if name not in base:
            raise CavityError(f"there is no site {name!r} to be local; the model has {', '.join(base)}")
    if len({latent.unit_axis is None for latent in locals_}) > 1:
        raise CavityError(
            "there are latents of the silo and latents of its units; give the units' a prior that depends on global "
            f"sites only, or name all of them in `local`: {', '.join(latent.name for latent in locals_)}"
        )
    if not row_axes:
        raise CavityError("the model observes nothing; give an observed site `obs=` a column of the data")
    model = NumpyroModel(
        function=function,
        example={name: np.zeros_like(column) for name, column in columns.items()},  # nobody's data travel with it
        latents=tuple(latents),
        locals_=tuple(locals_),
        learned=learned or None,
        row_axes=tuple(row_axes),
        begin=_start(function, columns, num_units, latents, start or {}),
        unit=unit,
        num_units=num_units,
        missing=tuple(missing),
    )
    _check_directions(model, columns)
    return model


def _example_columns(
    example: Any, function: Callable[..., Any], unit: str | None, num_units: str | None
) -> dict[str, np.ndarray]:
    columns = {}
    parameters = inspect.signature(function).parameters
    for name, values in as_mapping(example).items():
        if name == unit:
            if unit in parameters:
                columns[name] = np.unique(np.asarray(values), return_inverse=True)[1].astype(np.int32)
            continue
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise CavityError(f"the column {name!r} of the example holds no numbers")
        columns[name] = array.astype(np.int32 if array.dtype.kind in "biu" else float)
    if unit is not None and unit not in as_mapping(example):
        raise CavityError(f"the example has no column {unit!r} of units; it has {', '.join(as_mapping(example))}")
    if num_units is not None and num_units not in parameters:
        raise CavityError(f"the model has no argument {num_units!r}; it has {', '.join(parameters)}")
    return columns


def _cut(latents: Sequence[Latent], z: Array) -> dict[str, Array]:
    """The flat vector as the unconstrained value of each site."""
    values, at = {}, 0
    for latent in latents:
        values[latent.name] = z[at : at + latent.size].reshape(latent.shape)
        at += latent.size
    return values


def _cut_units(latents: Sequence[Latent], z: Array) -> dict[str, Array]:
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


def _start(
    function: Callable[..., Any],
    columns: Mapping[str, Any],
    num_units: str | None,
    latents: Sequence[Latent],
    given: Mapping[str, Any],
) -> tuple[Array, Array]:
    """The median of the prior on the unconstrained scale; 0 for an improper one."""
    from numpyro.distributions import ImproperUniform, biject_to

    if unknown := set(given) - {latent.name for latent in latents}:
        raise CavityError(f"`start` names {', '.join(sorted(unknown))}, which is no global latent site")

    def draw(key: PRNGKeyArray) -> dict[str, Array]:
        from numpyro import handlers

        def improper_at_zero(site: dict[str, Any]) -> Any:
            fn: Any = site.get("fn")
            if (
                site["type"] != "sample"
                or site["is_observed"]
                or not isinstance(getattr(fn, "base_dist", fn), ImproperUniform)
            ):
                return None
            shape = biject_to(fn.support).inverse_shape(fn.shape())
            return biject_to(fn.support)(jnp.zeros(shape))

        blind = handlers.substitute(function, substitute_fn=improper_at_zero)
        sites = handlers.trace(handlers.seed(blind, key)).get_trace(**arguments(function, columns, num_units, None))
        return {
            latent.name: biject_to(sites[latent.name]["fn"].support).inv(sites[latent.name]["value"])
            for latent in latents
        }

    draws = jax.vmap(draw)(jax.random.split(jax.random.key(0), START_DRAWS))
    centre, scale = [], []
    for latent in latents:
        flat = np.asarray(draws[latent.name], float).reshape(START_DRAWS, -1)
        middle = np.median(flat, axis=0)
        if latent.name in given:
            middle = np.broadcast_to(np.asarray(given[latent.name], float), latent.shape).reshape(-1)
        centre.append(middle)
        spread = flat.std(axis=0)
        scale.append(np.where(spread > 0, np.minimum(spread, START_SCALE), START_SCALE))
    if not centre:
        raise CavityError("the model has no global latent site; there is nothing to learn together")
    return jnp.asarray(np.concatenate(centre)), jnp.asarray(np.concatenate(scale))


def _check_directions(model: NumpyroModel, columns: Mapping[str, np.ndarray]) -> None:
    """Global priors may depend on neither local sites nor data: the server has neither."""
    mean = jnp.asarray(model.begin[0])
    values = _cut(model.latents, mean)

    def log_priors(columns: Mapping[str, Any], key: PRNGKeyArray) -> list[Array]:
        sites, _ = run_model(model.function, model._arguments(columns, None), values, model.theta, key)
        return [jnp.sum(site_log_prob(sites[latent.name])) for latent in model.latents]

    key, other = jax.random.split(jax.random.key(1))
    reference = log_priors(columns, key)
    moved = {n: c + 1 if c.dtype.kind == "f" else c for n, c in columns.items()}
    for latent, here, by_local, by_data in zip(
        model.latents, reference, log_priors(columns, other), log_priors(moved, key), strict=True
    ):
        if not np.array_equal(here, by_data, equal_nan=True):
            raise CavityError(f"the prior of the global site {latent.name!r} depends on the data, which no server has")
        if not np.array_equal(here, by_local, equal_nan=True):
            raise CavityError(
                f"the global site {latent.name!r} depends on a local one; local latents may depend on global ones only"
            )
