"""Groups within groups: the effects of both are integrated out, the smaller ones inside the larger ones.

For a larger group o (a community) with latents v, its smaller groups j (mothers) with latents u_j, and row densities
that depend on f = fixed + outer . v + inner . u_j,

    p(y_o | Z_G)  =  int N(v; 0, I)  prod_j g_j(v)  dv,       g_j(v)  =  int N(u; 0, I)  prod_r p(y_r | f_r(v, u))  du

Both integrals are sums over points (`rules`), which are adapted:

- *Outer points* are m + R x_k. (m, u) is the joint mode, found by Newton's method, whose Hessian has one block per
  smaller group; R R' is the inverse of its Schur complement in v. Where a client's posterior is known (`rows_near`), m
  and R are corrected by the mean and the covariance of v that the points themselves give there.
- *Inner points* are adapted at every outer point: few Newton steps in u from where the joint mode would move.

**Derivatives.** The sum over points is differentiated as if points did not move with Z_G: exact for the integral, and
for the sum up to the error of the rule, which a check keeps small. With shares pi_k of outer, pi_jkm of inner points,

    d log p(y_o | Z_G)  =  sum_k pi_k sum_j sum_m pi_jkm sum_r d log p(y_r | f_r(v_k, u_jkm)),

so sums over points of the derivative in f, alone and times the latents, are kept per row, and one pull-back through
`GroupedRegression.loadings` remains. All sums over points are kept relative to the largest term so far, so that no
array has an axis for the outer points.

A smaller group has the number of its first row; numbers of other rows are empty groups, whose integral is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ops import segment_sum
from jaxtyping import Array, Bool, Float, Int, PyTree

from cavity.core import Data
from cavity.models.mixed.grouped_regression import GroupedRegression, Loadings
from cavity.models.mixed.modes import inverse_root
from cavity.models.mixed.rules import GroupedPoints, tables

MOST_STEPS = 50  # of Newton's method for the joint mode
SMALL_GAIN = 1e-7  # nats: the joint mode only places points
INNER_STEPS = 4  # of Newton's method at an outer point
LONGEST_STEP = 1.5  # in sds of the prior


class NestedNear(NamedTuple):
    """What a client computes at a posterior, besides the batch of its data.

    Attributes:
        batch: of the data.
        outer: joint mode in v at the posterior mean.
        inner: that in u.
        shift: of the outer points, in units of R.
        stretch: of the outer points: R becomes R times this.
        level: the place of the orders among those of the rule.
    """

    batch: PyTree
    outer: Float[Array, "o l"]
    inner: Float[Array, "n k"]
    shift: Float[Array, "o l"]
    stretch: Float[Array, "o l l"]
    level: Int[Array, ""]


class NestedRows(NamedTuple):
    """What is fixed at a value of Z_G.

    Attributes:
        model: with its likelihood.
        parts: of the predictors.
        y: outcomes.
        weight: of rows.
        unit: the larger group of each row.
        inner: the smaller group of each row.
    """

    model: GroupedRegression
    parts: Loadings
    y: Array
    weight: Float[Array, " n"]
    unit: Int[Array, " n"]
    inner: Int[Array, " n"]

    def log_prob(self, f: Float[Array, " n"], family: Float[Array, "n p"]) -> Float[Array, " n"]:
        """Of each row, times its weight."""
        each = self.model.likelihood.log_prob(jnp.concatenate([f[:, None], family], axis=1), self.y)
        return jnp.where(self.weight > 0, self.weight * each, 0.0)

    def family(self) -> Float[Array, "n p"]:
        """The further predictors of each row."""
        return jnp.broadcast_to(self.parts.family, (len(self.y), len(self.parts.family)))

    def derivatives(self, f: Float[Array, " n"]) -> tuple[Array, Array, Array]:
        """The weighted log density of each row, its derivative in f, and minus the second one, at least 0."""
        family = self.family()

        def slope(f: Array) -> tuple[Array, Array]:
            value, pull = jax.vjp(lambda f: self.log_prob(f, family), f)
            return pull(jnp.ones_like(value))[0], value

        first, second, value = jax.jvp(slope, (f,), (jnp.ones_like(f),), has_aux=True)
        return value, first, jnp.maximum(-second, 0.0)

    @property
    def home(self) -> Int[Array, " n"]:
        """The larger group of each smaller one."""
        return self.unit


class JointMode(NamedTuple):
    """The joint mode of a client's latents, and how that of the smaller groups moves with v.

    Attributes:
        outer: m.
        inner: u.
        root: R of the Schur complement.
        log_det: of R.
        slope: du / dv.
    """

    outer: Float[Array, "o l"]
    inner: Float[Array, "n k"]
    root: Float[Array, "o l l"]
    log_det: Float[Array, " o"]
    slope: Float[Array, "n k l"]


class _Search(NamedTuple):
    outer: Float[Array, "o l"]
    inner: Float[Array, "n k"]
    value: Float[Array, " o"]
    move: tuple[Float[Array, "o l"], Float[Array, "n k"]]
    gain: Float[Array, " o"]
    size: Float[Array, " o"]
    steps: Int[Array, ""]


def rows_of(model: GroupedRegression, parts: Loadings, data: Data) -> NestedRows:
    """The rows of a client, with the parts of their predictors."""
    y, unit, inner = (jnp.asarray(data.batch[name]) for name in ("y", "unit", "inner"))
    return NestedRows(model, parts, y, jnp.asarray(data.weight, parts.fixed.dtype), unit, inner)


def _outer_products(a: Float[Array, "n i"], b: Float[Array, "n j"], h: Float[Array, " n"]) -> Float[Array, "n i j"]:
    return h[:, None, None] * a[:, :, None] * b[:, None, :]


def _newton(rows: NestedRows, outer: Array, inner: Array) -> tuple[Array, tuple[Array, Array], Array, JointMode]:
    """The log joint density of each larger group, the Newton step in (v, u), its gain, and what it needs."""
    parts, unit, own, home = rows.parts, rows.unit, rows.inner, rows.home
    num_outer, num_rows = len(outer), len(unit)
    f = parts.fixed + jnp.sum(parts.outer * outer[unit], axis=1) + jnp.sum(parts.inner * inner[own], axis=1)
    value, first, h = rows.derivatives(f)
    total = segment_sum(value, unit, num_outer) - 0.5 * jnp.sum(outer**2, axis=1)
    total = total - segment_sum(0.5 * jnp.sum(inner**2, axis=1), home, num_outer)
    of_outer = segment_sum(first[:, None] * parts.outer, unit, num_outer) - outer
    of_inner = segment_sum(first[:, None] * parts.inner, own, num_rows) - inner
    identity = jnp.eye(outer.shape[1], dtype=f.dtype)
    a = identity + segment_sum(_outer_products(parts.outer, parts.outer, h), unit, num_outer)
    b = segment_sum(_outer_products(parts.outer, parts.inner, h), own, num_rows)
    c_root, _ = _curvature_root(rows, h)
    half = b @ c_root  # b c^-1 b' = half half'
    schur = a - segment_sum(half @ jnp.swapaxes(half, 1, 2), home, num_outer)
    root, log_det = inverse_root(0.5 * (schur + jnp.swapaxes(schur, 1, 2)))
    white = jnp.einsum("nij,ni->nj", c_root, of_inner)
    right = of_outer - segment_sum(jnp.einsum("nij,nj->ni", half, white), home, num_outer)
    move = jnp.einsum("oij,okj,ok->oi", root, root, right)
    slope = -c_root @ jnp.swapaxes(half, 1, 2)
    move_inner = jnp.einsum("nij,nj->ni", c_root, white) + jnp.einsum("nij,nj->ni", slope, move[home])
    gain = jnp.sum(of_outer * move, axis=1) + segment_sum(jnp.sum(of_inner * move_inner, axis=1), home, num_outer)
    return total, (move, move_inner), 0.5 * gain, JointMode(outer, inner, root, log_det, slope)


def _curvature_root(rows: NestedRows, h: Float[Array, " n"]) -> tuple[Float[Array, "n k k"], Float[Array, " n"]]:
    """R with R R' the inverse of the precision of each smaller group's latents, and log det R."""
    inner = rows.parts.inner
    identity = jnp.eye(inner.shape[1], dtype=inner.dtype)
    return inverse_root(identity + segment_sum(_outer_products(inner, inner, h), rows.inner, len(rows.inner)))


def _joint_mode(rows: NestedRows, outer: Array, inner: Array) -> JointMode:
    """By Newton's method with a step size per larger group."""

    def step(search: _Search) -> _Search:
        size = search.size
        trial = search.outer + size[:, None] * search.move[0]
        trial_inner = search.inner + size[rows.home][:, None] * search.move[1]
        value, move, gain, _ = _newton(rows, trial, trial_inner)
        better = value >= search.value - 1e-12 * jnp.abs(value)
        at_row = better[rows.home]

        def pick(new: Array, old: Array, which: Array) -> Array:
            return jnp.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return _Search(
            pick(trial, search.outer, better),
            pick(trial_inner, search.inner, at_row),
            pick(value, search.value, better),
            (pick(move[0], search.move[0], better), pick(move[1], search.move[1], at_row)),
            pick(gain, search.gain, better),
            jnp.where(better, jnp.minimum(2.0 * size, 1.0), size / 4.0),
            search.steps + 1,
        )

    def unfinished(search: _Search) -> Bool[Array, ""]:
        is_open = (search.gain > SMALL_GAIN * (1.0 + jnp.abs(search.value))) & (search.size > 1e-6)
        return jnp.any(is_open) & (search.steps < MOST_STEPS)

    value, move, gain, _ = _newton(rows, outer, inner)
    first = _Search(outer, inner, value, move, gain, jnp.ones_like(value), jnp.asarray(0))
    found = jax.lax.while_loop(unfinished, step, first)
    return _newton(rows, found.outer, found.inner)[3]


