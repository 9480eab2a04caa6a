"""Divergences between Gaussians other than KL: closed forms, limits, digits near equality, where they are infinite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BarycentricInterpolator

from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.distributions.mean_scale import MeanScale
from cavity.divergences import KL, FDivergence, FisherRao, Renyi, ReverseKL, WeightedKL
from cavity.divergences.renyi import curvature
from cavity.errors import ImproperError, UnsuitableError
from tests.contracts import divergence as contract
from tests.contracts.divergence import look
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

DIMENSION = 3
FAMILIES = [FullGaussian, DiagonalGaussian, IsotropicGaussian]
family_of = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
seeds = given(seed=st.integers(0, 2**20))
few = settings(max_examples=4, deadline=None, derandomize=True)


def member(family, mean, precision):
    """From a precision matrix of the family's shape."""
    if family is DiagonalGaussian:
        precision = np.diag(precision)
    if family is IsotropicGaussian:
        precision = precision[0, 0]
    return family(
        jnp.asarray(precision @ mean if np.ndim(precision) == 2 else precision * mean), jnp.asarray(precision)
    )


def random_pair(family, seed, lower=0.4, upper=2.0):
    """p, and q so that the eigenvalues of p's precision relative to q's lie between `lower` and `upper`."""
    rng = np.random.default_rng(seed)
    ratios = rng.uniform(lower, upper, DIMENSION)
    if family is FullGaussian:
        root = np.tril(rng.normal(size=(DIMENSION, DIMENSION)), -1) + np.diag(rng.uniform(0.5, 2, DIMENSION))
        turn = np.linalg.qr(rng.normal(size=(DIMENSION, DIMENSION)))[0]
        ours = root @ turn @ np.diag(1 / ratios) @ turn.T @ root.T
    else:
        root = np.diag(rng.uniform(0.5, 2, DIMENSION))
        if family is IsotropicGaussian:
            root, ratios = root[0, 0] * np.eye(DIMENSION), np.full(DIMENSION, ratios[0])
        ours = root @ np.diag(1 / ratios) @ root
    means = rng.normal(size=(2, DIMENSION))
    return member(family, means[0], ours), member(family, means[1], root @ root.T)


def log_partition(h, precision):
    return (
        0.5 * h @ np.linalg.solve(precision, h)
        - 0.5 * np.linalg.slogdet(2 * np.pi * precision)[1]
        + len(h) * np.log(2 * np.pi)
    )


def mixed_log_partition(q, p, weight, other):
    """A of q^weight p^other, which need not have proper parts."""
    h = weight * np.asarray(q.precision_mean) + other * np.asarray(p.precision_mean)
    return log_partition(h, weight * np.asarray(q.precision_matrix) + other * np.asarray(p.precision_matrix))


def renyi_by_log_partitions(alpha, q, p):
    """1 / (alpha (alpha - 1)) * log of the integral of q^alpha p^(1 - alpha)."""
    parts = alpha * mixed_log_partition(q, p, 1, 0) + (1 - alpha) * mixed_log_partition(q, p, 0, 1)
    return (mixed_log_partition(q, p, alpha, 1 - alpha) - parts) / (alpha * (alpha - 1))


def hellinger(u):
    return (jnp.sqrt(u) - 1.0) ** 2


DIVERGENCES = {
    "weighted KL": WeightedKL(0.4),
    "reverse KL": ReverseKL(),
    "Renyi 0": Renyi(0.0),
    "Renyi 0.3": Renyi(0.3),
    "Renyi 0.5": Renyi(0.5),
    "Renyi 1": Renyi(1.0),
    "Renyi 1.8": Renyi(1.8),
}
CASES = [(family, name) for family in FAMILIES for name in DIVERGENCES]
DIVERGENCES |= {"Fisher-Rao": FisherRao(), "Hellinger": FDivergence(hellinger)}
CASES += [(DiagonalGaussian, "Fisher-Rao"), (DiagonalGaussian, "Hellinger")]
case_of = pytest.mark.parametrize(
    ("family", "name"), CASES, ids=[f"{name}-{family.__name__}" for family, name in CASES]
)


