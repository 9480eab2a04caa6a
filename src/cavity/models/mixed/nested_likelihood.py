"""The log likelihood of a client whose groups are within groups, for many values of Z_G.

It offers what `likelihood` does for groups of one kind, by the integrals of `nested`. Each client chooses the order of
the smaller groups first, then that of the larger ones, which need fewer nodes: given its rows, the effect of a larger
group with many rows is nearly Gaussian, that of a smaller group with one or two rows is not.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PyTree

from cavity.core import Data
from cavity.errors import CavityError
from cavity.models.mixed.grouped_regression import GroupedRegression
from cavity.models.mixed.integration import log_marginal
from cavity.models.mixed.nested import NestedNear, OuterIntegrals, RowSlopes, integrals
from cavity.models.mixed.nested_modes import rows_of
from cavity.models.mixed.rules import Rule, first_agreeing

OUTER = {1: (5, 7, 11, 17, 25), 2: (3, 5, 7, 11, 17)}  # nodes per latent of a larger group
INNER = {1: (7, 13, 25, 49), 2: (5, 9, 15, 25)}
DEFAULT_LEVELS = (3, 2)
CHECK_LEVEL = 1  # of the larger groups, while orders of the smaller ones are compared
FEWEST_NODES = 3
RESOLUTION = 1e-7  # nats up to which steps by the derivative improve the value
TOLERANCE = 5e-7  # nats per smaller group and rule: less than elsewhere, since points do not move in the derivative
WIDEST = 2.0  # by which the spread of outer points is corrected at most

Orders = tuple[tuple[int, ...], tuple[int, ...]]


def orders_of(model: GroupedRegression, rule: Rule) -> Orders:
    """The orders of the larger and of the smaller groups, among which a client chooses; one if it was given."""
    if rule.order is None:
        return OUTER[model.num_local], INNER[model.num_inner]
    if rule.order < FEWEST_NODES:
        raise CavityError(f"groups within groups need an order of at least {FEWEST_NODES}, not {rule.order}")
    return (rule.order,), (rule.order,)


def cost(model: GroupedRegression, rule: Rule) -> float:
    """About how many densities of a row its log likelihood takes."""
    outer, inner = (each[min(1, len(each) - 1)] for each in orders_of(model, rule))
    return 3.0 * outer**model.num_local * (inner**model.num_inner + 8)


def describe(model: GroupedRegression, rule: Rule) -> str:
    """The rules in words, for a summary."""
    (outer, inner), (large, small) = orders_of(model, rule), model.groups
    return (
        f"the effects of '{small}' are integrated out by adaptive quadrature with {_range(inner)} nodes each, inside "
        f"those of '{large}' with {_range(outer)}{', as a check at each client says' if rule.order is None else ''}"
    )


def _range(orders: tuple[int, ...]) -> str:
    return str(orders[0]) if len(orders) == 1 else f"{orders[0]} to {orders[-1]}"


def rows_near(model: GroupedRegression, rule: Rule, z: Float[Array, "s g"], data: Data) -> Data:
    """As `likelihood.rows_near`, with points placed at the first Z_G."""
    finite = jnp.all(jnp.isfinite(z))
    z = jnp.where(finite, z, 0.0)
    orders = orders_of(model, rule)
    plain = _unknown(model, data, z.dtype, orders)
    at_mean, mode = _at(model, z[0], data, plain, orders, slopes=False)
    covariance = at_mean.square - at_mean.mean[:, :, None] * at_mean.mean[:, None, :]
    stretch = jnp.linalg.cholesky(covariance)
    diagonal = jnp.diagonal(stretch, axis1=1, axis2=2)
    usable = finite & jnp.all((diagonal > 1 / WIDEST) & (diagonal < WIDEST), axis=1)  # not so where it is NaN
    near = plain._replace(
        outer=jnp.where(finite, mode.outer, plain.outer),
        inner=jnp.where(finite, mode.inner, plain.inner),
        shift=jnp.where(usable[:, None], at_mean.mean, plain.shift),
        stretch=jnp.where(usable[:, None, None], stretch, plain.stretch),
    )
    if rule.order is None:
        needed = jax.lax.map(lambda z: _levels(model, z, data, near, orders), z)
        near = near._replace(level=jnp.where(finite, jnp.max(needed, axis=0), plain.level))
    return replace(data, batch=near)


def _unknown(model: GroupedRegression, data: Data, dtype: DTypeLike, orders: Orders) -> NestedNear:
    """Where no posterior is known."""
    assert data.units is not None
    num_outer, num_rows = len(data.units.weight), len(data.weight)
    zeros = jnp.zeros((num_outer, model.num_local), dtype)
    stretch = jnp.broadcast_to(jnp.eye(model.num_local, dtype=dtype), (num_outer, model.num_local, model.num_local))
    level = jnp.asarray([min(place, len(each) - 1) for place, each in zip(DEFAULT_LEVELS, orders, strict=True)])
    return NestedNear(data.batch, zeros, jnp.zeros((num_rows, model.num_inner), dtype), zeros, stretch, level)


def _at(
    model: GroupedRegression, z: Float[Array, " g"], data: Data, near: NestedNear, orders: Orders, *, slopes: bool
) -> tuple[OuterIntegrals, PyTree]:
    rows = rows_of(model, model.loadings(z, data.batch), data)
    return integrals(rows, len(near.outer), near, orders, slopes=slopes)


def _levels(
    model: GroupedRegression, z: Float[Array, " g"], data: Data, near: NestedNear, orders: Orders
) -> Int[Array, " 2"]:
    """The first order of each rule that the next one changes by less than the tolerance in every larger group."""
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    own, unit = (jnp.asarray(data.batch[name]) for name in ("inner", "unit"))
    is_first = (own == jnp.arange(len(own))) & (jnp.asarray(data.weight) > 0)
    tolerance = TOLERANCE * jnp.maximum(segment_sum(is_first.astype(z.dtype), unit, len(present)), 1.0)

    def value(outer: Int[Array, ""] | int, inner: Int[Array, ""]) -> Float[Array, " o"]:
        there = near._replace(level=jnp.stack([jnp.asarray(outer), inner]))
        return _at(model, z, data, there, orders, slopes=False)[0].value

    inner = first_agreeing(lambda place: value(CHECK_LEVEL, place), len(orders[1]), present, tolerance)
    outer = first_agreeing(lambda place: value(place, inner), len(orders[0]), present, tolerance)
    return jnp.stack([outer, inner])


def refinement(
    model: GroupedRegression, rule: Rule, z: Float[Array, "s g"], data: Data
) -> tuple[Int[Array, ""], Int[Array, ""], Float[Array, " s"]]:
    """As `likelihood.refinement`, with the orders of the smaller groups."""
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    near = rows_near(model, rule, z[:1], data).batch
    orders = orders_of(model, rule)
    if rule.order is None:
        last = jnp.asarray([len(each) - 1 for each in orders])
        level, other = near.level, jnp.where(near.level < last, near.level + 1, near.level - 1)
    else:
        both = (rule.order, 2 * rule.order + 1)
        orders = (both, both)
        level, other = jnp.zeros(2, int), jnp.ones(2, int)

    def change(z: Float[Array, " g"]) -> Float[Array, ""]:
        def total(level: Int[Array, " 2"]) -> Float[Array, ""]:
            found, _ = _at(model, z, data, near._replace(level=level), orders, slopes=False)
            return jnp.sum(jnp.where(present, found.value, 0.0))

        here, there = jax.lax.map(total, jnp.stack([level, other]))
        return there - here

    names = jnp.asarray(orders[1])
    return names[level[1]], names[other[1]], jax.lax.map(change, z)


def log_likelihood(model: GroupedRegression, rule: Rule, z: Float[Array, " g"], data: Data) -> Float[Array, ""]:
    """As `likelihood.log_likelihood`."""
    orders = orders_of(model, rule)
    near = data.batch if isinstance(data.batch, NestedNear) else _unknown(model, data, z.dtype, orders)
    return _log_likelihood(model, orders, z, replace(data, batch=near.batch), near)


@eqx.filter_custom_jvp
def _log_likelihood(
    model: GroupedRegression, orders: Orders, z: Float[Array, " g"], data: Data, near: NestedNear
) -> Float[Array, ""]:
    assert data.units is not None
    found, _ = _at(model, z, data, near, orders, slopes=False)
    return jnp.sum(jnp.where(jnp.asarray(data.units.weight) > 0, found.value, 0.0))


@_log_likelihood.def_jvp
def _(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    model, orders, z, data, near = primals
    present = jnp.asarray(data.units.weight) > 0
    parts, pull = jax.vjp(lambda z: model.loadings(z, data.batch), z)
    found, _ = integrals(rows_of(model, parts, data), len(near.outer), near, orders, slopes=True)
    at_row = present[jnp.asarray(data.batch["unit"])]
    slopes = RowSlopes(*(jnp.where(at_row.reshape(-1, *[1] * (each.ndim - 1)), each, 0.0) for each in found.slopes))
    (slope,) = pull(type(parts)(*slopes[:3], jnp.sum(slopes.family, axis=0)))
    return jnp.sum(jnp.where(present, found.value, 0.0)), slope @ tangents[2]


def outer_joint(
    model: GroupedRegression, z: Float[Array, " g"], z_local: Float[Array, "o l"], data: Data
) -> Float[Array, " o"]:
    """Log p(y_o, v | Z_G) of each larger group, with the latents of its smaller groups integrated out.

    It is differentiable in v too, which the posterior of a client's larger groups needs.
    """
    parts, batch = model.loadings(z, data.batch), data.batch
    unit, num_rows = jnp.asarray(batch["unit"]), len(data.weight)
    inner = model.within
    own = {
        "x": jnp.zeros((num_rows, 0), z.dtype),
        "y": batch["y"],
        "z": jnp.asarray(batch["z"])[:, model.num_local :],
        "unit": batch["inner"],
        "offset": parts.fixed + jnp.sum(parts.outer * z_local[unit], axis=1),
    }
    units = Data(None, np.ones(num_rows), np.asarray(num_rows))
    each = log_marginal(inner, None, model.of_within(z), Data(own, data.weight, data.num_rows, units), Rule())
    prior = -0.5 * jnp.sum(z_local**2 + jnp.log(2.0 * jnp.pi), axis=1)
    return prior + segment_sum(each, unit, len(z_local))