class _Inner(NamedTuple):
    """Integrals over the smaller groups at one outer point.

    Attributes:
        value: log g_j.
        slope: the mean over inner points of the derivative of each row in f.
        times_latent: the mean of the same times u.
        of_family: the mean of the derivatives in the further predictors.
    """

    value: Float[Array, " n"]
    slope: Float[Array, " n"]
    times_latent: Float[Array, "n k"]
    of_family: Float[Array, "n p"]


def _inner_placement(rows: NestedRows, offset: Array, start: Array) -> tuple[Array, Array, Array]:
    """About the mode of each smaller group given v, R of the curvature there, and log det R."""
    loading, own = rows.parts.inner, rows.inner

    def predictor(u: Array) -> Array:
        return offset + jnp.sum(loading * u[own], axis=1)

    def step(i: int, centre: Array) -> Array:
        _, first, h = rows.derivatives(predictor(centre))
        root, _ = _curvature_root(rows, h)
        gradient = segment_sum(first[:, None] * loading, own, len(own)) - centre
        move = jnp.einsum("nij,nkj,nk->ni", root, root, gradient)
        return centre + jnp.clip(move, -LONGEST_STEP, LONGEST_STEP)

    centre = jax.lax.fori_loop(0, INNER_STEPS, step, start)
    return centre, *_curvature_root(rows, rows.derivatives(predictor(centre))[2])


