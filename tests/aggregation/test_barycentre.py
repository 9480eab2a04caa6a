"""The 2-Wasserstein barycentre of Gaussians: closed forms, its equation, its optimality, and bad scales."""

import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cavity.aggregation import barycentre
from cavity.aggregation.barycentre import diagonal_barycentre, full_barycentre
from tests.compilations import compilations
from tests.contracts.faults import types_unchecked
from tests.marks import thorough

# J, d; of which 30 is beyond what LAPACK's divide and conquer leaves to the QR iteration
SIZES = [(2, 1), (7, 1), (2, 3), (7, 3), (2, 10), (7, 10), (3, 30)]


def problem(seed, num_gaussians, dimension):
    """Means, Cholesky factors of random covariances, and weights."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(num_gaussians, dimension, dimension + 2))
    widths = np.exp(rng.normal(size=(num_gaussians, dimension, 1)))
    roots = np.linalg.cholesky(widths * (noise @ noise.mT) * widths.mT)
    return rng.normal(size=(num_gaussians, dimension)), roots, rng.dirichlet(np.ones(num_gaussians))


def badly_scaled(seed, num_gaussians, dimension, decades=8):
    """Correlated coordinates in any order, of variances from 10^-decades to 10^decades, and not in the same shape."""
    rng = np.random.default_rng(seed)
    means, _, weights = problem(seed, num_gaussians, dimension)
    noise = rng.normal(size=(num_gaussians, dimension, 2 * dimension))
    scales = 10 ** rng.permutation(np.linspace(-decades / 2, decades / 2, dimension))
    scales = scales * np.exp(0.5 * rng.normal(size=(num_gaussians, dimension)))
    norms = np.linalg.norm(noise, axis=2, keepdims=True)
    return means, scales[:, :, None] * np.linalg.cholesky((noise / norms) @ (noise / norms).mT), weights


def square_root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(values) @ vectors.T


def next_covariance(covariance, roots, weights, root_of=square_root, inverse=np.linalg.inv):
    """The right-hand side of Alvarez-Esteban et al.'s iteration, as it is written."""
    half = root_of(covariance)
    total = sum(w * root_of(half @ (root @ root.T) @ half) for w, root in zip(weights, roots, strict=True))
    return inverse(half) @ total @ total @ inverse(half)


def total_distance(mean, covariance, means, roots, weights):
    """Sum of w_j W2(q, q_j)^2, with W2^2 = |m - m_j|^2 + tr(S + Sigma_j - 2 (S^1/2 Sigma_j S^1/2)^1/2)."""
    half = square_root(covariance)
    covariances = roots @ roots.mT
    bures = [np.trace(covariance + other - 2 * square_root(half @ other @ half)) for other in covariances]
    return np.sum(weights * (np.sum((means - mean) ** 2, axis=1) + bures))


def exact(matrix):
    return np.vectorize(decimal.Decimal, otypes=[object])(matrix)


def exact_inverse(matrix):
    """Gauss and Jordan, with the largest pivot of the column."""
    size = len(matrix)
    both = np.concatenate([matrix, exact(np.eye(size))], axis=1)
    for i in range(size):
        pivot = i + np.argmax(np.abs(both[i:, i]))
        both[[i, pivot]] = both[[pivot, i]]
        both[i] = both[i] / both[i, i]
        for k in set(range(size)) - {i}:
            both[k] = both[k] - both[k, i] * both[i]
    return both[:, size:]


def exact_square_root(matrix):
    """Denman and Beavers: Y -> M^1/2 and Z -> M^-1/2, which halves the exponent's distance at each step."""
    y, z = matrix, exact(np.eye(len(matrix)))
    for _ in range(200):
        last = y
        y, z = (y + exact_inverse(z)) / 2, (z + exact_inverse(y)) / 2
        if np.all(np.abs(y - last) <= decimal.Decimal(10) ** -60 * np.max(np.abs(y))):
            return y
    raise AssertionError("no square root in 200 steps")


