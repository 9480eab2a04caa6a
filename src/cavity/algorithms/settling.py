"""The stopping rule of a stochastic ascent, from the trend of the bound and of q(Z_G), and the step sizes that follow
from it.

Each exchange gives a noisy value x of the bound, and of every mean and log scale of q(Z_G). Means of x over consecutive
batches of exchanges are kept, at most `NUM_BATCHES` of them: when these are full, neighbours are merged and a batch is
twice as long. Whenever they are full, over their last half

    move  = mean of the newer half - mean of the older half             means in posterior sds, log scales as they are
    noise = the standard error of that difference, from the batches within each half

and q has settled where every |move| is at most `MOVE`, the noise on average at most `NOISE`, moves on average no larger
than the noise explains, and where the bound rises by no more than `RISE` nats or twice the standard error of its own
rise. The rule requires that moves are small, not only that they are insignificant, so that noise is not mistaken for
convergence. It also requires that halves differ no more than independent batches do, so that a slow drift, seen for a
short time, is not mistaken for convergence either.

A run without a fixed number of steps uses a constant step size until q has settled. Then the step size decreases to
zero over as many exchanges again (`FALL`), which averages out the noise of the last iterate. The run has converged if
it ends where it had settled. Otherwise it continues with a quarter of the step size: if gradients are skewed, an
optimiser such as Adam settles beside the optimum, and the distance decreases with the step size. In a run with a fixed
number of steps the step size decreases over the whole run, and the rule is applied in its first three quarters.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from cavity.core import Convergence
from cavity.core.messages import ServerState
from cavity.core.types import Leaf
from cavity.distributions.structured import GlobalGaussian

MOVE = 0.1  # posterior standard deviations
NOISE = 0.04  # of a move, on average over all parameters
EXPLAINED = 1.6  # times the noise, that moves may be on average: 1 where batches are independent, 2 on a random walk
FALL = 1.0  # exchanges in which the step size falls, as a share of those of the climb
SHORTER = 0.25  # times the step size, for a climb after a fall that ended elsewhere
RISE = 0.1  # nats
MANY = 200  # global latents from which on the bound alone is watched


class Watch(eqx.Module):
    """Statistics of the exchanges so far; part of the server's state. All numbers are finite.

    Attributes:
        count: exchanges so far.
        means: of the bound, the means and the log scales in each batch, oldest first.
        filled: how many batches there are.
        length: exchanges per batch.
        total: sums of the batch that is not complete.
        inside: exchanges in that batch.
        passed: whether q had settled when it was last judged.
        settled: whether it has, and the step size has fallen to nothing.
        factor: of the step size while it climbs.
        began: the exchange at which the climb began, or the fall of the step size.
        ends: the exchange at which the step size reaches zero; 0 while it is constant.
        judged: the means of the batches on which it was judged last.
    """

    count: Int[Leaf, ""]
    means: Float[Leaf, "m p"]
    filled: Int[Leaf, ""]
    length: Int[Leaf, ""]
    total: Float[Leaf, " p"]
    inside: Int[Leaf, ""]
    passed: Bool[Leaf, ""]
    settled: Bool[Leaf, ""]
    factor: Float[Leaf, ""]
    began: Int[Leaf, ""]
    ends: Int[Leaf, ""]
    judged: Float[Leaf, " p"]


class Settling(eqx.Module):
    """How a run is judged, and how its step size falls.

    Attributes:
        planned: the number of exchanges, or the maximum number for a run that stops by itself.
        first_batch: exchanges per batch at the beginning.
        num_batches: most batches.
        by_itself: whether the step size decreases when q has settled; otherwise over a fixed number of exchanges.
        decays: whether the step size of a run of fixed length decreases.
        multiple: a fall of the step size ends at a multiple of so many exchanges.
    """

    planned: int = eqx.field(static=True)
    first_batch: int = eqx.field(static=True)
    num_batches: int = eqx.field(static=True)
    by_itself: bool = eqx.field(static=True)
    decays: bool = eqx.field(static=True)
    multiple: int = eqx.field(static=True, default=1)

    def init(self, q: GlobalGaussian) -> Watch:
        """Before the first exchange."""
        size = 1 if q.dimension >= MANY else 1 + 2 * q.dimension
        zero, nothing = np.asarray(0, np.int32), np.zeros(size)
        return Watch(
            count=zero,
            means=np.zeros((self.num_batches, size)),
            filled=zero,
            length=np.asarray(self.first_batch, np.int32),
            total=nothing,
            inside=zero,
            passed=np.asarray(False),
            settled=np.asarray(False),
            factor=np.asarray(1.0),
            began=zero,
            ends=zero,
            judged=nothing,
        )

    def scale(self, watch: Watch) -> Float[Array, ""]:
        """Of the step size in the next exchange."""
        if not self.by_itself:
            return jnp.asarray(watch.factor)
        left = (jnp.asarray(watch.ends) - watch.count) / jnp.maximum(jnp.asarray(watch.ends) - watch.began, 1)
        falling = jnp.where(watch.ends > 0, jnp.clip(left, 0.0, 1.0), 1.0)
        return jnp.where(watch.settled, 0.0, jnp.asarray(watch.factor) * falling)

    def seen(self, watch: Watch, q: GlobalGaussian, bound: Leaf) -> Watch:
        """The state after one more exchange, which gave q; the bound is that before the exchange."""
        watch = jax.tree.map(jnp.asarray, watch)
        now = jnp.asarray(watch.total)[:1] * 0 + bound
        if watch.total.size > 1:
            now = jnp.concatenate([now, q.mean, q.log_scale]).astype(watch.total.dtype)
        watch = eqx.tree_at(
            lambda w: (w.count, w.total, w.inside), watch, (watch.count + 1, watch.total + now, watch.inside + 1)
        )
        unit = _units(q, watch.total)
        watch = jax.lax.cond(watch.inside >= watch.length, lambda w: self._batch(w, unit), lambda w: w, watch)
        return self._after_fall(watch, now, unit) if self.by_itself else self._as_planned(watch)

    def _batch(self, watch: Watch, unit: Array) -> Watch:
        """A batch is complete."""
        means = jnp.asarray(watch.means).at[watch.filled].set(watch.total / watch.length)
        filled, half = watch.filled + 1, self.num_batches // 2
        last = jax.lax.dynamic_slice_in_dim(means, jnp.maximum(filled - half, 0), half)
        move, error = moves(last, unit)
        passed = move[0] <= jnp.maximum(2.0 * error[0], RISE)
        if move.size > 1:
            size, noise = (jnp.sqrt(jnp.mean(part[1:] ** 2)) for part in (move, error))
            passed &= (jnp.max(jnp.abs(move[1:])) <= MOVE) & (noise <= NOISE)
            passed &= size <= jnp.maximum(EXPLAINED * noise, NOISE / 2)
        climbs = (watch.ends == 0) & ~watch.settled
        if not self.by_itself and self.decays:
            climbs = watch.count <= 3 * self.planned // 4
        full = filled == self.num_batches
        judging = full & climbs  # judge rarely: each test could pass by chance
        merged = jnp.zeros_like(means).at[:half].set(0.5 * (means[::2] + means[1::2]))
        return eqx.tree_at(
            lambda w: (w.means, w.filled, w.length, w.total, w.inside, w.passed, w.judged),
            watch,
            (
                jnp.where(full, merged, means),
                jnp.where(full, half, filled),
                jnp.where(full, 2 * watch.length, watch.length),
                jnp.zeros_like(watch.total),
                jnp.zeros_like(watch.inside),
                jnp.where(judging, passed, watch.passed),
                jnp.where(judging, jnp.mean(last, axis=0), watch.judged),
            ),
        )

    def _after_fall(self, watch: Watch, now: Array, unit: Array) -> Watch:
        """Let the step size decrease if q has settled or few exchanges are left; judge again when it is zero."""
        late = (watch.count >= 3 * self.planned // 4) & (watch.count < self.planned)
        begins = (watch.ends == 0) & ~watch.settled & (watch.passed | late)
        climbed = (FALL * (watch.count - watch.began)).astype(watch.count.dtype)
        over = watch.count + jnp.maximum(climbed, 3 * self.first_batch)
        over = -(-over // self.multiple) * self.multiple
        over = jnp.asarray(jnp.where(watch.passed, over, self.planned), watch.ends.dtype)
        ended = (watch.ends > 0) & (watch.count >= watch.ends)
        shift = jnp.max(jnp.abs((now - watch.judged) * unit)[1:], initial=0.0)
        settled = watch.settled | (ended & watch.passed & (shift <= 2 * MOVE))
        again = ended & ~settled
        return eqx.tree_at(
            lambda w: (w.settled, w.passed, w.factor, w.began, w.ends, w.filled, w.length, w.total, w.inside),
            watch,
            (
                settled,
                watch.passed & ~again,
                jnp.where(again, SHORTER * watch.factor, watch.factor),
                jnp.where(begins | again, watch.count, watch.began),
                jnp.where(begins, over, jnp.asarray(jnp.where(ended, 0, watch.ends))),
                jnp.where(again, 0, watch.filled),
                jnp.where(again, jnp.maximum(watch.length // 2, 1), watch.length),
                jnp.where(again, 0.0, watch.total),
                jnp.where(again, 0, watch.inside),
            ),
        )

    def _as_planned(self, watch: Watch) -> Watch:
        over = watch.count >= self.planned if self.decays else jnp.asarray(True)
        return eqx.tree_at(lambda w: w.settled, watch, watch.passed & over)

    def remark(self, watch: Watch, q: GlobalGaussian, noun: str, per: int) -> str:
        """For a summary: whether it has settled, and if not, what still changes by how much per `per` exchanges."""
        count, filled = int(watch.count), int(watch.filled)
        if watch.settled:
            return f"converged: the bound and the posterior have settled after {count} {noun}s"
        remedy = f"run more {noun}s" + ("" if self.by_itself else ", or leave their number to the method")
        if filled < 4:
            return f"not converged: {count} {noun}s of at most {self.planned} are too few to judge; {remedy}"
        used = np.asarray(watch.means)[:filled][-(filled // 4 * 2) :]
        with jax.enable_x64(True):
            move, error = (np.asarray(part) for part in moves(used, _units(q, watch.total)))
        each = per / (len(used) // 2 * int(watch.length))
        if move[0] > 2 * error[0]:
            what = f"the bound still rises by {move[0] * each:.2g} nats per {per} {noun}s"
        elif len(move) > 1 and np.abs(move[1:]).max() > MOVE:
            what = f"the posterior still moves by {np.abs(move[1:]).max() * each:.2g} sd per {per} {noun}s"
        else:
            what = f"the {noun}s are still too noisy"
        return f"not converged: {what}; {remedy}"


def moves(batches: Leaf, unit: Leaf) -> tuple[Array, Array]:
    """How much the newer half of the batches is above the older one, in units, and the standard errors of that."""
    older, newer = jnp.split(jnp.asarray(batches) * unit, 2)
    within = jnp.sum((older - older.mean(0)) ** 2, 0) + jnp.sum((newer - newer.mean(0)) ** 2, 0)
    variance = within / max(len(batches) - 2, 1)
    return newer.mean(0) - older.mean(0), jnp.sqrt(variance * 2.0 / len(older))


def _units(q: GlobalGaussian, like: Leaf) -> Array:
    """One over what a change is measured in: nats, posterior standard deviations, factors of e."""
    one = jnp.ones(1)
    if like.size == 1:
        return one
    return jnp.concatenate([one, 1.0 / q.sd, jnp.ones_like(q.sd)])


class SettlingConvergence(Convergence):
    """How a run of SFVI or SFVI-Avg is judged.

    Attributes:
        settling: the rule.
        unit: the name of one exchange.
        per: the number of exchanges over which the summary gives the increase of the bound.
    """

    settling: Settling
    unit: str = eqx.field(static=True)
    per: int = eqx.field(static=True)

    def bound(self, server: ServerState, posterior: PyTree) -> float:
        return float(server.method.bound)

    def settled(self, method: PyTree) -> bool:
        return bool(method.watch.settled)

    def describe(self, posterior: PyTree, method: PyTree) -> str:
        return self.settling.remark(method.watch, posterior.q, self.unit, self.per)


def block_of(rounds: int) -> int:
    """How many rounds of a run of this length run as one program."""
    return max(1, min(1000, rounds // 10))