def _inner_integrals(rows: NestedRows, offset: Array, start: Array, points: GroupedPoints, *, slopes: bool) -> _Inner:
    """Log g_j at one outer point, where `offset` is the part of f that u does not change."""
    parts, own, num_rows = rows.parts, rows.inner, len(offset)
    size, family = parts.inner.shape[1], rows.family()
    centre, root, log_det = _inner_placement(*jax.lax.stop_gradient((rows, offset, start)))

    def predictor(u: Array) -> Array:
        return offset + jnp.sum(parts.inner * u[own], axis=1)

    def at(point: Float[Array, " k"]) -> tuple[Array, Array, Array, Array]:
        u = centre + root @ point
        value, pull = jax.vjp(rows.log_prob, predictor(u), family)
        slope, of_family = pull(jnp.ones_like(value)) if slopes else (value, family)
        joint = segment_sum(value, own, num_rows) - 0.5 * jnp.sum(u**2, axis=1)
        return joint, slope, of_family, u

    def step(state: tuple[Array, Array, Array, _Inner]) -> tuple[Array, Array, Array, _Inner]:
        i, top, total, sums = state
        joint, slope, of_family, u = jax.vmap(at)(points.points[i])
        joint = joint + points.log_weights[i][:, None]
        new_top = jnp.maximum(top, jnp.max(joint, axis=0))
        keep, share = jnp.exp(top - new_top), jnp.exp(joint - new_top)
        total = total * keep + jnp.sum(share, axis=0)
        if slopes:
            keep, share = keep[own], share[:, own]
            weighted = share * slope
            sums = _Inner(
                sums.value,
                sums.slope * keep + jnp.sum(weighted, axis=0),
                sums.times_latent * keep[:, None] + jnp.einsum("mn,mnk->nk", weighted, u[:, own]),
                sums.of_family * keep[:, None] + jnp.einsum("mn,mnp->np", share, of_family),
            )
        return i + 1, new_top, total, sums

    zeros = jnp.zeros(num_rows, offset.dtype)
    empty = _Inner(zeros, zeros, jnp.zeros((num_rows, size), offset.dtype), jnp.zeros_like(family))
    lowest = jnp.full_like(zeros, jnp.finfo(offset.dtype).min)
    _, top, total, sums = jax.lax.while_loop(
        lambda state: state[0] < points.count, step, (jnp.zeros_like(points.count), lowest, zeros, empty)
    )
    at_row = total[own]
    return _Inner(
        top + jnp.log(total) + log_det,  # the constants of N(u; 0, I) and of the rule cancel
        sums.slope / at_row,
        sums.times_latent / at_row[:, None],
        sums.of_family / at_row[:, None],
    )