@thorough
@case_of
@few
@seeds
def test_positive_with_its_derivatives(family, name, seed):
    """Also where all relative eigenvalues are equal, but not 1."""
    q, p = random_pair(family, seed)
    other, _ = random_pair(family, seed + 1)
    members = [q, (p**1.3).with_mean(np.asarray(q.mean))]
    if name != "Renyi 1.8":  # whose domain is narrow
        members.append(other)
    contract.check_distance(DIVERGENCES[name], members, p)


def second_order(p, direction):
    """KL between p and p * direction to second order: |d mean|^2 / 2 + |d precision|^2 / 4 in the metric of p."""
    precision, change = np.asarray(p.precision_matrix), np.asarray(direction.precision_matrix)
    shift = np.linalg.solve(precision, np.asarray(direction.precision_mean) - change @ np.asarray(p.mean))
    relative = np.linalg.solve(precision, change)
    return 0.5 * shift @ precision @ shift + 0.25 * np.trace(relative @ relative)


# f''(1) of an f-divergence multiplies; a distance is the square root of twice this
AT_EQUALITY = {"weighted KL": 1 / 0.4, "Hellinger": 0.5}


@thorough
@case_of
@few
@seeds
def test_near_equality(family, name, seed):
    """The value keeps its digits down to steps of 1e-6: no difference of large terms is left."""
    divergence = DIVERGENCES[name]
    q, p = random_pair(family, seed)
    contract.check_equality(divergence, p)
    step = 1e-3 if name == "Hellinger" else 1e-6
    direction = q**step
    size = second_order(p, direction) * AT_EQUALITY.get(name, 1.0)
    if name == "Fisher-Rao":
        np.testing.assert_allclose(look(divergence, p * direction, p).value, np.sqrt(2 * size), rtol=1e-5)
    else:
        contract.check_near_equality(divergence, p, direction, size, rtol=1e-4 if step < 1e-3 else 2e-2)


@family_of
@few
@seeds
def test_renyi_is_the_integral_that_defines_it(family, seed):
    for alpha in (0.1, 0.49, 0.5, 0.9, 1.2, 1.9):
        q, p = random_pair(family, seed)
        value = look(Renyi(alpha), q, p).value
        np.testing.assert_allclose(value, renyi_by_log_partitions(alpha, q, p), rtol=1e-10)
    q, p = random_pair(family, seed, upper=1.1)
    np.testing.assert_allclose(look(Renyi(8.0), q, p).value, renyi_by_log_partitions(8.0, q, p), rtol=1e-10)


def test_series_and_logarithm_meet():
    """(u - log(1 + u)) / u^2 to rounding, on both sides of where its series ends."""
    u = np.outer([1, -1], [1e-12, 1e-6, 1e-3, 0.9999e-2, 1.0001e-2, 0.1, 0.9]).ravel()
    exact = (u.astype(np.longdouble) - np.log1p(u.astype(np.longdouble))) / u.astype(np.longdouble) ** 2
    # longdouble itself loses digits below 1e-3, where three terms are enough
    exact = np.where(np.abs(u) < 1e-3, 0.5 - u / 3 + u**2 / 4, exact).astype(float)
    np.testing.assert_allclose(curvature(jnp.asarray(u)), exact, rtol=1e-13)
    assert curvature(jnp.zeros(1))[0] == 0.5


def through(alpha, q, p, reach=0.3, num_nodes=24):
    """The definition around alpha = 0 or 1, where it divides by 0: a polynomial through its values at other nodes."""
    nodes = alpha + reach * np.cos(np.pi * (np.arange(num_nodes) + 0.5) / num_nodes)
    return BarycentricInterpolator(nodes, [renyi_by_log_partitions(node, q, p) for node in nodes])


