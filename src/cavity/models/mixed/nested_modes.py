"""The joint mode of the latents of groups and of the groups within them, by Newton's method.

Smaller groups do not share latents, so that the negative Hessian of a larger group o in (v, u_1, u_2, ...) is

    [[A, B_1, B_2, ...], [B_1', C_1, 0, ...], [B_2', 0, C_2, ...], ...]

and its Schur complement in v is A - sum_j B_j C_j^-1 B_j'. Blocks are sums over rows of derivatives in the
predictor f, with minus the second one set to 0 where it is negative, so that they are positive definite.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ops import segment_sum
from jaxtyping import Array, Bool, Float, Int

from cavity.core import Data
from cavity.models.mixed.grouped_regression import GroupedRegression, Loadings
from cavity.models.mixed.modes import inverse_root, products, times

MOST_STEPS = 50
SMALLEST_STEP = 1e-6
SMALL_GAIN = 1e-7  # nats: the joint mode only places points


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
    mode: JointMode
    value: Float[Array, " o"]
    move: tuple[Float[Array, "o l"], Float[Array, "n k"]]
    gain: Float[Array, " o"]
    size: Float[Array, " o"]
    steps: Int[Array, ""]


def rows_of(model: GroupedRegression, parts: Loadings, data: Data) -> NestedRows:
    """The rows of a client, with the parts of their predictors."""
    y, unit, inner = (jnp.asarray(data.batch[name]) for name in ("y", "unit", "inner"))
    return NestedRows(model, parts, y, jnp.asarray(data.weight, parts.fixed.dtype), unit, inner)


def outer_products(a: Float[Array, "n i"], b: Float[Array, "n j"], h: Float[Array, " n"]) -> Float[Array, "n i j"]:
    """Each h a b'."""
    return h[:, None, None] * a[:, :, None] * b[:, None, :]


def transposed(matrix: Float[Array, "n i j"]) -> Float[Array, "n j i"]:
    """Of one small matrix per group."""
    return jnp.swapaxes(matrix, 1, 2)


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
    a = identity + segment_sum(outer_products(parts.outer, parts.outer, h), unit, num_outer)
    b = segment_sum(outer_products(parts.outer, parts.inner, h), own, num_rows)
    c_root, _ = curvature_root(rows, h)
    half = products(b, c_root)  # b c^-1 b' = half half'
    schur = a - segment_sum(products(half, transposed(half)), home, num_outer)
    root, log_det = inverse_root(0.5 * (schur + transposed(schur)))
    white = times(transposed(c_root), of_inner)
    right = of_outer - segment_sum(times(half, white), home, num_outer)
    move = times(root, times(transposed(root), right))
    slope = -products(c_root, transposed(half))
    move_inner = times(c_root, white) + times(slope, move[home])
    gain = jnp.sum(of_outer * move, axis=1) + segment_sum(jnp.sum(of_inner * move_inner, axis=1), home, num_outer)
    return total, (move, move_inner), 0.5 * gain, JointMode(outer, inner, root, log_det, slope)


def curvature_root(rows: NestedRows, h: Float[Array, " n"]) -> tuple[Float[Array, "n k k"], Float[Array, " n"]]:
    """R with R R' the inverse of the precision of each smaller group's latents, and log det R."""
    inner = rows.parts.inner
    identity = jnp.eye(inner.shape[1], dtype=inner.dtype)
    return inverse_root(identity + segment_sum(outer_products(inner, inner, h), rows.inner, len(rows.inner)))


def joint_mode(rows: NestedRows, outer: Array, inner: Array) -> JointMode:
    """By Newton's method with a step size per larger group."""

    def step(search: _Search) -> _Search:
        size, mode = search.size, search.mode
        trial = mode.outer + size[:, None] * search.move[0]
        trial_inner = mode.inner + size[rows.home][:, None] * search.move[1]
        value, move, gain, there = _newton(rows, trial, trial_inner)
        better = value >= search.value - 1e-12 * jnp.abs(value)
        at_row = better[rows.home]

        def pick(new: Array, old: Array, which: Bool[Array, " _"]) -> Array:
            return jnp.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return _Search(
            JointMode(
                outer=pick(there.outer, mode.outer, better),
                inner=pick(there.inner, mode.inner, at_row),
                root=pick(there.root, mode.root, better),
                log_det=pick(there.log_det, mode.log_det, better),
                slope=pick(there.slope, mode.slope, at_row),
            ),
            value=pick(value, search.value, better),
            move=(pick(move[0], search.move[0], better), pick(move[1], search.move[1], at_row)),
            gain=pick(gain, search.gain, better),
            size=jnp.where(better, jnp.minimum(2.0 * size, 1.0), size / 4.0),
            steps=search.steps + 1,
        )

    def unfinished(search: _Search) -> Bool[Array, ""]:
        is_open = (search.gain > SMALL_GAIN * (1.0 + jnp.abs(search.value))) & (search.size > SMALLEST_STEP)
        return (search.steps == 0) | (jnp.any(is_open) & (search.steps < MOST_STEPS))

    # the first step evaluates the start: it moves nothing
    lowest = jnp.full(len(outer), -jnp.inf, outer.dtype)
    zeros, num_latents = jnp.zeros_like(lowest), outer.shape[1]
    square = jnp.zeros((len(outer), num_latents, num_latents), outer.dtype)
    start = JointMode(outer, inner, square, zeros, jnp.zeros((*inner.shape, num_latents), outer.dtype))
    first = _Search(start, lowest, (jnp.zeros_like(outer), jnp.zeros_like(inner)), zeros, zeros + 1.0, jnp.asarray(0))
    return jax.lax.while_loop(unfinished, step, first).mode