class RowSlopes(NamedTuple):
    """Derivatives in the parts of each row's predictors; the fields are those of `Loadings`."""

    fixed: Float[Array, " n"]
    outer: Float[Array, "n l"]
    inner: Float[Array, "n k"]
    family: Float[Array, "n p"]


class OuterIntegrals(NamedTuple):
    """Integrals over the larger groups.

    Attributes:
        value: log p(y_o | Z_G).
        mean: of x, where outer points are m + R x.
        square: the mean of x x'.
        slopes: the derivatives of the sum of the values, per row.
    """

    value: Float[Array, " o"]
    mean: Float[Array, "o l"]
    square: Float[Array, "o l l"]
    slopes: RowSlopes


class _Sums(NamedTuple):
    top: Float[Array, " o"]
    total: Float[Array, " o"]
    mean: Float[Array, "o l"]
    square: Float[Array, "o l l"]
    slopes: RowSlopes


def integrals(
    rows: NestedRows, num_outer: int, near: NestedNear, orders: tuple[tuple[int, ...], tuple[int, ...]], *, slopes: bool
) -> tuple[OuterIntegrals, JointMode]:
    """Both integrals, with the outer points corrected as `near` says."""
    parts, unit, home = rows.parts, rows.unit, rows.home
    size, dtype = parts.outer.shape[1], parts.fixed.dtype
    outer_orders, inner_orders = orders
    inner_points = GroupedPoints.at(inner_orders, parts.inner.shape[1], near.level, dtype)
    every = tables(size, outer_orders)
    points, log_weights = (jnp.asarray(part, dtype)[near.level] for part in (every.points, every.log_weights))
    mode = _joint_mode(*jax.lax.stop_gradient((rows, near.outer, near.inner)))
    centre = mode.outer + jnp.einsum("oij,oj->oi", mode.root, near.shift)
    root = mode.root @ near.stretch
    log_det = mode.log_det + jnp.linalg.slogdet(near.stretch)[1]

    def step(state: tuple[Array, _Sums]) -> tuple[Array, _Sums]:
        k, sums = state
        x = points[k]
        v = centre + root @ x
        offset = parts.fixed + jnp.sum(parts.outer * v[unit], axis=1)
        start = mode.inner + jnp.einsum("nkl,nl->nk", mode.slope, (v - mode.outer)[home])
        inner = _inner_integrals(rows, offset, start, inner_points, slopes=slopes)
        joint = segment_sum(inner.value, home, num_outer) - 0.5 * jnp.sum(v**2, axis=1) + log_weights[k]
        top = jnp.maximum(sums.top, joint)
        keep, share = jnp.exp(sums.top - top), jnp.exp(joint - top)
        here = near.shift + near.stretch @ x  # (v - m) in units of the first R
        new = _Sums(
            top,
            sums.total * keep + share,
            sums.mean * keep[:, None] + share[:, None] * here,
            sums.square * keep[:, None, None] + _outer_products(here, here, share),
            sums.slopes,
        )
        if not slopes:
            return k + 1, new
        keep, share = keep[unit], share[unit]
        slope = share * inner.slope
        added = RowSlopes(
            slope, slope[:, None] * v[unit], share[:, None] * inner.times_latent, share[:, None] * inner.of_family
        )
        return k + 1, new._replace(slopes=jax.tree.map(lambda old, add: _scaled(old, keep) + add, sums.slopes, added))

    zeros = jnp.zeros(num_outer, dtype)
    none = RowSlopes(
        jnp.zeros_like(parts.fixed), jnp.zeros_like(parts.outer), jnp.zeros_like(parts.inner), 0.0 * rows.family()
    )
    empty = _Sums(
        jnp.full_like(zeros, jnp.finfo(dtype).min),
        zeros,
        jnp.zeros((num_outer, size), dtype),
        jnp.zeros((num_outer, size, size), dtype),
        none,
    )
    count = jnp.asarray(every.sizes)[near.level]
    _, sums = jax.lax.while_loop(lambda state: state[0] < count, step, (jnp.zeros_like(count), empty))
    share = 1.0 / sums.total
    found = jax.tree.map(lambda each: _scaled(each, share[unit]), sums.slopes)
    value = sums.top + jnp.log(sums.total) + log_det
    return OuterIntegrals(value, sums.mean * share[:, None], sums.square * share[:, None, None], found), mode


def _scaled(rows: Array, by: Float[Array, " n"]) -> Array:
    return rows * by.reshape(-1, *[1] * (rows.ndim - 1))
