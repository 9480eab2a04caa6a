"""The families, each by the same contract, and what is special to one of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity import ledger
from cavity.distributions import (
    Beta,
    BlockProduct,
    DiagonalGaussian,
    Dirichlet,
    FullGaussian,
    Gamma,
    IsotropicGaussian,
    PointMass,
)
from cavity.distributions.natural import inner, product
from cavity.distributions.trees import diagonal_from_pytrees, entry_names, full_from_pytree
from cavity.errors import ImproperError
from tests.contracts import distribution as contract
from tests.marks import thorough
from tests.scenarios import gaussian_kl


def random_member(family, seed):
    """A proper member in two dimensions (or with two entries), away from symmetry."""
    rng = np.random.default_rng(seed)
    mean, scale = rng.normal(size=2), 0.5 + rng.random(2)
    positive = 1.5 + 3 * rng.random(2)
    if family is FullGaussian:
        root = np.tril(rng.normal(size=(2, 2)), -1) + np.diag(scale)
        return FullGaussian.from_moments(mean, root @ root.T)
    if family is DiagonalGaussian:
        return DiagonalGaussian.from_moments(mean, scale**2)
    if family is IsotropicGaussian:
        return IsotropicGaussian.from_moments(mean, np.asarray(scale[0] ** 2))
    if family is Gamma:
        return Gamma.from_shape_rate(positive, 0.5 + rng.random(2))
    if family is Beta:
        return Beta.from_concentrations(positive, 1.2 + rng.random(2))
    return Dirichlet.from_concentration(1.2 + 3 * rng.random(3))


def sigmoid(u):
    return 1 / (1 + np.exp(-u))


def quadrature(family):
    """Points of the support and weights, by the trapezoid rule on a line that is mapped to it."""
    u = np.linspace(-30, 30, 601)
    du = u[1] - u[0]
    if family in (FullGaussian, DiagonalGaussian, IsotropicGaussian):
        axis, jacobian = u / 2, np.full(len(u), 0.5)
    elif family is Gamma:
        axis, jacobian = np.exp(u / 2), np.exp(u / 2) / 2
    else:
        axis, jacobian = sigmoid(u), sigmoid(u) * sigmoid(-u)
    pairs = np.stack([a.ravel() for a in np.meshgrid(axis, axis, indexing="ij")], -1)
    weight = np.outer(jacobian, jacobian).ravel() * du**2
    if family is Dirichlet:
        # (a, (1 - a) b, rest): the density is over the first two entries, and the map's Jacobian is 1 - a
        (a, b), rest_a, rest_b = pairs.T, np.repeat(sigmoid(-u), len(u)), np.tile(sigmoid(-u), len(u))
        return np.stack([a, rest_a * b, rest_a * rest_b], -1), weight * rest_a
    if family is Beta:
        # log(1 - x) needs x < 1 in floating point
        keep = (pairs < 1).all(axis=1)
        return pairs[keep], weight[keep]
    return pairs, weight


GAUSSIANS = [FullGaussian, DiagonalGaussian, IsotropicGaussian]
FAMILIES = [*GAUSSIANS, Gamma, Beta, Dirichlet]
family_of = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
gaussian_of = pytest.mark.parametrize("family", GAUSSIANS, ids=lambda family: family.__name__)


@family_of
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_algebra_is_a_group(family, seed):
    contract.check_group(*(random_member(family, seed + i) for i in range(3)))


@family_of
def test_algebra_is_that_of_densities(family):
    contract.check_algebra_of_densities(random_member(family, 0), random_member(family, 1))


@family_of
def test_numpy_leaves_stay_numpy(family):
    contract.check_keeps_numpy(random_member(family, 0))


@family_of
def test_log_prob_is_normalised(family):
    contract.check_normalised(random_member(family, 2), *quadrature(family))


@thorough
@family_of
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_mean_parameters_are_the_gradient_of_the_log_partition(family, seed):
    contract.check_mean_parameters(random_member(family, seed))


@family_of
def test_from_moments(family):
    q = random_member(family, 3)
    spread = {FullGaussian: lambda: q.covariance, IsotropicGaussian: lambda: q.variance[0]}.get(
        family, lambda: q.variance
    )
    contract.check_from_moments(q, spread())


@thorough
@family_of
def test_samples(family):
    contract.check_samples(random_member(family, 4))


@family_of
def test_kl(family):
    q, p = random_member(family, 0), random_member(family, 1)
    contract.check_kl(q, p)
    contract.check_entropy_and_cross(q, p)


@family_of
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_kl_is_not_negative(family, seed):
    q, p = random_member(family, seed), random_member(family, seed + 1)
    assert q.kl(p) >= 0


@family_of
@pytest.mark.parametrize("power", [1.0, 300.0])
def test_kl_does_not_cancel_near_equality(family, power):
    # a posterior of many rows is a member to a high power
    contract.check_kl_near_equality(random_member(family, 5) ** power, random_member(family, 6))


@thorough
@family_of
def test_compiled_and_improper(family):
    q = random_member(family, 8)
    contract.check_compiled(q, random_member(family, 9), q / (q * q * q))


@family_of
def test_one_entry_alone_makes_a_member_improper(family):
    q = jax.tree.map(np.array, random_member(family, 11))
    spoiled = {
        FullGaussian: lambda: FullGaussian(q.precision_mean, np.diag([1.0, -0.1])),
        DiagonalGaussian: lambda: DiagonalGaussian(q.precision_mean, np.array([1.0, 0.0])),
        IsotropicGaussian: lambda: IsotropicGaussian(q.precision_mean, np.array(-1.0)),
        Gamma: lambda: Gamma(q.shape_less_one, np.array([1.0, 0.0])),
        Beta: lambda: Beta(np.array([0.0, -1.0]), q.failures),
        Dirichlet: lambda: Dirichlet(np.array([1.0, 1.0, -1.5])),
    }[family]()
    assert bool(q.is_proper)
    assert not bool(spoiled.is_proper)
    assert not bool(jax.tree.map(lambda leaf: leaf * np.nan, q).is_proper)
    assert not bool(jax.tree.map(lambda leaf: leaf + np.inf, q).is_proper)


@family_of
def test_product_of_many(family):
    members = [ledger.to_host(random_member(family, seed)) for seed in range(4)]
    a, b, c, d = members
    contract.assert_same(product(members), a * b * c * d)
    contract.assert_same(product([a]), a)


@gaussian_of
def test_moments_of_a_gaussian(family):
    q = random_member(family, 12)
    np.testing.assert_allclose(q.covariance, np.linalg.inv(q.precision_matrix), rtol=1e-12)
    np.testing.assert_allclose(q.mean, q.covariance @ q.precision_mean, rtol=1e-12)
    np.testing.assert_allclose(q.variance, np.diag(q.covariance), rtol=1e-12)
    assert q.dimension == 2
    moved = q.with_mean(jnp.array([3.0, -1.0]))
    np.testing.assert_allclose(moved.mean, [3.0, -1.0], rtol=1e-12)
    contract.assert_same(moved.precision_matrix, q.precision_matrix)


@gaussian_of
def test_reparameterise_has_the_covariance(family):
    q = random_member(family, 13)
    root = q.reparameterise(jnp.eye(2)) - q.mean
    np.testing.assert_allclose(root.T @ root, q.covariance, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(q.reparameterise(jnp.zeros((4, 3, 2))), jnp.broadcast_to(q.mean, (4, 3, 2)))


@gaussian_of
def test_predictors_of_rows(family):
    """f_k = X_k theta_k, against the covariance of the stacked map."""
    q = random_member(family, 14)
    rng = np.random.default_rng(0)
    designs = (jnp.asarray(rng.normal(size=(5, 1))), jnp.asarray(rng.normal(size=(5, 1))))
    mean, covariance = q.map_moments(designs)
    for n in range(5):
        stacked = np.diag([float(designs[0][n, 0]), float(designs[1][n, 0])])
        np.testing.assert_allclose(mean[n], stacked @ q.mean, rtol=1e-12)
        np.testing.assert_allclose(covariance[n], stacked @ q.covariance @ stacked.T, rtol=1e-12)
    whole = jnp.asarray(rng.normal(size=(5, 2)))
    mean, covariance = q.map_moments((whole,))
    np.testing.assert_allclose(mean[:, 0], whole @ q.mean, rtol=1e-12)
    np.testing.assert_allclose(covariance[:, 0, 0], np.diag(whole @ q.covariance @ whole.T), rtol=1e-12)


@gaussian_of
def test_site_is_the_derivative_in_mean_parameters(family):
    """Eq. (3): d/dmu E_q[-loss] = C^-1 d/deta E_q[-loss], with the Fisher information C = d^2 A / deta^2."""
    q = random_member(family, 15)
    rng = np.random.default_rng(1)
    g, root = rng.normal(size=2), rng.normal(size=(2, 2))
    h = root @ root.T

    def expected_loss(q):
        return g @ (q.mean - centre) + 0.5 * (jnp.sum(h * q.covariance) + (q.mean - centre) @ h @ (q.mean - centre))

    centre = q.mean  # so that E_q[gradient] is g, and E_q[hessian] is h
    site = q.site(jnp.asarray(g), jnp.asarray(h))
    # C t = -d/deta E_q[loss], without inverting C (which is singular in the matrix's redundant entries)
    gradient = jax.grad(lambda q: inner(site, q.mean_parameters))(q)
    contract.assert_same(gradient, jax.grad(lambda q: -expected_loss(q))(q), rtol=1e-10)
    if family is not FullGaussian:
        contract.assert_same(q.site(jnp.asarray(g), jnp.diagonal(jnp.asarray(h))), site)


@pytest.mark.parametrize("left", GAUSSIANS)
@pytest.mark.parametrize("right", GAUSSIANS)
def test_kl_between_gaussian_families(left, right):
    q, p = random_member(left, 16), random_member(right, 17)
    expected = gaussian_kl(*(np.asarray(a) for a in (q.mean, q.covariance, p.mean, p.covariance)))
    np.testing.assert_allclose(q.kl(p), expected, rtol=1e-10)


@pytest.mark.parametrize("family", GAUSSIANS, ids=lambda family: family.__name__)
@pytest.mark.parametrize("other", GAUSSIANS, ids=lambda family: family.__name__)
def test_moments_of_another_gaussian_are_the_closest_member(family, other):
    """KL(other : member) is at its minimum: its derivative in the member's natural parameters vanishes."""
    target = random_member(other, 18)
    member = random_member(family, 19).with_moments_of(target)
    assert isinstance(member, family)
    np.testing.assert_allclose(member.mean, target.mean, rtol=1e-9)
    slope = jax.grad(lambda q: target.kl(q))(jax.tree.map(jnp.asarray, member))
    for leaf in jax.tree.leaves(slope):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-9)


