"""Regression with effects of groups: densities against plain numpy, weights, padding, names and units."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from cavity.core import pad
from cavity.core.client_data import Weighted, as_data, prepare_clients
from cavity.errors import CavityError, DataError
from cavity.likelihoods import BernoulliLogit, GaussianUnknownNoise, PoissonLog
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from tests.marks import thorough

KEY = jax.random.key(0)
FIXED, SD_SCALE = [10.0, 2.5, 1.5], [2.0, 1.0, 0.5]
TERMS = (GroupEffects(("1", "age"), "ward"), GroupEffects(("rx",), "ward"))
Z = np.array([0.3, -0.5, 0.8, np.log(0.7), np.log(1.3), np.log(0.4), 0.6])  # fixed, log sds, atanh of a correlation


def model(likelihood, **changes):
    arguments = {"family_scale": [], "sd_scale": SD_SCALE, "fixed_scale": FIXED} | changes
    return GroupedRegression(likelihood, ("age", "rx"), arguments.pop("effects", TERMS), **arguments)


def rows(seed=0, n=12, outcome="binary"):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    y = rng.integers(0, 2 if outcome == "binary" else 7, n).astype(float)
    z = np.stack([np.ones(n), x[:, 0], x[:, 1]], axis=1)
    return {"x": x, "y": y, "z": z, "group": rng.choice(["c", "a", "b"], n)}


def by_hand(client, z_global, z_local, log_prob):
    """Log p(y_u, u_u | Z_G) per group, in the order of first rows."""
    rho = np.tanh(z_global[6])
    sd = np.exp(z_global[3:6])
    covariance = np.array([[1, rho, 0], [rho, 1, 0], [0, 0, 1]]) * np.outer(sd, sd)
    root = np.linalg.cholesky(covariance)
    found = []
    for u, label in enumerate(dict.fromkeys(client["group"].tolist())):
        mine = client["group"] == label
        effect = root @ z_local[u]
        f = z_global[0] + client["x"][mine] @ z_global[1:3] + client["z"][mine] @ effect
        found.append(log_prob(client["y"][mine], f).sum() + stats.norm.logpdf(z_local[u]).sum())
    return np.array(found)


@pytest.mark.parametrize(
    ("likelihood", "outcome", "log_prob"),
    [
        (BernoulliLogit(), "binary", lambda y, f: stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-f)))),
        (PoissonLog(), "count", lambda y, f: stats.poisson.logpmf(y, np.exp(f))),
    ],
)
def test_the_joint_density_of_each_group_is_that_of_numpy(likelihood, outcome, log_prob):
    client, regression = rows(outcome=outcome), model(likelihood)
    data = regression.prepare(client)
    own = np.random.default_rng(1).normal(size=(3, 3))
    found = regression.log_joint(None, jnp.asarray(Z), jnp.asarray(own), data, KEY)
    np.testing.assert_allclose(found, by_hand(client, Z, own, log_prob), rtol=1e-10)
    assert regression.unit_labels(client) == list(dict.fromkeys(client["group"].tolist()))


def test_the_noise_is_a_further_parameter():
    regression = model(GaussianUnknownNoise(), family_scale=[2.5], family_names=("sigma",))
    client = rows()
    z = np.insert(Z, 3, np.log(0.8))
    own = np.random.default_rng(1).normal(size=(3, 3))
    expected = by_hand(client, Z, own, lambda y, f: stats.norm.logpdf(y, f, 0.8))
    data = regression.prepare(client)
    np.testing.assert_allclose(regression.log_joint(None, jnp.asarray(z), jnp.asarray(own), data, KEY), expected)
    assert float(regression.constrain(None, jnp.asarray(z))["sigma"]) == pytest.approx(0.8)


def test_the_prior_is_the_product_of_its_densities():
    rho, sd = np.tanh(Z[6]), np.exp(Z[3:6])
    normal = stats.norm.logpdf(Z[:3], 0, FIXED).sum()
    sds = stats.halfnorm.logpdf(sd, scale=SD_SCALE).sum() + Z[3:6].sum()  # with the Jacobian of the logarithm
    lkj = stats.beta.logpdf((rho + 1) / 2, 2, 2) - np.log(2) + np.log(1 - rho**2)  # LKJ(2) of two effects
    found = model(BernoulliLogit()).log_prior(None, jnp.asarray(Z))
    assert float(found) == pytest.approx(normal + sds + lkj, abs=1e-10)
    wide = model(BernoulliLogit(), sd_df=3.0, eta=1.0).log_prior(None, jnp.asarray(Z))
    sds = (np.log(2) + stats.t.logpdf(sd, 3, scale=SD_SCALE)).sum() + Z[3:6].sum()
    assert float(wide) == pytest.approx(normal + sds - np.log(2) + np.log(1 - rho**2), abs=1e-10)


def test_independent_effects_have_no_correlation():
    terms = (GroupEffects(("1", "age", "rx"), "ward", correlated=False),)
    regression = model(BernoulliLogit(), effects=terms)
    assert regression.num_global == 6
    assert regression.parameter_names[3:] == ("1|ward_sigma", "age|ward_sigma", "rx|ward_sigma")
    np.testing.assert_allclose(regression.root(jnp.asarray(Z[:6])), np.diag(np.exp(Z[3:6])))


def test_names_and_natural_values():
    regression = model(BernoulliLogit())
    found = regression.constrain(None, jnp.asarray(Z))
    names = ("intercept", "age", "rx", "1|ward_sigma", "age|ward_sigma", "rx|ward_sigma", "1,age|ward_corr")
    assert isinstance(found, OrderedDict)
    assert tuple(found) == regression.parameter_names == names
    np.testing.assert_allclose(list(found.values()), [*Z[:3], 0.7, 1.3, 0.4, np.tanh(0.6)], rtol=1e-12)
    own = np.random.default_rng(3).normal(size=(2, 3))
    local = regression.constrain_local(None, jnp.asarray(Z), jnp.asarray(own), regression.prepare(rows()))
    assert tuple(local) == ("1|ward", "age|ward", "rx|ward")
    np.testing.assert_allclose(local["1|ward"], 0.7 * own[:, 0])
    np.testing.assert_allclose(local["age|ward"], 1.3 * (np.tanh(0.6) * own[:, 0] + own[:, 1] / np.cosh(0.6)))


def test_effects_are_reported_per_unit_of_the_data():
    regression = model(BernoulliLogit(), effect_units=(1.0, 10.0, 0.5))
    found = regression.constrain(None, jnp.asarray(Z))
    assert [float(found[f"{name}|ward_sigma"]) for name in ("1", "age", "rx")] == pytest.approx([0.7, 0.13, 0.8])
    assert float(found["1,age|ward_corr"]) == pytest.approx(np.tanh(0.6))


@thorough
def test_rows_and_units_of_weight_zero_change_nothing():
    client, regression = rows(), model(BernoulliLogit())
    weight = np.random.default_rng(2).integers(0, 3, 12).astype(float)
    weight[client["group"] == "a"] = 0.0
    data = as_data(regression, Weighted(client, weight))
    own = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)))
    found = regression.log_joint(None, jnp.asarray(Z), own, data, KEY)
    times = np.repeat(np.arange(12), weight.astype(int))
    without = {name: column[times] for name, column in client.items()}
    labels, present = regression.unit_labels(client), regression.unit_labels(without)
    units = np.array([labels.index(label) for label in present])
    again = regression.log_joint(None, jnp.asarray(Z), own[units], regression.prepare(without), KEY)
    np.testing.assert_allclose(np.asarray(found)[units], again, rtol=1e-10)
    empty = labels.index("a")
    assert float(found[empty]) == pytest.approx(
        stats.norm.logpdf(own[empty]).sum()
    )  # the prior alone, which integrates to 1
    padded = pad(data, 20, 5)
    more = jnp.concatenate([own, jnp.full((2, 3), 9.0)])
    np.testing.assert_allclose(regression.log_joint(None, jnp.asarray(Z), more, padded, KEY)[:3], found, rtol=1e-12)


def test_the_client_as_the_group_is_one_unit():
    terms = (GroupEffects(("1",), "client"),)
    regression = GroupedRegression(BernoulliLogit(), ("age", "rx"), terms, FIXED, [], [2.5])
    client = {name: column for name, column in rows().items() if name != "group"} | {"z": np.ones((12, 1))}
    data = regression.prepare(client)
    assert data.units.weight.tolist() == [1.0]
    assert data.batch["unit"].tolist() == [0] * 12
    assert regression.unit_labels(client) is None
    assert regression.parameter_names[-1] == "1|client_sigma"


def test_predictions_use_the_effects_of_known_groups():
    regression = model(BernoulliLogit())
    client = rows()
    new = {name: client[name][:2] for name in ("x", "z")} | {"group": np.array(["b", "new"])}
    own = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3)))
    found = regression.expected_outcome(None, jnp.asarray(Z), new, KEY, own, ["a", "b"])
    other = regression.expected_outcome(None, jnp.asarray(Z), new, jax.random.key(5), own, ["a", "b"])
    f = Z[0] + new["x"][0] @ Z[1:3] + new["z"][0] @ np.asarray(regression.root(jnp.asarray(Z)) @ own[1])
    assert float(found[0]) == pytest.approx(1 / (1 + np.exp(-f)))
    assert float(found[0]) == float(other[0])
    assert float(found[1]) != float(other[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.full(12, 2.0)}, "code it as 0 and 1"),
        ({"z": np.ones((11, 3))}, "different numbers of rows"),
        ({"group": np.array(["a"] * 11 + [None], object)}, "1 rows have no group"),
        ({"x": np.ones((12, 3))}, "x has 3 columns"),
    ],
)
def test_rows_that_cannot_be_used_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        model(BernoulliLogit()).prepare(rows() | changes)


def test_a_group_at_two_clients_is_refused():
    with pytest.raises(DataError, match="has rows at 'leeds' and at 'york'"):
        prepare_clients(model(BernoulliLogit()), {"leeds": rows(0), "york": rows(1)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixed_scale": [1.0]}, "fixed_scale has the length"),
        ({"sd_scale": [1.0]}, "sd_scale has the length"),
        ({"family_scale": [1.0]}, "family_scale has the length"),
        ({"effects": tuple(GroupEffects(("1",), name) for name in "abc")}, "one or two groups"),
        ({"effects": tuple(GroupEffects((name,), "aba"[i]) for i, name in enumerate("1xz"))}, "'a' come first"),
        ({"effects": (GroupEffects(("1", "x", "z"), "a"), GroupEffects(("1",), "b"))}, "at most 2 effects each"),
    ],
)
def test_a_model_of_unlike_sizes_is_refused(changes, message):
    with pytest.raises(CavityError, match=message):
        model(BernoulliLogit(), **changes)
