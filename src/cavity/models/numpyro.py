"""Any NumPyro model over silos: which latents are global and which stay with their unit is found by tracing it.

The model function is run three times on an example of a silo's data: as it is, with twice the rows, and with one more
unit. What grows with the units is local, what grows with the rows is an observation per row, and the rest is global.
Latents live on a flat unconstrained vector, by NumPyro's own bijections.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.interfaces import Data, LatentModel
from cavity.models.columns import as_mapping, example_columns, labels_of, table, units_of
from cavity.models.sites import (
    arguments,
    check_param,
    count_units,
    drawing,
    drawn_rows,
    latent_axis,
    observed_axis,
    probe,
    run_model,
    site_log_prob,
    sum_but,
    unconstrained_param,
    unconstrained_value,
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
        row_axes: observed site -> the axis of its rows, counted from the last.
        begin: mean and scale of q(Z_G) before any data.
        unit: the column that says which unit a row belongs to.
        num_units: the argument that takes the number of units.
        missing: columns that may hold NaN, which the model masks itself.
        draws_rows: whether one of its plates draws rows.
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
    draws_rows: bool = eqx.field(static=True)

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
        terms = self.terms(theta, z_global, z_local, data, key)
        return sum(terms.values(), start=jnp.zeros(z_local.shape[0], z_global.dtype))

    def terms(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> dict[str, Float[Array, " u"]]:
        """What each local or observed site contributes to `log_joint`."""
        num_units = z_local.shape[0]
        weight = jnp.asarray(data.weight, z_global.dtype)
        if self.rows_are_units and len(weight) != num_units:
            raise CavityError(
                f"every row is a unit of this model, but there are {len(weight)} rows and {num_units} units; rows "
                "cannot be drawn without their latents (leave `batch_size` out)"
            )
        values = _cut(self.latents, z_global) | _cut_units(self.locals_, z_local)
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

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        values = _cut(self.latents, z_global)
        sites, _ = run_model(self.function, self._arguments(self.example, None), values, theta)
        wanted = [latent.name for latent in self.latents] + sorted(self.learned or {})
        return {name: sites[name]["value"] for name in wanted}

    def constrain_local(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data
    ) -> dict[str, Array]:
        values = _cut(self.latents, z_global) | _cut_units(self.locals_, z_local)
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
        labels: Sequence[Any] | None,
    ) -> Float[Array, "n ..."]:
        """E[y | Z] of the first observed site at new rows, which need not have the observed columns.

        Units that are among `labels` have their row of `z_local`; all others are drawn from p(Z_u | Z_G).
        """
        given = as_mapping(x)
        columns = {name: jnp.asarray(given[name]) for name in self.example if name in given and name != self.unit}
        absent = {name: None for name in self.example if name not in given and name != self.unit}
        num_rows = len(next(iter(columns.values())))
        mine = labels_of(x, self.unit) if self.unit is not None and self.locals_ else list(range(num_rows))
        units = list(dict.fromkeys(mine)) if self._indexed else mine
        if self._indexed and self.unit is not None:
            columns[self.unit] = jnp.asarray([units.index(label) for label in mine])
        called_with = arguments(self.function, columns | absent, self.num_units, len(units))
        values = _cut(self.latents, z_global)
        sites, _ = run_model(self.function, called_with, values, theta, key)
        if self.locals_ and z_local is not None:
            is_silos_own = self.locals_[0].unit_axis is None
            known = [0] if is_silos_own else [list(labels or ()).index(u) if u in (labels or ()) else -1 for u in units]
            picked = _cut_units(self.locals_, z_local[jnp.asarray(known)])
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
        example: data such as a silo has, a dict of arrays or a table with a few rows; the model is checked with it, and
            keeps only its names, kinds and shapes.
        unit: the column that names the unit (county, patient) of each row. Where the function takes it as an argument,
            it gets the units of a silo numbered 0, 1, ...; where it does not, every row is a unit.
        num_units: the argument through which the function wants to know a silo's number of units.
        local: latent sites that belong to a silo as a whole (its own intercept, its own weights).
        missing: columns that may hold NaN; the model then masks these observations itself.
        start: unconstrained values from which sites start, where the median of the prior is no good start.

    Raises:
        CavityError: naming the site that cannot be carried: a discrete latent, an observation that is not one per row
            or depends on other rows, a local site that a global one depends on, a prior that looks at the data.
    """
    columns = example_columns(example, function, unit, num_units)
    if unknown := [name for name in missing if name not in columns]:
        raise CavityError(f"`missing` names {unknown[0]!r}, which is no column; the example has {', '.join(columns)}")
    traces = probe(function, columns, unit, num_units)
    base = traces["as it is"]
    num_rows = len(next(iter(columns.values())))
    indexed = unit is not None and unit in columns
    count = count_units(columns, unit) if indexed else num_rows
    latents, locals_, row_axes = [], [], []
    for name, site in base.items():
        if site["type"] == "param":
            check_param(name, traces)
        elif site["type"] == "sample" and site["is_observed"]:
            row_axes.append((name, observed_axis(name, traces, num_rows)))
        elif site["type"] == "sample":
            latent = Latent(name, site["unconstrained_shape"])
            axis = latent_axis(name, traces, unit if indexed else None, count)
            if axis is None:
                (locals_ if name in local else latents).append(latent)
            elif name in local:
                raise CavityError(f"the site {name!r} is named as a silo's own, but has one value per row or unit")
            else:
                shape = tuple(n for i, n in enumerate(latent.shape) if i != axis)
                locals_.append(Latent(name, shape, axis))
    for name in local:
        if name not in (names := [latent.name for latent in (*latents, *locals_)]):
            raise CavityError(f"there is no latent site {name!r} to be local; the model has {', '.join(names)}")
    if local and len(of_units := [latent.name for latent in locals_ if latent.unit_axis is not None]):
        raise CavityError(
            f"{', '.join(local)} would be a silo's own and {', '.join(of_units)} of its units; a model has one or the "
            "other"
        )
    if indexed and all(latent.unit_axis is None for latent in locals_):
        raise CavityError(
            f"no latent site has one value per unit of the column {unit!r}; let a plate have the size that `num_units` "
            "names, or leave `unit` out"
        )
    if not row_axes:
        raise CavityError("the model observes nothing; give an observed site `obs=` a column of the data")
    drawn = [name for name, _ in row_axes if any(drawing(traces["twice the rows"][name], traces["twice the rows"]))]
    model = NumpyroModel(
        function=function,
        example={name: np.zeros_like(column) for name, column in columns.items()},  # nobody's data travel with it
        latents=tuple(latents),
        locals_=tuple(locals_),
        learned=_learned(function, columns, num_units, [name for name in base if base[name]["type"] == "param"]),
        row_axes=tuple(row_axes),
        begin=_start(function, columns, num_units, latents, start or {}),
        unit=unit,
        num_units=num_units,
        missing=tuple(missing),
        draws_rows=bool(drawn),
    )
    _check_directions(model, columns)
    _check_alone(model, columns, drawn)
    return model


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


