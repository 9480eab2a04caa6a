"""Points and weights by which the latents of a unit are integrated out, and orders among which one is chosen.

A rule gives E[g(x)] for x ~ N(0, I) as the sum of w_k g(x_k), where g is nearly constant if a unit is nearly Gaussian
(`integration`). Every rule is exact for a constant g.

| latents | order | rule |
| --- | --- | --- |
| any | 1 | Laplace's method: the mode alone |
| 1 or 2 | up to 21 | Gauss-Hermite nodes per latent (Pinheiro and Bates, 1995) |
| 1 or 2 | above | trapezoidal rule per latent in t, with x = sinh(c t) / c |
| 3 or more | - | quasi-Monte Carlo points, the same for all units at all times |

Units that are far from Gaussian (all of a patient's outcomes are 0, and the random effects have an sd of 4) have a tail
that is several times wider than the curvature at the mode says, and a steep side. There the trapezoidal rule, whose
nodes are close near the mode and reach far, is more exact than Gauss-Hermite: with an sd of 4 the largest error of a
unit is 2e-5 nats with 25 nodes and 4e-8 with 49, and 1e-5 with 43 Gauss-Hermite nodes.

**Automatic order.** Each client takes the smallest order of a ladder at which the next one changes the log marginal
likelihood of none of its units by more than `TOLERANCE` nats, at and near the mean of the posterior that it received.
So the order may differ between clients and rounds, and the result does by the tolerance: N units shift a posterior by
at most about sqrt(N) times it, in sds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from cavity.core.types import Leaf
from cavity.distributions.quadrature import hermite_grid, product_grid, quasi_normal_points

LADDERS = {1: (7, 13, 25, 49, 97), 2: (5, 9, 15, 25)}  # nodes per latent
GROUPS = {1: 7, 2: 25}  # points that are evaluated together, which divide the numbers of points nearly
MOST_AT_ONCE = 32  # where points have three or more coordinates
DEFAULT_ORDERS = {1: 25, 2: 15}  # where no posterior is known at which orders could be compared
DEFAULT_POINTS = 256  # for three or more latents
MOST_LATENTS = 8  # per unit; with more, importance weights of a few hundred points become too uneven
MOST_HERMITE = 21
TOLERANCE = 1e-5  # nats per unit
ROUNDING = 50  # machine epsilons by which a log likelihood is uncertain, relative to its size
STRETCH = 0.4  # c of the trapezoidal rule


class Rule(eqx.Module):
    """How the latents of a unit are integrated out.

    Attributes:
        order: nodes per latent for one or two latents (1 is Laplace's method), the number of points for more. None
            chooses the order by a check, or is the default number of points.
    """

    order: int | None = eqx.field(static=True, default=None)

    def points(self, num_local: int) -> tuple[Float[Array, "k l"], Float[Array, " k"]]:
        """The points, and the logs of their weights times exp(|x|^2 / 2)."""
        nodes, log_weights = _points(num_local, self.order_for(num_local))
        return jnp.asarray(nodes), jnp.asarray(log_weights)

    @property
    def is_laplace(self) -> bool:
        """Whether the mode is the only point."""
        return self.order == 1

    def is_automatic(self, num_local: int) -> bool:
        """Whether the order is chosen by a check."""
        return self.order is None and num_local in LADDERS

    def orders(self, num_local: int) -> tuple[int, ...]:
        """The orders among which one is chosen."""
        return LADDERS[num_local] if self.is_automatic(num_local) else (self.order_for(num_local),)

    def order_for(self, num_local: int) -> int:
        """The order for so many latents, where no other is chosen."""
        if self.order is not None:
            return self.order
        return DEFAULT_ORDERS.get(num_local, DEFAULT_POINTS)

    def default_level(self, num_local: int) -> int:
        """The place of `order_for` among the orders."""
        return self.orders(num_local).index(self.order_for(num_local))

    def cost(self, num_local: int) -> float:
        """About how many densities of a row its log marginal likelihood takes, with the search for the mode."""
        return 15.0 * (1 + num_local) * (num_local > 0) + len(_points(num_local, self.order_for(num_local))[0])

    def finer(self, num_local: int) -> Rule:
        """A rule with about twice as many nodes per latent, or four times as many points."""
        order = self.order_for(num_local)
        return Rule(2 * order + 1 if num_local in LADDERS else 4 * order)

    def describe(self, num_local: int) -> str:
        """The rule in words, for a summary."""
        if num_local == 0:
            return "there are no local latents"
        what = f"{num_local} local latent{'' if num_local == 1 else 's'} per unit, integrated out by "
        each = " each" if num_local > 1 else ""
        if self.is_automatic(num_local):
            orders = self.orders(num_local)
            return (
                what
                + f"adaptive quadrature with {orders[0]} to {orders[-1]} nodes{each}, as a check at each client says"
            )
        order = self.order_for(num_local)
        if self.is_laplace:
            return what + "Laplace's method"
        if num_local not in LADDERS:
            return what + f"Laplace's method with importance correction ({order} points)"
        name = "adaptive Gauss-Hermite quadrature" if order <= MOST_HERMITE else "an adaptive trapezoidal rule"
        return what + f"{name} with {order} nodes{each}"


@dataclass(frozen=True)
class Tables:
    """The points of several orders, filled up to the same number with points of weight 0.

    Attributes:
        points: by order.
        log_weights: times exp(|x|^2 / 2), by order.
        sizes: the number of points, by order.
        group: the number of points of a group, of which some may have the weight 0.
    """

    points: Float[np.ndarray, "o k l"]
    log_weights: Float[np.ndarray, "o k"]
    sizes: Int[np.ndarray, " o"]
    group: int

    @property
    def counts(self) -> Int[np.ndarray, " o"]:
        """The number of groups, by order."""
        return -(-self.sizes // self.group)


class GroupedPoints(NamedTuple):
    """The points of one order in groups, of which the first `count` are needed.

    Attributes:
        points: by group.
        log_weights: times exp(|x|^2 / 2), by group.
        count: of groups.
    """

    points: Float[Array, "i k l"]
    log_weights: Float[Array, "i k"]
    count: Int[Array, ""]

    @classmethod
    def at(
        cls, orders: tuple[int, ...], num_local: int, level: Int[Array, ""] | int, dtype: DTypeLike
    ) -> GroupedPoints:
        """Those of the order at this place."""
        every = tables(num_local, orders)
        points, log_weights = (jnp.asarray(part, dtype)[level] for part in (every.points, every.log_weights))
        by_group = (-1, every.group)
        return cls(
            points.reshape(*by_group, num_local), log_weights.reshape(by_group), jnp.asarray(every.counts)[level]
        )


def first_agreeing(
    value: Callable[[Int[Array, ""]], Float[Array, " u"]],
    num_orders: int,
    present: Bool[Array, " u"],
    tolerance: Leaf | float = TOLERANCE,
) -> Int[Array, ""]:
    """The place of the first order that the next one changes by less than the tolerance in every unit.

    Args:
        value: the log marginal likelihood of each unit by the order at a place.
        num_orders: their number; where no two agree, the last one is taken.
        present: units that count.
        tolerance: in nats.
    """

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, before, _ = state
        here = value(i)
        return i + 1, here, (i > 0) & jnp.all(~present | agree(before, here, tolerance))

    like = jax.eval_shape(value, jnp.asarray(0))
    first = (jnp.asarray(0), jnp.full(like.shape, jnp.nan, like.dtype), jnp.asarray(False))
    count, _, found = jax.lax.while_loop(lambda state: ~state[2] & (state[0] < num_orders), step, first)
    return jnp.where(found, count - 2, num_orders - 1)


def agree(
    here: Float[Array, " u"], finer: Float[Array, " u"], tolerance: Leaf | float = TOLERANCE
) -> Bool[Array, " u"]:
    """Whether two log marginal likelihoods are the same up to the tolerance and rounding errors."""
    rounding = ROUNDING * jnp.finfo(finer.dtype).eps * jnp.abs(finer)
    return jnp.abs(finer - here) < jnp.maximum(tolerance, rounding)


@cache
def tables(num_local: int, orders: tuple[int, ...]) -> Tables:
    """The points of several orders for so many latents."""
    each = [_points(num_local, order) for order in orders]
    group = min(GROUPS.get(num_local, MOST_AT_ONCE), max(len(points) for points, _ in each))
    sizes = np.array([len(points) for points, _ in each], np.int32)
    length = group * -(-int(sizes.max()) // group)
    points = [np.concatenate([part, np.zeros((length - len(part), num_local))]) for part, _ in each]
    weights = [np.concatenate([part, np.full(length - len(part), -np.inf)]) for _, part in each]
    return Tables(np.stack(points), np.stack(weights), sizes, group)


@cache
def _points(num_local: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    if order == 1:
        return np.zeros((1, num_local)), np.zeros(1)
    if num_local not in LADDERS:
        nodes = quasi_normal_points(num_local, order)
        weights = np.full(len(nodes), 1.0 / len(nodes))
    elif order <= MOST_HERMITE:
        nodes, weights = hermite_grid(num_local, order)
    else:
        nodes, weights = product_grid(*_trapezoid(order), num_local)
    return nodes, np.log(weights) + 0.5 * np.sum(nodes**2, axis=1)


def _trapezoid(order: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Nodes and weights of the trapezoidal rule in t for a standard normal, with x = sinh(c t) / c."""
    reach = min(14.0, 4.0 + order / 4)  # of x
    t = np.linspace(-1.0, 1.0, order) * np.arcsinh(STRETCH * reach) / STRETCH
    x = np.sinh(STRETCH * t) / STRETCH
    weights = np.cosh(STRETCH * t) * np.exp(-0.5 * x**2)
    return x, weights / weights.sum()
