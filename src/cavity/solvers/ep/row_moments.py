"""The factor of one row by moment matching, from the cavity distribution of the values f on which the row depends.

For f ~ N(m, V) in the cavity, the tilted distribution of f is t(f) proportional to N(f; m, V) p(f)^alpha. Its refit is
the Gaussian factor g(f) = exp(shift . f - f' T f / 2) for which N(f; m, V) g(f)^alpha has the moments m' and V' of t
(PVI, Algorithm 2: match moments, divide by the cavity, take the root). By Stein's identity every density has
E[grad log t] = 0 and Cov(f, grad log t) = -I. For t and for its Gaussian match, the cavity's part of grad log is the
same, -V^-1 (f - m), and has the same moments; the difference of the two pairs of equations is

    E_t[grad log p] = shift - T m',         Cov_t(f, grad log p) = -V' T.

So the refit is the linear regression of the slope grad log p on f under the tilted distribution:

    T = -V'^-1 Cov_t(f, grad log p),        shift = E_t[grad log p] + T m'

This needs neither the division by the cavity nor the root 1 / alpha, so no digits cancel. At alpha = 0, where t
is the cavity, these are Bonnet's and Price's theorems, the fixed-point update of VI (property 4.1). A Gaussian
likelihood has a linear slope, and its factor is exact for any nodes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from cavity.distributions.quadrature import normal_nodes
from cavity.solvers.ep.row_views import RowFactors

# standard deviations of the cavity, on either side of its mean and of the point to which the likelihood moves it
REACH = 8.0
DROP = 32.0  # nats below the peak, where a density is zero in double precision
SCAN_NODES = 48  # nodes of each search for the region of the tilted density
SUM_NODES = 128  # of the sum
NUM_LOOKS = 3  # searches; each narrows the window by a factor of up to 24
NUM_HALVINGS = 24  # bisections of the window, to find where a likelihood bends
SHARPEST = 1e-6  # of the window: the smallest width of the bend
NUM_REFINEMENTS = 2  # updates of the centre and scale of nodes in several dimensions

LogLikelihood = Callable[[Float[Array, "n s k"]], Float[Array, "n s"]]


def refit(
    log_likelihood: LogLikelihood, mean: Float[Array, "n k"], root: Float[Array, "n k k"], alpha: float | Array
) -> RowFactors:
    """Each row's new factor, for f ~ N(mean, root root') in its cavity; NaN where there are no moments."""
    places = _scanned if mean.shape[-1] == 1 else _refined
    u, weight = places(log_likelihood, mean, root, alpha)
    return _regressed(log_likelihood, mean, root, u, weight)


def _regressed(
    log_likelihood: LogLikelihood,
    mean: Float[Array, "n k"],
    root: Float[Array, "n k k"],
    u: Float[Array, "n s k"],
    weight: Float[Array, "n s"],
) -> RowFactors:
    """The regression of the slope on f = mean + root u; in u, which keeps its digits where f hardly varies."""
    slopes = _slopes(log_likelihood, _seen(mean, root, u))
    slopes = jnp.where(weight[..., None] > 0, slopes, 0.0)  # it may be infinite at a node of weight zero
    centre, slope = (jnp.einsum("ns,nsk->nk", weight, part) for part in (u, slopes))
    du, dslope = u - centre[:, None], slopes - slope[:, None]
    spread = jnp.einsum("ns,nsk,nsl->nkl", weight, du, du)
    cross = jnp.einsum("ns,nsk,nsl->nkl", weight, du, dslope)
    precision = -_solve(jnp.swapaxes(root, -1, -2), _solve(spread, cross))
    precision = 0.5 * (precision + jnp.swapaxes(precision, -1, -2))
    tilted_mean = mean + jnp.einsum("nkl,nl->nk", root, centre)
    return RowFactors(slope + jnp.einsum("nkl,nl->nk", precision, tilted_mean), precision)


def _seen(mean: Float[Array, "n k"], root: Float[Array, "n k k"], u: Float[Array, "n s k"]) -> Float[Array, "n s k"]:
    return mean[:, None] + jnp.einsum("nkl,nsl->nsk", root, u)


def _slopes(log_likelihood: LogLikelihood, f: Float[Array, "n s k"]) -> Float[Array, "n s k"]:
    return jax.grad(lambda f: jnp.sum(log_likelihood(f)))(f)


def _solve(matrix: Float[Array, "n k k"], right: Float[Array, "n k k"]) -> Float[Array, "n k k"]:
    return right / matrix if matrix.shape[-1] == 1 else jnp.linalg.solve(matrix, right)


def _scanned(
    log_likelihood: LogLikelihood, mean: Float[Array, "n k"], root: Float[Array, "n k k"], alpha: float | Array
) -> tuple[Float[Array, "n s k"], Float[Array, "n s"]]:
    """In one dimension: nodes where the tilted density is, whose sums are exact to rounding.

    For log-concave likelihoods, whose slope decreases, the peak lies between the cavity's mean and the point to which
    the slope at the mean would move it. So the first window contains all of the density. Each search keeps the nodes
    within `DROP` nats of the highest one, and one node on either side.
    """
    pull = alpha * root[:, 0, 0] * _slopes(log_likelihood, mean[:, None])[:, 0, 0]

    def log_tilted(u: Float[Array, "n s"]) -> Float[Array, "n s"]:
        return _or_nothing(alpha * log_likelihood(_seen(mean, root, u[..., None])) - 0.5 * u**2)

    def look(_: int | Array, window: tuple[Array, Array]) -> tuple[Array, Array]:
        u = _spaced(*window, SCAN_NODES)
        values = log_tilted(u)
        near = values >= jnp.max(values, axis=1, keepdims=True) - DROP
        first = jnp.maximum(jnp.argmax(near, axis=1) - 1, 0)
        last = jnp.minimum(SCAN_NODES - jnp.argmax(near[:, ::-1], axis=1), SCAN_NODES - 1)
        ends = [jnp.take_along_axis(u, place[:, None], axis=1)[:, 0] for place in (first, last)]
        return ends[0], ends[1]

    window = jnp.minimum(pull, 0.0) - REACH, jnp.maximum(pull, 0.0) + REACH
    low, high = jax.lax.fori_loop(0, NUM_LOOKS, look, window)
    # u = centre + bend sinh(t): close together where the likelihood bends, however wide the rest of the window is
    centre, bend = _bend(lambda u: _slopes(log_likelihood, _seen(mean, root, u[..., None]))[..., 0], low, high)
    t = _spaced(jnp.arcsinh((low - centre) / bend), jnp.arcsinh((high - centre) / bend), SUM_NODES)
    u = centre[:, None] + bend[:, None] * jnp.sinh(t)
    return u[..., None], jax.nn.softmax(log_tilted(u) + jnp.log(jnp.cosh(t)), axis=1)


def _bend(
    slope: Callable[[Float[Array, "n s"]], Float[Array, "n s"]], low: Float[Array, " n"], high: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """The point of a window where the slope of the log likelihood is halfway, and half the width of its middle half.

    Halfway is between the values at the ends of the window.

    By bisection, since the slope of a log-concave likelihood decreases monotonically. If it does not, the width is that
    of the window, and nodes are nearly equidistant.
    """
    way = slope(_spaced(low, high, SCAN_NODES))
    net = way[:, -1] - way[:, 0]
    is_falling = jnp.sum(jnp.abs(jnp.diff(way, axis=1)), axis=1) <= 1.001 * jnp.abs(net)
    share = jnp.array([0.25, 0.5, 0.75], low.dtype)

    def halve(_: int | Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = ends
        middle = 0.5 * (left + right)
        beyond = jnp.abs(slope(middle) - way[:, :1]) > share * jnp.abs(net)[:, None]
        return jnp.where(beyond, left, middle), jnp.where(beyond, middle, right)

    ends = jnp.tile(low[:, None], 3), jnp.tile(high[:, None], 3)
    left, right = jax.lax.fori_loop(0, NUM_HALVINGS, halve, ends)
    quarter, half, three_quarters = jnp.moveaxis(0.5 * (left + right), 1, 0)
    room = jnp.maximum(0.5 * (three_quarters - quarter), SHARPEST * (high - low))
    return half, jnp.where(is_falling, room, high - low)


def _spaced(low: Float[Array, " n"], high: Float[Array, " n"], num: int) -> Float[Array, "n s"]:
    return low[:, None] + (high - low)[:, None] * jnp.asarray(np.linspace(0.0, 1.0, num), low.dtype)


def _refined(
    log_likelihood: LogLikelihood, mean: Float[Array, "n k"], root: Float[Array, "n k k"], alpha: float | Array
) -> tuple[Float[Array, "n s k"], Float[Array, "n s"]]:
    """In several dimensions: the nodes of a Gaussian, moved to the estimated tilted moments and weighted again.

    They are Gauss-Hermite grids in two and three dimensions, fixed draws (Monte Carlo) in more.
    """
    nodes, weights = (jnp.asarray(part, mean.dtype) for part in normal_nodes(mean.shape[-1]))
    centre, spread = jnp.zeros_like(mean), jnp.broadcast_to(jnp.eye(mean.shape[-1], dtype=mean.dtype), root.shape)

    def weighed(centre: Float[Array, "n k"], spread: Float[Array, "n k k"]) -> tuple[Array, Array]:
        u = centre[:, None] + jnp.einsum("nkl,sl->nsk", spread, nodes)
        # the density of u in the cavity over that of the node; the determinant is the same for all nodes of a row
        correction = 0.5 * (jnp.sum(nodes**2, axis=-1) - jnp.sum(u**2, axis=-1))
        values = alpha * log_likelihood(_seen(mean, root, u)) + correction + jnp.log(weights)
        return u, jax.nn.softmax(_or_nothing(values), axis=1)

    for _ in range(NUM_REFINEMENTS):
        u, weight = weighed(centre, spread)
        centre = jnp.einsum("ns,nsk->nk", weight, u)
        du = u - centre[:, None]
        spread = jnp.linalg.cholesky(jnp.einsum("ns,nsk,nsl->nkl", weight, du, du))
    return weighed(centre, spread)


def _or_nothing(log_density: Float[Array, "n s"]) -> Float[Array, "n s"]:
    """The log density, -infinity where it overflows; a row with no finite value has no moments."""
    return jnp.asarray(jnp.where(jnp.isnan(log_density), -jnp.inf, log_density))