def test_usual_parameters_of_conjugate_families():
    gamma = Gamma.from_shape_rate(np.array(3.0), np.array(2.0))
    np.testing.assert_allclose([gamma.mean, gamma.variance, gamma.shape], [1.5, 0.75, 3.0])
    # density at 1: 2^3 / Gamma(3) e^-2
    np.testing.assert_allclose(gamma.log_prob(jnp.array(1.0)), np.log(4.0) - 2.0)
    beta = Beta.from_concentrations(np.array(2.0), np.array(3.0))
    np.testing.assert_allclose([beta.mean, beta.variance], [0.4, 0.04])
    np.testing.assert_allclose(beta.log_prob(jnp.array(0.5)), np.log(12 * 0.5 * 0.25))
    dirichlet = Dirichlet.from_concentration(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(dirichlet.mean, np.array([1, 2, 3]) / 6)
    np.testing.assert_allclose(dirichlet.variance, np.array([5, 8, 9]) / 36 / 7)
    # density: Gamma(6) / (Gamma(1) Gamma(2) Gamma(3)) x_2 x_3^2
    np.testing.assert_allclose(dirichlet.log_prob(jnp.array([0.2, 0.3, 0.5])), np.log(60 * 0.3 * 0.25))


def block_member(seed):
    effect, rate = random_member(DiagonalGaussian, seed), random_member(Gamma, seed)
    return BlockProduct({"rate": rate, "effect": effect})


@thorough
def test_blocks():
    p, q, r = block_member(0), block_member(1), block_member(2)
    contract.check_group(p, q, r)
    contract.check_algebra_of_densities(p, q)
    contract.check_keeps_numpy(q)
    contract.check_samples(q)
    contract.check_kl(q, p)
    contract.check_entropy_and_cross(q, p)
    contract.check_compiled(q, p, q / (q * q * q))
    np.testing.assert_allclose(q.kl(p), sum(q.blocks[name].kl(p.blocks[name]) for name in q.blocks), rtol=1e-12)
    contract.assert_same(product([ledger.to_host(member) for member in (p, q, r)]), p * q * r)
    with pytest.raises(KeyError, match="blocks differ"):
        q * BlockProduct({"rate": q.blocks["rate"]})


def test_one_improper_block_makes_the_product_improper():
    q = block_member(3)
    rate = q.blocks["rate"]
    spoiled = BlockProduct({"effect": q.blocks["effect"], "rate": rate / (rate * rate)})
    assert bool(q.is_proper)
    assert not bool(spoiled.is_proper)
    with pytest.raises(ImproperError):
        spoiled.sample(jax.random.key(0))


def test_draws_do_not_depend_on_the_order_of_blocks():
    """Compiled code sees the blocks sorted by name, whatever order they were given in."""
    b, a = random_member(DiagonalGaussian, 0), random_member(DiagonalGaussian, 1)
    given, other = BlockProduct({"b": b, "a": a}), BlockProduct({"a": a, "b": b})
    key = jax.random.key(0)
    contract.assert_same(given.sample(key), other.sample(key))
    contract.assert_same(eqx.filter_jit(lambda q: q.sample(key))(given), given.sample(key))


def test_point_mass():
    p, q, r = (PointMass(np.random.default_rng(seed).normal(size=3)) for seed in range(3))
    contract.check_group(p, q, r)
    contract.check_keeps_numpy(q)
    tilted = PointMass(np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose((q * (tilted / q) ** 0.25).mean, q.location + 0.25 * (tilted.location - q.location))
    np.testing.assert_array_equal(q.sample(jax.random.key(0), (4,)), np.broadcast_to(q.location, (4, 3)))
    np.testing.assert_array_equal(PointMass.from_moments(q.mean, q.variance).location, q.location)
    np.testing.assert_array_equal(q.variance, np.zeros(3))
    for undefined in (lambda: q.log_prob(q.mean), lambda: q.kl(p)):
        with pytest.raises(ImproperError, match="compare `location`"):
            undefined()


def test_a_point_mass_at_nan_is_improper():
    point = PointMass(np.array([1.0, np.nan]))
    assert not bool(point.is_proper)
    with pytest.raises(ImproperError):
        point.sample(jax.random.key(0))
    with pytest.raises(eqx.EquinoxRuntimeError, match="improper"):
        jax.block_until_ready(eqx.filter_jit(lambda q: q.sample(jax.random.key(0)))(point))


def test_gaussians_over_pytrees():
    mean = {"w": jnp.arange(2.0), "b": 3.0}
    q, unravel = diagonal_from_pytrees(mean, {"w": jnp.array([1.0, 4.0]), "b": 9.0})
    assert entry_names(mean) == ("b", "w[0]", "w[1]")
    np.testing.assert_allclose(q.mean, [3.0, 0.0, 1.0])
    np.testing.assert_allclose(q.variance, [9.0, 1.0, 4.0])
    np.testing.assert_allclose(unravel(q.mean)["w"], mean["w"])
    covariance = jnp.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]])
    full, unravel = full_from_pytree(mean, covariance)
    np.testing.assert_allclose(full.covariance, covariance, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(unravel(full.mean)["b"], 3.0, rtol=1e-12)
    assert entry_names(1.0) == ("theta",)
    assert entry_names({"a": jnp.zeros((1, 2))}) == ("a[0,0]", "a[0,1]")
