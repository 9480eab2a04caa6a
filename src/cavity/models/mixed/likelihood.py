"""The log likelihood of a client with its local latents integrated out, and its gradient, for many values of Z_G.

It is the sum of what `integration` computes per unit. Here the order of the rule is a traced number, which each client
chooses by a check (`rules`), and the gradient is written out: with a_k the log joint density of a unit at the point k,
m and R as in `integration`, and pi_k the share of the point in the sum over k,

    d log p(y_u | Z_G)  =  sum_k pi_k da_k(Z_G, m + R x_k)  +  d log det R,

where m and R move with Z_G. Points are taken in groups, twice: once for the values, from which the shares follow, and
once for the derivatives. So the memory is that of few points, and that of a number per unit and point.

A client evaluates it many times near the posterior that it received. What is computed there once (`rows_near`) is the
order and where the search for the modes of its units starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int, PyTree

from cavity.core import Data, LatentModel
from cavity.models.mixed.integration import checked_units, log_marginal, placed
from cavity.models.mixed.modes import FIRST, times, unit_modes
from cavity.models.mixed.rules import GroupedPoints, Rule, first_agreeing

T = TypeVar("T")
AT_ONCE = 1 << 20  # rows times points that are evaluated together


class _RowsNear(eqx.Module):
    """The batch of a client's data, with what was computed at a posterior.

    Attributes:
        batch: of the data.
        modes: of the units' latents at the posterior mean.
        level: the place of the order among those of the rule.
    """

    batch: PyTree
    modes: Float[Array, "u l"]
    level: Int[Array, ""]


class _Placed(eqx.Module):
    """All that a value of Z_G determines.

    Attributes:
        local: m.
        root: R.
        scale: log det R + l/2 log(2 pi).
    """

    local: Float[Array, "u l"]
    root: Float[Array, "u l l"]
    scale: Float[Array, " u"]


def rows_near(model: LatentModel, rule: Rule, z: Float[Array, "s g"], data: Data) -> Data:
    """A client's data with the order of the rule that it needs at some values of Z_G, and the modes at the first.

    Args:
        model: the model with local latents.
        rule: how they are integrated out.
        z: values of Z_G, such as the mean of the posterior that the client received, and others around it.
        data: its rows and units.

    Returns:
        The data for `log_likelihood`. Where Z_G is not finite, these have the rule's default order.
    """
    num_units, num_local = checked_units(model, data)
    if num_local == 0 or rule.is_laplace:
        return data
    start = jnp.full((num_units, num_local), FIRST, z.dtype)
    finite = jnp.all(jnp.isfinite(z))
    z = jnp.where(finite, z, 0.0)
    modes = unit_modes(model, model.theta, z[0], start, data)
    level = jnp.asarray(rule.default_level(num_local))
    if rule.is_automatic(num_local):
        needed = jax.lax.map(lambda z: _level(model, rule, z, modes, data), z)
        level = jnp.where(finite, jnp.max(needed), level)
    usable = finite & jnp.all(jnp.isfinite(modes), axis=1, keepdims=True)
    return replace(data, batch=_RowsNear(data.batch, jnp.where(usable, modes, start), level))


def _level(
    model: LatentModel, rule: Rule, z: Float[Array, " g"], start: Float[Array, "u l"], data: Data
) -> Int[Array, ""]:
    """The first order that the next one changes by less than the tolerance in every unit; the last one if none is."""
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    modes = unit_modes(model, model.theta, z, start, data)
    where = _Placed(*placed(model, model.theta, z, modes, data))
    orders = rule.orders(modes.shape[1])

    def value(level: Int[Array, ""]) -> Float[Array, " u"]:
        return _value(model, z, data, where, GroupedPoints.at(orders, modes.shape[1], level, z.dtype))

    return first_agreeing(value, len(orders), present)


def refinement(
    model: LatentModel, rule: Rule, z: Float[Array, "s g"], data: Data
) -> tuple[Int[Array, ""], Int[Array, ""], Float[Array, " s"]]:
    """The order of the rule at a client, a finer one, and by how much that changes its log likelihood.

    Args:
        model: the model with local latents.
        rule: how they are integrated out.
        z: values of Z_G.
        data: the client's rows and units.

    Returns:
        Both orders (where the order is the last one, the one before instead of a finer one), and the change in nats at
        each Z_G.
    """
    _, num_local = checked_units(model, data)
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    orders, level, other = (rule.order_for(num_local), rule.finer(num_local).order or 1), jnp.asarray(0), jnp.asarray(1)
    if rule.is_automatic(num_local):
        near = rows_near(model, rule, z, data).batch
        orders, level = rule.orders(num_local), near.level
        other = jnp.where(level < len(orders) - 1, level + 1, level - 1)
    start = jnp.full((len(present), num_local), FIRST, z.dtype)

    def change(z: Float[Array, " g"]) -> Float[Array, ""]:
        where = _Placed(*placed(model, model.theta, z, unit_modes(model, model.theta, z, start, data), data))

        def total(level: Int[Array, ""]) -> Float[Array, ""]:
            each = _value(model, z, data, where, GroupedPoints.at(orders, num_local, level, z.dtype))
            return jnp.sum(jnp.where(present, each, 0.0))

        here, there = jax.lax.map(total, jnp.stack([level, other]))
        return there - here

    return jnp.asarray(orders)[level], jnp.asarray(orders)[other], jax.lax.map(change, z)


def log_likelihood(model: LatentModel, rule: Rule, z: Float[Array, " g"], data: Data) -> Float[Array, ""]:
    """Log p(y_m | Z_G) of all units of a client; differentiable in Z_G, also twice.

    Args:
        model: the model with local latents.
        rule: how they are integrated out.
        z: Z_G.
        data: the client's rows and units, plain or as `rows_near` returns them.

    Returns:
        The sum over its units.
    """
    near = data.batch if isinstance(data.batch, _RowsNear) else None
    plain = data if near is None else replace(data, batch=near.batch)
    num_units, num_local = checked_units(model, plain)
    if num_local == 0 or rule.is_laplace:
        return _sum_of_units(model, rule, z, plain)
    if near is None:
        start = jnp.full((num_units, num_local), FIRST, z.dtype)
        near = _RowsNear(plain.batch, start, jnp.asarray(rule.default_level(num_local)))
    return _log_likelihood(model, rule, z, plain, near.modes, near.level)


def _sum_of_units(model: LatentModel, rule: Rule, z: Float[Array, " g"], data: Data) -> Float[Array, ""]:
    assert data.units is not None
    each = log_marginal(model, model.theta, z, data, rule)
    return jnp.sum(jnp.where(jnp.asarray(data.units.weight) > 0, each, 0.0))


@eqx.filter_custom_jvp
def _log_likelihood(
    model: LatentModel,
    rule: Rule,
    z: Float[Array, " g"],
    data: Data,
    start: Float[Array, "u l"],
    level: Int[Array, ""],
) -> Float[Array, ""]:
    assert data.units is not None
    modes = unit_modes(model, model.theta, z, start, data)
    where = _Placed(*placed(model, model.theta, z, modes, data))
    each = _value(model, z, data, where, GroupedPoints.at(rule.orders(start.shape[1]), start.shape[1], level, z.dtype))
    return jnp.sum(jnp.where(jnp.asarray(data.units.weight) > 0, each, 0.0))


@_log_likelihood.def_jvp
def _(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    model, rule, z, data, start, level = primals
    _, _, of_z, *others = tangents
    if jax.tree.leaves((tangents[0], others)):  # a number of the model is learned
        return eqx.filter_jvp(_sum_of_units, (model, rule, z, data), tuple(tangents[:4]))
    value, slope = _value_and_slope(model, rule, z, data, start, level)
    return value, slope @ of_z


def _value_and_slope(
    model: LatentModel,
    rule: Rule,
    z: Float[Array, " g"],
    data: Data,
    start: Float[Array, "u l"],
    level: Int[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, " g"]]:
    assert data.units is not None
    present = jnp.asarray(data.units.weight) > 0
    points = GroupedPoints.at(rule.orders(start.shape[1]), start.shape[1], level, z.dtype)
    modes = jax.lax.stop_gradient(unit_modes(model, model.theta, jax.lax.stop_gradient(z), start, data))
    where, from_place = jax.vjp(lambda z: _Placed(*placed(model, model.theta, z, modes, data)), z)
    each = _each_point(model, z, data, where, points)
    total = logsumexp(each, axis=(0, 1))
    shares = jnp.where(present, jnp.exp(each - total), 0.0)

    def step(state: tuple[Array, tuple[Array, Array, Array]]) -> tuple[Array, tuple[Array, Array, Array]]:
        i, slopes = state

        def joint(z: Array, local: Array, root: Array) -> Float[Array, "k u"]:
            return _joint(model, z, local, root, data, points.points[i])

        _, pull = jax.vjp(joint, z, where.local, where.root)
        return i + 1, jax.tree.map(jnp.add, slopes, pull(shares[i]))

    zeros = jax.tree.map(jnp.zeros_like, (z, where.local, where.root))
    _, (of_z, of_local, of_root) = _loop(points, step, zeros)
    (through_place,) = from_place(_Placed(of_local, of_root, present.astype(z.dtype)))
    return jnp.sum(jnp.where(present, total + where.scale, 0.0)), of_z + through_place


def _value(
    model: LatentModel, z: Float[Array, " g"], data: Data, where: _Placed, points: GroupedPoints
) -> Float[Array, " u"]:
    """Log p(y_u | Z_G) of each unit."""
    return logsumexp(_each_point(model, z, data, where, points), axis=(0, 1)) + where.scale


def _each_point(
    model: LatentModel, z: Float[Array, " g"], data: Data, where: _Placed, points: GroupedPoints
) -> Float[Array, "i k u"]:
    """The log joint density of each unit at each point, with its weight; minus infinity at points of weight 0."""

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        i, found = state
        return i + 1, found.at[i].set(_joint(model, z, where.local, where.root, data, points.points[i]))

    _, found = _loop(points, step, jnp.zeros((*points.log_weights.shape, len(where.local)), z.dtype))
    return found + points.log_weights[..., None]


def _loop(points: GroupedPoints, step: Callable[[tuple[Array, T]], tuple[Array, T]], first: T) -> tuple[Array, T]:
    """`step` of every group that is needed."""
    zero = jnp.zeros_like(points.count)
    return jax.lax.while_loop(lambda state: state[0] < points.count, step, (zero, first))


def _joint(
    model: LatentModel, z: Array, local: Array, root: Array, data: Data, points: Float[Array, "k l"]
) -> Float[Array, "k u"]:
    def one(point: Float[Array, " l"]) -> Float[Array, " u"]:
        return model.log_joint(
            model.theta, z, local + times(root, jnp.broadcast_to(point, local.shape)), data, jax.random.key(0)
        )

    if len(data.weight) * len(points) <= AT_ONCE:
        return jax.vmap(one)(points)
    return jax.lax.map(jax.checkpoint(one), points)