@family_of
@few
@seeds
def test_renyi_passes_through_both_divergences_of_kullback_and_leibler(family, seed):
    """At alpha = 1 and at alpha = 0, without a jump."""
    q, p = random_pair(family, seed, lower=0.5)

    def value(alpha):
        return float(look(Renyi(alpha), q, p).value)

    np.testing.assert_allclose(value(1.0), q.kl(p), rtol=1e-12)
    np.testing.assert_allclose(value(0.0), p.kl(q), rtol=1e-12)
    at_one, at_zero = through(1.0, q, p), through(0.0, q, p)
    for step in (1e-3, 1e-6, 1e-9):
        for alpha in (1 - step, 1 + step):
            np.testing.assert_allclose(value(alpha), at_one(alpha), rtol=1e-9)
        np.testing.assert_allclose(value(step), at_zero(step), rtol=1e-9)
        # the slope in alpha, which rounding leaves known to eps / step
        slope = (value(1 + step) - value(1 - step)) / (2 * step)
        expected = (at_one(1.001) - at_one(0.999)) / 0.002
        np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6 + 1e-14 * (1 + value(1.0)) / step)
    # the two forms meet at 1/2
    np.testing.assert_allclose(value(0.5 - 1e-12), value(0.5), rtol=1e-10)


@family_of
@few
@seeds
def test_renyi_objective_with_an_improper_cavity(family, seed):
    """(A(q^alpha p^(1 - alpha)) - alpha A(q)) / (alpha (alpha - 1)) is finite wherever that product is proper.

    It is D(q : p) without the log-partition of p, so the objective differs from it by one constant for every q and p,
    proper or not.
    """
    for alpha in (0.5, 0.8, 1.3):
        q, p = random_pair(family, seed)
        other, _ = random_pair(family, seed + 1)
        improper = p**-0.2 * other**0.01
        assert not bool(improper.is_proper)

        def gap(q, p, alpha=alpha):
            known = mixed_log_partition(q, p, alpha, 1 - alpha) - alpha * mixed_log_partition(q, p, 1, 0)
            return look(Renyi(alpha), q, p).objective - known / (alpha * (alpha - 1))

        reference = gap(q, p)
        for each in (q, (q**1.2).with_mean(np.asarray(other.mean))):
            np.testing.assert_allclose(gap(each, improper), reference, rtol=1e-8, atol=1e-9)
    # and at alpha = 1, where it divides by 0, from that of KL
    there = (q**1.2).with_mean(np.asarray(other.mean))
    here, again = (
        look(Renyi(1.0), each, improper).objective + each.entropy + each.cross(improper) for each in (q, there)
    )
    np.testing.assert_allclose(here, again, rtol=1e-8, atol=1e-9)


def test_which_divergences_need_a_proper_cavity():
    for divergence in (Renyi(0.3), Renyi(0.9), ReverseKL(), FisherRao(), FDivergence(hellinger)):
        assert divergence.needs_proper_cavity
    for divergence in (Renyi(1.0), Renyi(2.0), KL(), WeightedKL(2.0)):
        assert not divergence.needs_proper_cavity


def wide_pair(family):
    """For alpha = 3 the relative precision of p may be 1.5 at most; here some or all are 4."""
    q, p = random_pair(family, 0)
    if family is DiagonalGaussian:
        return DiagonalGaussian.from_moments(q.mean, p.variance * np.array([4.0, 0.5, 4.0])), p
    return (p**0.25).with_mean(np.asarray(q.mean)), p


def improper_pair(family):
    """For alpha = 0.7 an improper cavity may have a relative precision of -7/3 at least; here it is -5."""
    q, p = random_pair(family, 1)
    return q, (q**-5.0).with_mean(np.asarray(p.mean))


OUTSIDE = [(3.0, wide_pair), (0.7, improper_pair)]


@family_of
@pytest.mark.parametrize(("alpha", "pair"), OUTSIDE, ids=["wide", "improper"])
def test_outside_the_domain_of_renyi(family, alpha, pair):
    """Infinite, with finite derivatives for a line search; `inside` is finite, around the same mean."""
    q, p = pair(family)
    renyi = Renyi(alpha)
    here = look(renyi, q, p)
    assert here.value == np.inf
    assert here.objective == np.inf
    assert np.isfinite(contract.leaves(here.objective_slope)).all()
    admitted = renyi.inside(q, p)
    assert isinstance(admitted, family)
    assert bool(admitted.is_proper)
    np.testing.assert_allclose(admitted.mean, q.mean, rtol=1e-10)
    assert np.isfinite(look(renyi, admitted, p).objective)
    again = renyi.inside(admitted, p)
    np.testing.assert_allclose(contract.leaves(again), contract.leaves(admitted), rtol=1e-14)
    with pytest.raises(ImproperError, match=r"infinite here.*alpha nearer to 1, or KL"):
        renyi(q, p)


