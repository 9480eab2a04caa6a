"""Groups within groups: both integrals against dense grids, derivatives, padding, weights and local posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_expit, logsumexp
from scipy.stats import multivariate_normal, norm, poisson

from cavity.core import pad
from cavity.core.client_data import Weighted, as_data
from cavity.errors import CavityError, DataError
from cavity.likelihoods import BernoulliLogit, GaussianUnknownNoise, PoissonLog
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from cavity.models.mixed.marginal import marginal_model
from cavity.models.mixed.nested_likelihood import log_likelihood, orders_of, refinement, rows_near
from cavity.models.mixed.rules import Rule
from tests.marks import thorough

TERMS = (GroupEffects(("1",), "community"), GroupEffects(("1",), "mother"))
Z = np.array([-0.3, 0.5, np.log(1.0), np.log(2.0)])
SIZES = ((1, 3, 2), (4,), (2, 2, 1, 5))  # rows of the mothers of each community


def model(likelihood=None, **changes):
    arguments = {"fixed_scale": [10.0, 2.5], "family_scale": [], "sd_scale": [2.5, 2.5]} | changes
    return GroupedRegression(likelihood or BernoulliLogit(), ("x",), TERMS, **arguments)


def rows(seed=0, outcome=2):
    """In mixed order; all outcomes of the second community are 0."""
    rng = np.random.default_rng(seed)
    home = [(c, f"{c}-{j}") for c, sizes in enumerate(SIZES) for j, size in enumerate(sizes) for _ in range(size)]
    home = [home[i] for i in rng.permutation(len(home))]
    community, mother = np.array([c for c, _ in home]), np.array([m for _, m in home])
    y = rng.integers(0, outcome, len(home)) * (community != 1.0)
    x = rng.normal(size=len(home))
    return {"x": x[:, None], "y": y.astype(float), "z": np.ones((len(home), 2)), "group": community, "inner": mother}


def by_grid(client, z, log_prob):
    """Log p(y_o | Z_G) of each community, in the order of first rows."""
    grid = np.linspace(-9.5, 9.5, 951)
    step, prior = np.log(grid[1] - grid[0]), norm.logpdf(grid)
    found = []
    for community in dict.fromkeys(client["group"].tolist()):
        joint = prior.copy()
        mine = client["group"] == community
        for mother in np.unique(client["inner"][mine]):
            own = client["inner"] == mother
            f = (z[0] + z[1] * client["x"][own, 0])[:, None, None]
            f = f + np.exp(z[2]) * grid[:, None] + np.exp(z[3]) * grid[None]
            rows_of_mother = log_prob(client["y"][own][:, None, None], f).sum(axis=0)
            joint += logsumexp(rows_of_mother + prior[None], axis=1) + step
        found.append(logsumexp(joint) + step)
    return np.array(found)


def bernoulli(y, f):
    return log_expit(np.where(y > 0, f, -f))


@pytest.fixture(scope="module")
def evaluate():
    regression = model()
    return jax.jit(jax.value_and_grad(lambda z, data: log_likelihood(regression, Rule(), z, data)))


@thorough
@pytest.mark.parametrize("sds", [(0.5, 0.8), (1.0, 2.0), (0.3, 6.0)])
def test_it_is_the_integral_with_its_gradient(evaluate, sds):
    z, client = np.array([*Z[:2], *np.log(sds)]), rows()
    data = jax.jit(lambda z, data: rows_near(model(), Rule(), z[None], data))(jnp.asarray(z), model().prepare(client))
    value, slope = evaluate(jnp.asarray(z), data)
    assert float(value) == pytest.approx(by_grid(client, z, bernoulli).sum(), abs=8e-6)  # 1e-6 per mother
    for i, h in enumerate(1e-4 * np.eye(4)):
        above, below = (by_grid(client, z + sign * h, bernoulli).sum() for sign in (1, -1))
        assert slope[i] == pytest.approx((above - below) / 2e-4, abs=2e-4)


@thorough
def test_without_a_posterior_there_is_a_default_order(evaluate):
    value, _ = evaluate(jnp.asarray(Z), model().prepare(rows()))
    assert float(value) == pytest.approx(by_grid(rows(), Z, bernoulli).sum(), abs=1e-6)


@thorough
def test_counts():
    regression, client = model(PoissonLog()), rows(outcome=6)
    data, z = regression.prepare(client), np.array([0.2, 0.3, np.log(0.4), np.log(0.7)])
    value = jax.jit(lambda z: log_likelihood(regression, Rule(), z, data))(jnp.asarray(z))
    exact = by_grid(client, z, lambda y, f: poisson.logpmf(y, np.exp(np.minimum(f, 50.0))))
    assert float(value) == pytest.approx(exact.sum(), abs=1e-6)


@thorough
@pytest.mark.parametrize("size", [1, 2])
def test_normal_outcomes_are_exact_with_any_order(size):
    """Rows of a community have a normal density with the covariance of both groups; the noise is a parameter.

    With two effects per group these are an intercept and a slope, correlated in communities and not in mothers.
    """
    names = ("1", "x")[:size]
    terms = (GroupEffects(names, "community"), GroupEffects(names, "mother", correlated=False))
    regression = GroupedRegression(
        GaussianUnknownNoise(), ("x",), terms, [10.0, 2.5], [2.5], [2.5] * (2 * size), family_names=("sigma",)
    )
    client = rows()
    columns = np.hstack([np.ones_like(client["x"]), client["x"]])[:, :size]
    y = np.random.default_rng(5).normal(size=len(columns))
    data = regression.prepare(client | {"y": y, "z": np.hstack([columns, columns])})
    sds, rho = np.array([[0.9, 0.5], [0.6, 0.4]])[:, :size], 0.3
    z = np.concatenate([[0.2, -0.4, np.log(0.8)], np.log(sds).ravel(), [np.arctanh(rho)] if size == 2 else []])
    correlated = np.outer(sds[0], sds[0]) * np.where(np.eye(size) > 0, 1.0, rho)
    same_community, same_mother = (client[name][:, None] == client[name][None] for name in ("group", "inner"))
    covariance = (columns @ correlated @ columns.T) * same_community
    covariance += (columns @ np.diag(sds[1] ** 2) @ columns.T) * same_mother + 0.8**2 * np.eye(len(y))
    exact = multivariate_normal.logpdf(y, z[0] + z[1] * client["x"][:, 0], covariance)
    total = jax.jit(lambda z: log_likelihood(regression, Rule(3), z, data))
    slope = jax.jit(jax.grad(lambda z: log_likelihood(regression, Rule(3), z, data)))(jnp.asarray(z))
    assert float(total(jnp.asarray(z))) == pytest.approx(exact, abs=1e-4)  # up to the least noise of the likelihood
    for i, h in enumerate(1e-5 * np.eye(len(z))):
        difference = float(total(jnp.asarray(z + h)) - total(jnp.asarray(z - h))) / 2e-5
        assert slope[i] == pytest.approx(difference, rel=1e-5, abs=1e-5)


@thorough
def test_padding_and_the_split_over_clients_change_nothing(evaluate):
    client, z = rows(), jnp.asarray(Z)
    whole = evaluate(z, model().prepare(client))
    data = model().prepare(client)
    parts = [evaluate(z, pad(data, len(data.weight) + 6, 5))]
    split = [{name: column[client["group"] % 2 == part] for name, column in client.items()} for part in (0, 1)]
    pieces = [evaluate(z, model().prepare(each)) for each in split]
    parts.append(jax.tree.map(jnp.add, *pieces))
    for part in parts:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), part, whole)


@thorough
def test_rows_of_weight_zero_are_absent_and_of_weight_two_are_twice(evaluate):
    client = rows()
    weight = np.random.default_rng(3).integers(0, 3, len(client["y"])).astype(float)
    weight[client["inner"] == "2-3"] = 0.0
    found = evaluate(jnp.asarray(Z), as_data(model(), Weighted(client, weight)))
    times = np.repeat(np.arange(len(weight)), weight.astype(int))
    expected = evaluate(jnp.asarray(Z), model().prepare({name: column[times] for name, column in client.items()}))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7), found, expected)


@thorough
def test_the_orders_grow_with_the_spread_of_the_effects():
    data, regression = model().prepare(rows()), model()
    check = jax.jit(lambda z: refinement(regression, Rule(), z, data))
    orders = []
    for sd in (0.2, 1.0, 5.0):
        order, other, change = check(jnp.asarray([[*Z[:2], np.log(0.5), np.log(sd)]]))
        orders.append(int(order))
        assert abs(float(change[0])) < 8e-6 or int(other) < int(order)
    assert orders == sorted(orders)
    assert orders[0] < orders[-1]


@thorough
def test_the_posterior_of_a_community_has_its_mothers_integrated_out():
    """Log p(y_o, v | Z_G) integrates to the likelihood of the community."""
    data, grid = model().prepare(rows()), jnp.linspace(-8.0, 8.0, 161)
    joint = jax.jit(jax.vmap(lambda v: model().log_joint(None, jnp.asarray(Z), v, data, jax.random.key(0))))
    each = joint(jnp.broadcast_to(grid[:, None, None], (161, 3, 1)))
    found = logsumexp(np.asarray(each), axis=0) + np.log(grid[1] - grid[0])
    np.testing.assert_allclose(found, by_grid(rows(), Z, bernoulli), atol=1e-5)


def test_a_mother_in_two_communities_is_refused():
    client = rows()
    with pytest.raises(DataError, match="'2-0' has rows in 2 and in 0|'2-0' has rows in 0 and in 2"):
        model().prepare(client | {"inner": np.where(client["inner"] == "0-1", "2-0", client["inner"])})
    with pytest.raises(DataError, match="smaller group of each row is `inner`"):
        model().prepare({name: column for name, column in client.items() if name != "inner"})


def test_names_and_orders():
    regression = model()
    assert regression.parameter_names == ("intercept", "x", "1|community_sigma", "1|mother_sigma")
    assert (regression.num_local, regression.num_inner) == (1, 1)
    assert orders_of(regression, Rule(9)) == ((9,), (9,))
    with pytest.raises(CavityError, match="at least 3"):
        orders_of(regression, Rule(1))
    (remark,) = marginal_model(regression).remarks
    assert "'mother' are integrated out" in remark