@pytest.mark.parametrize(("num_gaussians", "dimension"), SIZES)
def test_the_equation_holds(num_gaussians, dimension):
    means, roots, weights = problem(0, num_gaussians, dimension)
    mean, root = full_barycentre(means, roots, weights)
    root = np.asarray(root)
    np.testing.assert_allclose(mean, weights @ means, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(root, np.tril(root))
    assert np.all(np.diag(root) > 0)
    covariance = root @ root.T
    fixed = next_covariance(covariance, roots, weights)
    np.testing.assert_allclose(fixed, covariance, rtol=0, atol=1e-10 * np.max(np.abs(covariance)))


def test_commuting_covariances_average_their_square_roots():
    """S = (sum_j w_j Sigma_j^1/2)^2 where all have the same eigenvectors."""
    rng = np.random.default_rng(1)
    vectors = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    scales, weights = np.exp(rng.normal(size=(5, 4))), rng.dirichlet(np.ones(5))
    roots = np.linalg.cholesky(np.stack([vectors * scale**2 @ vectors.T for scale in scales]))
    _, root = full_barycentre(np.zeros((5, 4)), roots, weights)
    np.testing.assert_allclose(root @ root.T, vectors * (weights @ scales) ** 2 @ vectors.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("copies", [1, 2])
def test_one_gaussian_or_two_equal_ones_are_their_own_barycentre(copies):
    for means, roots, _ in (problem(2, 1, 5), badly_scaled(2, 1, 5)):
        mean, root = full_barycentre(np.repeat(means, copies, 0), np.repeat(roots, copies, 0))
        np.testing.assert_allclose(mean, means[0], rtol=1e-14)
        lengths = np.linalg.norm(roots[0], axis=1, keepdims=True)
        np.testing.assert_allclose(root / lengths, roots[0] / lengths, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dimension", [1, 3, 10])
def test_nothing_nearby_is_closer(dimension):
    means, roots, weights = problem(3, 4, dimension)
    mean, root = (np.asarray(part) for part in full_barycentre(means, roots, weights))
    least = total_distance(mean, root @ root.T, means, roots, weights)
    rng = np.random.default_rng(4)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(10):
            other = root + size * rng.normal(size=root.shape) * np.linalg.norm(root, axis=1, keepdims=True)
            assert total_distance(mean, other @ other.T, means, roots, weights) > least
            moved = mean + size * rng.normal(size=dimension)
            assert total_distance(moved, root @ root.T, means, roots, weights) > least


def test_orthogonal_maps_and_shifts_carry_over():
    means, roots, weights = problem(5, 4, 6)
    rng = np.random.default_rng(5)
    turn, shift = np.linalg.qr(rng.normal(size=(6, 6)))[0], rng.normal(size=6)
    mean, root = full_barycentre(means, roots, weights)
    turned = np.linalg.cholesky(turn @ roots @ roots.mT @ turn.T)
    turned_mean, turned_root = full_barycentre(means @ turn.T + shift, turned, weights)
    np.testing.assert_allclose(turned_mean, turn @ mean + shift, rtol=1e-12, atol=1e-12)
    covariance = turn @ root @ root.T @ turn.T
    np.testing.assert_allclose(turned_root @ turned_root.T, covariance, rtol=0, atol=1e-10 * np.max(np.abs(covariance)))


def test_weights_are_shares_of_equal_gaussians():
    """Weights (1/4, 3/4) are four equal ones with one Gaussian three times; a weight of zero is not there."""
    means, roots, _ = problem(6, 3, 4)
    weighted = full_barycentre(means, roots, np.array([0.25, 0.75, 0.0]))
    repeated = full_barycentre(means[[0, 1, 1, 1]], roots[[0, 1, 1, 1]])
    for one, other in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


def test_diagonal_agrees_with_full():
    rng = np.random.default_rng(7)
    means, scales, weights = rng.normal(size=(5, 4)), np.exp(3 * rng.normal(size=(5, 4))), rng.dirichlet(np.ones(5))
    roots = scales[:, :, None] * np.eye(4)
    for given in (None, weights):
        mean, scale = diagonal_barycentre(means, scales, given)
        used = np.full(5, 0.2) if given is None else given
        np.testing.assert_allclose(mean, used @ means, rtol=1e-13)
        np.testing.assert_allclose(scale, used @ scales, rtol=1e-13)
        full_mean, root = full_barycentre(means, roots, given)
        np.testing.assert_allclose(full_mean, mean, rtol=1e-13)
        np.testing.assert_allclose(root, np.diag(scale), rtol=1e-12, atol=1e-12 * np.min(scale))


def needles(seed, num_gaussians, dimension):
    """Variances from 1e-6 to 1e6 along axes that have nothing to do with each other."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(num_gaussians, dimension, dimension)))[0]
    axes = axes * 10 ** rng.uniform(-3, 3, size=(num_gaussians, 1, dimension))
    return np.zeros((num_gaussians, dimension)), np.linalg.qr(axes.mT, mode="r").mT, np.full(num_gaussians, 0.25)


@pytest.mark.parametrize("make", [badly_scaled, needles])
def test_badly_scaled_covariances_solve_the_equation_in_each_coordinates_units(make):
    """The equation of covariances has a condition number of up to 1e32: its two sides are compared in 80 digits."""
    means, roots, weights = make(9, 4, 5)
    assert np.max(np.linalg.svd(roots)[1]) / np.min(np.linalg.svd(roots)[1]) > 1e5
    _, root = full_barycentre(means, roots, weights)
    with decimal.localcontext(prec=80):
        root = exact(root)
        covariance = root @ root.T
        fixed = next_covariance(covariance, exact(roots), exact(weights), exact_square_root, exact_inverse)
        error = (fixed - covariance).astype(float)
    scale = np.sqrt(np.diag(covariance).astype(float))
    assert np.max(np.abs(error) / np.outer(scale, scale)) < 1e-11


def test_badly_scaled_covariances_in_many_dimensions_do_not_depend_on_the_order_of_coordinates():
    means, roots, weights = badly_scaled(9, 3, 40)
    order = np.random.default_rng(9).permutation(40)
    upper = np.linalg.qr(roots[:, order].mT, mode="r")
    _, root = full_barycentre(means, roots, weights)
    _, other = full_barycentre(means[:, order], upper.mT, weights)
    assert np.all(np.isfinite(root))
    lengths = np.linalg.norm(root, axis=1)
    first, second = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (root[order], other))
    np.testing.assert_allclose(first @ first.T, second @ second.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.linalg.norm(other, axis=1), lengths[order], rtol=1e-11)


def test_a_coordinate_that_is_known_stays_known():
    """A variance of zero in all Gaussians is left out; one in some of them is averaged like any other."""
    _, roots, weights = problem(11, 3, 3)
    roots[:, 1] = 0.0
    roots[1, 2] = 0.0
    others = np.linalg.qr(roots[:, [0, 2]].mT, mode="r").mT
    _, root = full_barycentre(np.zeros((3, 3)), roots, weights)
    _, without = full_barycentre(np.zeros((3, 2)), others, weights)
    np.testing.assert_allclose(root[1], 0.0, atol=1e-15)
    np.testing.assert_allclose((root @ root.T)[np.ix_([0, 2], [0, 2])], without @ without.T, rtol=1e-10)


@pytest.mark.parametrize("dimension", [3, 30])
def test_single_precision(dimension):
    means, roots, weights = problem(12, 3, dimension)
    _, expected = full_barycentre(means, roots, weights)
    mean, root = full_barycentre(means.astype(np.float32), roots.astype(np.float32), weights)
    assert mean.dtype == root.dtype == np.float32
    np.testing.assert_allclose(root, expected, rtol=0, atol=1e-4 * np.max(expected))


def test_jit_and_vmap():
    batch = [problem(seed, 3, 4) for seed in range(5)]
    means, roots, weights = (np.stack(parts) for parts in zip(*batch, strict=True))
    alone = [full_barycentre(*one) for one in batch]
    for function in (jax.vmap(full_barycentre), jax.jit(jax.vmap(full_barycentre))):
        for one, many in zip(zip(*alone, strict=True), function(means, roots, weights), strict=True):
            np.testing.assert_allclose(many, np.stack(one), rtol=1e-9, atol=1e-10)
    scales = np.linalg.norm(roots, axis=3)
    mean, scale = jax.jit(jax.vmap(diagonal_barycentre))(means, scales, weights)
    np.testing.assert_allclose(mean, np.einsum("bj,bjd->bd", weights, means), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(scale, np.einsum("bj,bjd->bd", weights, scales), rtol=1e-12)


def test_new_values_do_not_compile_again():
    full_barycentre(*problem(13, 3, 4))
    with compilations() as same:
        full_barycentre(*problem(14, 3, 4))
    with compilations() as other:
        full_barycentre(*problem(14, 4, 7))
    assert (same == [], other == []) == (True, False)


@pytest.mark.parametrize("function", [diagonal_barycentre, full_barycentre])
@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5], [0.5, np.nan], [0.0, 0.0], [1.0, 3.0]])
def test_weights_that_are_none(function, weights):
    """An error where they can be looked at, and NaN where they cannot."""
    spread = np.ones((2, 1)) if function is diagonal_barycentre else np.ones((2, 1, 1))
    with pytest.raises(ValueError, match=r"non-negative and sum to 1; they are \["):
        function(np.zeros((2, 1)), spread, np.array(weights))
    for part in jax.jit(function)(np.zeros((2, 1)), spread, np.array(weights)):
        assert np.all(np.isnan(part))


@thorough
def test_nan_is_not_hidden(monkeypatch):
    means, roots, weights = problem(15, 3, 4)
    bad = roots.copy()
    bad[1, 2, 0] = np.nan
    assert np.all(np.isnan(full_barycentre(means, bad, weights)[1]))
    # nor does it spread to the others of a batch
    _, both = jax.vmap(full_barycentre, (None, 0, None))(means, np.stack([bad, roots]), weights)
    assert np.all(np.isnan(both[0]))
    np.testing.assert_allclose(both[1], full_barycentre(means, roots, weights)[1], rtol=1e-9, atol=1e-10)
    assert np.isnan(diagonal_barycentre(np.zeros((2, 1)), np.array([[1.0], [-1.0]]))[1])
    # what has not converged is no answer
    monkeypatch.setattr(barycentre, "MAX_STEPS", 2)
    with jax.disable_jit():  # the compiled program has the old number of steps
        mean, root = full_barycentre(means, roots, weights)
    assert np.all(np.isfinite(mean))
    assert np.all(np.isnan(root))


@pytest.mark.parametrize(
    ("means", "roots", "weights", "message"),
    [
        ((2, 3), (2, 3, 4), None, r"shapes are \(2, 3\), \(2, 3, 4\)"),
        ((2, 3), (3, 3, 3), None, "roots \\[j, d, d\\]"),
        ((3,), (3, 3), None, "means \\[j, d\\]"),
        ((0, 3), (0, 3, 3), None, "means \\[j, d\\]"),
        ((2, 3), (2, 3, 3), (3,), "each of 2 Gaussians"),
    ],
)
def test_wrong_shapes(means, roots, weights, message):
    arguments = [np.ones(means), np.ones(roots), None if weights is None else np.full(weights, 1 / 3)]
    with types_unchecked(), pytest.raises(ValueError, match=message):
        full_barycentre(*arguments)


@thorough
def test_ott_agrees():
    costs = pytest.importorskip("ott.geometry.costs")
    means, roots, weights = problem(16, 5, 4)
    points = jnp.stack([costs.mean_and_cov_to_x(m, r @ r.T, 4) for m, r in zip(means, roots, strict=True)])
    # as many steps as are asked for: its own rule ends after five (ott-jax 0.6), whatever the tolerance
    point, _ = costs.Bures(4, sqrtm_kw={"threshold": 1e-14}).barycenter(
        jnp.asarray(weights), points, min_iterations=500, max_iterations=500
    )
    their_mean, their_covariance = costs.x_to_means_and_covs(point, 4)
    mean, root = full_barycentre(means, roots, weights)
    np.testing.assert_allclose(mean, np.ravel(their_mean), rtol=1e-12)
    np.testing.assert_allclose(root @ root.T, np.reshape(their_covariance, (4, 4)), rtol=1e-10)
