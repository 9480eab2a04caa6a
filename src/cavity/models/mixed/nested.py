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
from jaxtyping import Array, Float, Int, PyTree

from cavity.models.mixed.modes import products, times
from cavity.models.mixed.nested_modes import (
    JointMode,
    NestedRows,
    curvature_root,
    joint_mode,
    outer_products,
    transposed,
)
from cavity.models.mixed.rules import GroupedPoints, tables

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
        level: the places of the outer and of the inner order among those of the rule.
    """

    batch: PyTree
    outer: Float[Array, "o l"]
    inner: Float[Array, "n k"]
    shift: Float[Array, "o l"]
    stretch: Float[Array, "o l l"]
    level: Int[Array, " 2"]


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

    def step(_: int | Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        centre = state[0] + jnp.clip(state[3], -LONGEST_STEP, LONGEST_STEP)
        _, first, h = rows.derivatives(offset + jnp.sum(loading * centre[own], axis=1))
        root, log_det = curvature_root(rows, h)
        gradient = segment_sum(first[:, None] * loading, own, len(own)) - centre
        return centre, root, log_det, times(root, times(transposed(root), gradient))

    square = jnp.zeros((*start.shape, start.shape[1]), start.dtype)
    state = (start, square, jnp.zeros(len(start), start.dtype), jnp.zeros_like(start))
    return jax.lax.fori_loop(0, INNER_STEPS + 1, step, state)[:3]


def _inner_integrals(rows: NestedRows, offset: Array, start: Array, points: GroupedPoints, *, slopes: bool) -> _Inner:
    """Log g_j at one outer point, where `offset` is the part of f that u does not change."""
    parts, own, num_rows = rows.parts, rows.inner, len(offset)
    size, family = parts.inner.shape[1], rows.family()
    centre, root, log_det = _inner_placement(*jax.lax.stop_gradient((rows, offset, start)))

    def predictor(u: Array) -> Array:
        return offset + jnp.sum(parts.inner * u[own], axis=1)

    def at(point: Float[Array, " k"]) -> tuple[Array, Array, Array, Array]:
        u = centre + times(root, jnp.broadcast_to(point, centre.shape))
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
                sums.times_latent * keep[:, None] + jnp.sum(weighted[..., None] * u[:, own], axis=0),
                sums.of_family * keep[:, None] + jnp.sum(share[..., None] * of_family, axis=0),
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
    inner_points = GroupedPoints.at(inner_orders, parts.inner.shape[1], near.level[1], dtype)
    every = tables(size, outer_orders)
    points, log_weights = (jnp.asarray(part, dtype)[near.level[0]] for part in (every.points, every.log_weights))
    mode = joint_mode(*jax.lax.stop_gradient((rows, near.outer, near.inner)))
    centre = mode.outer + times(mode.root, near.shift)
    root = products(mode.root, near.stretch)
    log_det = mode.log_det + jnp.linalg.slogdet(near.stretch)[1]

    def step(state: tuple[Array, _Sums]) -> tuple[Array, _Sums]:
        k, sums = state
        x = points[k]
        v = centre + times(root, jnp.broadcast_to(x, centre.shape))
        offset = parts.fixed + jnp.sum(parts.outer * v[unit], axis=1)
        start = mode.inner + times(mode.slope, (v - mode.outer)[home])
        inner = _inner_integrals(rows, offset, start, inner_points, slopes=slopes)
        joint = segment_sum(inner.value, home, num_outer) - 0.5 * jnp.sum(v**2, axis=1) + log_weights[k]
        top = jnp.maximum(sums.top, joint)
        keep, share = jnp.exp(sums.top - top), jnp.exp(joint - top)
        here = near.shift + times(near.stretch, jnp.broadcast_to(x, centre.shape))  # (v - m) in units of the first R
        new = _Sums(
            top,
            sums.total * keep + share,
            sums.mean * keep[:, None] + share[:, None] * here,
            sums.square * keep[:, None, None] + outer_products(here, here, share),
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
    count = jnp.asarray(every.sizes)[near.level[0]]
    _, sums = jax.lax.while_loop(lambda state: state[0] < count, step, (jnp.zeros_like(count), empty))
    share = 1.0 / sums.total
    found = jax.tree.map(lambda each: _scaled(each, share[unit]), sums.slopes)
    value = sums.top + jnp.log(sums.total) + log_det
    return OuterIntegrals(value, sums.mean * share[:, None], sums.square * share[:, None, None], found), mode


def _scaled(rows: Array, by: Float[Array, " n"]) -> Array:
    return rows * by.reshape(-1, *[1] * (rows.ndim - 1))