def test_mean_field_is_brought_inside_by_coordinate():
    """In either of its forms; a coordinate that is inside already keeps its scale."""
    q, p = wide_pair(DiagonalGaussian)
    admitted, view = Renyi(3.0).inside(q, p), Renyi(3.0).inside(MeanScale.of(q), p)
    assert isinstance(view, MeanScale)
    np.testing.assert_allclose(admitted.variance[1], q.variance[1], rtol=1e-14)
    assert (admitted.variance < q.variance).tolist() == [True, False, True]
    np.testing.assert_allclose(view.variance, admitted.variance, rtol=1e-12)
    np.testing.assert_array_equal(view.mean, q.mean)


@pytest.mark.parametrize("divergence", [*DIVERGENCES.values(), Renyi(3.0)], ids=lambda d: type(d).__name__)
def test_inside_leaves_a_member_alone(divergence):
    for family in FAMILIES:
        q, p = random_pair(family, 3, upper=1.4)
        np.testing.assert_allclose(contract.leaves(divergence.inside(q, p)), contract.leaves(q), rtol=1e-14)


@jax.jit
def objectives(q, p):
    return jnp.stack([each.objective(q, p) for each in DIVERGENCES.values() if each.asks_moments_only])


def test_means_and_scales_are_the_same_density():
    """What descent has at hand, where the divergence asks for no more."""
    q, p = random_pair(DiagonalGaussian, 2)
    view, here = objectives(MeanScale.of(q), p), objectives(q, p)
    assert view.shape == (6,)
    np.testing.assert_allclose(view, here, rtol=1e-10)


def test_an_improper_cavity_has_no_distance():
    q, p = random_pair(DiagonalGaussian, 0)
    for divergence in (ReverseKL(), FisherRao(), FDivergence(hellinger)):
        with pytest.raises(ImproperError, match="improper"):
            divergence(q, p**-1.0)
    for alpha in (0.0, 0.7):
        with pytest.raises(ImproperError, match="p is improper"):
            Renyi(alpha)(q, p**-1.0)


@few
@seeds
def test_multiples_of_kl(seed):
    q, p = random_pair(FullGaussian, seed)
    plain = np.array([KL()(q, p), KL().objective(q, p)])
    for w in (0.25, 3.0):
        here = look(WeightedKL(w), q, p)
        np.testing.assert_allclose([here.value, here.objective], plain / w, rtol=1e-12)
        np.testing.assert_allclose(WeightedKL(w).weight, 1 / w, rtol=1e-14)
    assert KL().weight == 1


def test_reverse_kl_is_from_p_to_q():
    """KL(N(0, 4) : N(0, 1)) = 3/2 - log 2."""
    narrow = DiagonalGaussian.from_moments(np.zeros(1), np.ones(1))
    wide = DiagonalGaussian.from_moments(np.zeros(1), np.full(1, 4.0))
    np.testing.assert_allclose(ReverseKL()(narrow, wide), 3 / 2 - np.log(2), rtol=1e-12)


def fisher_rao_by_ratio(q, p):
    """sqrt(2) log((1 + D) / (1 - D)) per coordinate (Nielsen, 2023), the squares added."""
    (a, b), (c, d) = ((np.asarray(each.mean), np.sqrt(np.asarray(each.variance))) for each in (p, q))
    ratio = np.sqrt(((c - a) ** 2 + 2 * (d - b) ** 2) / ((c - a) ** 2 + 2 * (d + b) ** 2))
    return np.sqrt(np.sum(2 * np.log((1 + ratio) / (1 - ratio)) ** 2))