def _learned(
    function: Callable[..., Any], columns: Mapping[str, Any], num_units: str | None, names: Sequence[str]
) -> dict[str, Array] | None:
    """The unconstrained start of each `numpyro.param`."""
    if not names:
        return None
    sites, _ = run_model(function, arguments(function, columns, num_units, None), {}, None)
    return {name: unconstrained_param(sites[name]) for name in names}


def _start(
    function: Callable[..., Any],
    columns: Mapping[str, Any],
    num_units: str | None,
    latents: Sequence[Latent],
    given: Mapping[str, Any],
) -> tuple[Array, Array]:
    """The median of the prior on the unconstrained scale; 0 for an improper one."""
    from numpyro.distributions import biject_to

    if not latents:
        raise CavityError("the model has no global latent site; there is nothing to learn together")
    if unknown := set(given) - {latent.name for latent in latents}:
        raise CavityError(f"`start` names {', '.join(sorted(unknown))}, which is no global latent site")
    for latent in latents:
        if np.shape(given.get(latent.name, 0.0)) not in ((), latent.shape):
            raise CavityError(f"`start` of {latent.name!r} needs the shape {latent.shape}, or a single number")

    def draw(key: PRNGKeyArray) -> dict[str, Array]:
        sites, _ = run_model(function, arguments(function, columns, num_units, None), {}, None, key)
        return {
            latent.name: biject_to(sites[latent.name]["fn"].support).inv(sites[latent.name]["value"])
            for latent in latents
        }

    draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), START_DRAWS))
    centre, scale = [], []
    for latent in latents:
        flat = np.asarray(draws[latent.name], float).reshape(START_DRAWS, -1)
        with np.errstate(invalid="ignore"):  # of infinite draws
            middle, spread = np.median(flat, axis=0), flat.std(axis=0)
        if latent.name in given:
            middle = np.broadcast_to(np.asarray(given[latent.name], float), latent.shape).reshape(-1)
        if not np.isfinite(middle).all():
            raise CavityError(f"the prior of {latent.name!r} has no finite median to start from; give one in `start`")
        centre.append(middle)
        scale.append(np.where(spread > 0, np.minimum(spread, START_SCALE), START_SCALE))
    return jnp.asarray(np.concatenate(centre)), jnp.asarray(np.concatenate(scale))