@few
@seeds
def test_fisher_rao_distance(seed):
    """A metric, with a known form."""
    q, p = random_pair(DiagonalGaussian, seed)
    r, _ = random_pair(DiagonalGaussian, seed + 1)

    def distance(q, p):
        return float(look(FisherRao(), q, p).value)

    np.testing.assert_allclose(distance(q, p), fisher_rao_by_ratio(q, p), rtol=1e-10)
    np.testing.assert_allclose(distance(q, p), distance(p, q), rtol=1e-12)
    assert distance(q, p) <= distance(q, r) + distance(r, p)
    # along scales alone a line is shortest: there the distances add up
    middle, end = (DiagonalGaussian.from_moments(q.mean, k * q.variance) for k in (2.0, 7.0))
    np.testing.assert_allclose(distance(q, middle) + distance(middle, end), distance(q, end), rtol=1e-10)
    np.testing.assert_allclose(distance(q, end), np.sqrt(DIMENSION / 2) * np.log(7.0), rtol=1e-10)


def test_fisher_rao_is_for_mean_field():
    for family in (FullGaussian, IsotropicGaussian):
        q, p = random_pair(family, 0)
        with pytest.raises(UnsuitableError, match="mean-field"):
            FisherRao().check(p)
        with pytest.raises(UnsuitableError, match="mean-field"):
            FisherRao()(q, p)
    q, p = random_pair(DiagonalGaussian, 0)
    np.testing.assert_allclose(FisherRao()(MeanScale.of(q), p), FisherRao()(q, p), rtol=1e-12)


def u_log_u(u):
    return u * jnp.log(u)


def minus_log(u):
    return -jnp.log(u)


def chi_square(u):
    return (u - 1.0) ** 2


F_DIVERGENCES = [FDivergence(f) for f in (u_log_u, minus_log, chi_square, hellinger)]


@jax.jit
def f_divergences(q, p):
    return jnp.stack([divergence(q, p) for divergence in F_DIVERGENCES])


@few
@given(seed=st.integers(0, 2**20), dimension=st.sampled_from([1, 2]))
def test_f_divergences_against_closed_forms(seed, dimension):
    """KL, reverse KL, chi^2 and twice the squared Hellinger distance, to what 32 (20) nodes per axis can do."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0]
    ours = turn @ np.diag(rng.uniform(0.8, 1.3, dimension)) @ turn.T
    means = 0.3 * rng.normal(size=(2, dimension))
    q, p = FullGaussian(ours @ means[0], ours), FullGaussian(means[1], np.eye(dimension))
    separate = mixed_log_partition(q, p, 1, 0), mixed_log_partition(q, p, 0, 1)
    overlap = np.exp(mixed_log_partition(q, p, 0.5, 0.5) - 0.5 * sum(separate))
    square = np.exp(mixed_log_partition(q, p, 2, -1) - 2 * separate[0] + separate[1])
    expected = [q.kl(p), p.kl(q), square - 1, 2 - 2 * overlap]
    np.testing.assert_allclose(f_divergences(q, p), expected, rtol=1e-5, atol=1e-9)


def test_f_divergence_in_many_dimensions():
    """An estimate with fixed draws: still not negative, zero at equality, and of the right size nearby."""
    rng = np.random.default_rng(0)
    p = DiagonalGaussian.from_moments(np.zeros(6), np.ones(6))
    q = DiagonalGaussian.from_moments(0.05 * rng.normal(size=6), np.exp(0.05 * rng.normal(size=6)))
    estimate = jax.jit(F_DIVERGENCES[0].objective)
    value, at_equality = float(estimate(q, p)), float(estimate(p, p))
    assert at_equality == 0
    np.testing.assert_allclose(value, q.kl(p), rtol=0.3)


@thorough
def test_an_f_divergence_of_a_wide_q():
    """Far nodes do not overflow where q is six times wider, though 32 of them see p coarsely; chi^2 is infinite."""
    q, p = (DiagonalGaussian.from_moments(np.zeros(1), np.array([variance])) for variance in (36.0, 1.0))
    entropy = FDivergence(lambda u: u * jnp.log(u))
    np.testing.assert_allclose(entropy(q, p), q.kl(p), rtol=0.03)
    with pytest.raises(ImproperError, match="infinite"):
        FDivergence(lambda u: (u - 1.0) ** 2)(q, p)