def _check_directions(model: NumpyroModel, columns: Mapping[str, np.ndarray]) -> None:
    """Global priors may depend on neither local sites nor data: the server has neither."""
    names = [latent.name for latent in model.latents]

    @partial(jax.jit, static_argnums=1)
    def priors(columns: Mapping[str, Any], num_units: int, key: PRNGKeyArray) -> list[Array]:
        values = _cut(model.latents, model.begin[0])
        sites, log_dets = run_model(model.function, model._arguments(columns, num_units), values, model.theta, key)
        log_probs = {name: jnp.sum(site_log_prob(sites[name])) + jnp.sum(log_dets[name]) for name in names}
        return [jnp.append(sites[name]["value"], log_probs[name]) for name in names]

    def moved(name: str, column: np.ndarray) -> np.ndarray:
        if name == model.unit:
            return column
        return ~column if column.dtype.kind == "b" else 2 * column + 1

    key, other = jax.random.split(jax.random.key(1))
    more = {name: np.concatenate([column, moved(name, column)]) for name, column in columns.items()}
    checks = zip(names, priors(columns, 1, key), priors(columns, 1, other), priors(more, 2, key), strict=True)
    for name, here, by_local, by_data in checks:
        rounding = 16 * float(jnp.finfo(here.dtype).eps)
        same = partial(np.allclose, here, rtol=rounding, atol=rounding, equal_nan=True)
        if not same(by_local):
            raise CavityError(
                f"the global site {name!r} depends on a local one; local latents may depend on global ones only"
            )
        if not same(by_data):
            raise CavityError(
                f"the prior of the global site {name!r} depends on the data (their values, or their number), which no "
                "server has"
            )


def _check_alone(model: NumpyroModel, columns: Mapping[str, np.ndarray], drawn: Sequence[str]) -> None:
    """Rows and units of weight 0 must not change what the model says of the others; `drawn` sites are left out."""
    num_rows = len(next(iter(columns.values())))
    num_units = num_rows if model.rows_are_units else count_units(columns, model.unit)
    key, rng = jax.random.key(2), np.random.default_rng(2)
    z_local = rng.normal(size=(2 * num_units, model.num_local)).astype(model.begin[0].dtype)
    more = {name: np.concatenate([column, np.repeat(column[:1], num_rows, axis=0)]) for name, column in columns.items()}
    padded = Data(more, np.repeat([1.0, 0.0], num_rows), np.asarray(num_rows))
    alone = Data(dict(columns), np.ones(num_rows), np.asarray(num_rows))
    has_units = any(latent.unit_axis is not None for latent in model.locals_)
    terms = eqx.filter_jit(model.terms)
    few, many = (jnp.asarray(z) for z in (z_local[:num_units], z_local if has_units else z_local[:num_units]))
    here = terms(model.theta, model.begin[0], few, alone, key)
    there = terms(model.theta, model.begin[0], many, padded, key)
    for name in [name for name in here if name not in drawn]:
        one, (other, beyond) = np.asarray(here[name]), np.split(np.asarray(there[name]), [num_units])
        both = np.isfinite(one) & np.isfinite(other)  # the start may be impossible for the example
        if not np.allclose(one[both], other[both], rtol=1e-3, atol=1e-3):
            raise CavityError(
                f"what the site {name!r} says of a row or unit depends on the others at its silo (a mean over rows, "
                "their number, other units' latents); compute what is needed beforehand, as a column"
            )
        if both.all() and not np.isfinite(beyond).all():
            raise CavityError(
                f"the site {name!r} is not finite for a unit without rows, with which silos are padded; let the model "
                "give such a unit some number, as 0"
            )
