"""Whether clients agree: shifts against a refit, the level of the flag, and its power."""

from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.errors import CavityError
from cavity.fit.heterogeneity import largest_p_value
from tests.marks import thorough

FORMULA = "y ~ x0 + x1 + x2"
BETA = np.array([0.3, -0.5, 0.2])


def hospitals(rng, num_clients=5, size=60, planted=0.0):
    """Linear regressions with noise of sd 1; the slope of x0 at the first client is moved by so many of its errors."""
    clients = {}
    for k in range(num_clients):
        x = rng.normal(size=(size, 3))
        beta = BETA.copy()
        if k == 0:
            beta[0] += planted / np.sqrt(size)
        clients[f"c{k}"] = {"y": 0.5 + x @ beta + rng.normal(size=size)} | {f"x{j}": x[:, j] for j in range(3)}
    return clients


def fitted(clients, **options):
    return cavity.regression(FORMULA, clients, family="gaussian", noise_sd=1.0, **options)


def test_shifts_are_those_of_least_squares_without_the_client():
    """A very wide prior; the chance variance is that of the difference of two independent estimates."""
    clients = hospitals(np.random.default_rng(0))
    found = fitted(clients, prior_scale=1e4, intercept_scale=1e4).heterogeneity()

    def estimate(names):
        x = np.concatenate([np.column_stack([np.ones(60), *(clients[n][f"x{j}"] for j in range(3))]) for n in names])
        y = np.concatenate([clients[n]["y"] for n in names])
        inverse = np.linalg.inv(x.T @ x)
        return inverse @ x.T @ y, inverse

    for left_out in clients:
        (whole, own), (rest, of_rest) = estimate(list(clients)), estimate([n for n in clients if n != left_out])
        shift = whole - rest
        client = found[left_out]
        np.testing.assert_allclose(list(client.shift.values()), shift, atol=1e-6)
        np.testing.assert_allclose(list(client.z.values()), shift / np.sqrt(np.diag(of_rest - own)), rtol=1e-4)


def test_a_client_that_differs_is_flagged_with_its_coefficient():
    found = fitted(hospitals(np.random.default_rng(1), planted=8.0)).heterogeneity()
    assert found.flagged == ("c0",)
    assert found["c0"].strongest == "x0"
    assert found["c0"].shift["x0"] > 0
    lines = str(found).splitlines()
    assert lines[0].split() == ["client", "coefficient", "shift", "z", "p"]
    assert lines[1].endswith("differs")
    assert "<td>differs</td>" in found._repr_html_()


def test_a_client_with_one_row_is_compared_too():
    """It has information in one direction only; the chance variance of the others is rounding."""
    clients = hospitals(np.random.default_rng(2))
    clients["c1"] = {name: column[:1] for name, column in clients["c1"].items()}
    client = fitted(clients).heterogeneity()["c1"]
    assert np.isfinite(list(client.z.values())).all()
    np.testing.assert_allclose(np.abs(list(client.z.values())), abs(client.z["x0"]), rtol=1e-3)
    assert client.p_value == pytest.approx(2 * stats.norm.sf(abs(client.z["x0"])), rel=0.1)


@pytest.mark.parametrize("z", [0.5, 1.5, 3.0, 5.0, 9.0])
def test_probabilities_of_the_largest_of_several(z):
    one = 2 * stats.norm.sf(z)
    assert largest_p_value(z, np.eye(1)) == pytest.approx(one, rel=1e-9)
    assert largest_p_value(z, np.eye(4)) == pytest.approx(-np.expm1(4 * np.log1p(-one)), rel=0.02)
    assert largest_p_value(z, np.ones((4, 4))) == pytest.approx(one, rel=0.05)  # four times the same number
    assert largest_p_value(z, np.eye(0)) == 1.0


def test_probabilities_of_correlated_coefficients():
    correlation: Any = np.array([[1.0, 0.8, -0.3], [0.8, 1.0, 0.1], [-0.3, 0.1, 1.0]])
    within = stats.multivariate_normal(np.zeros(3), correlation, abseps=1e-9, releps=1e-9, maxpts=10**6)
    for z in (1.2, 2.0, 3.0):
        exact = 1 - within.cdf(np.full(3, z), lower_limit=np.full(3, -z))
        assert largest_p_value(z, correlation) == pytest.approx(exact, rel=0.02)


def test_the_noise_is_compared_but_does_not_count_for_the_flag():
    """With an unknown noise, coefficients are compared as if its posterior mean were known."""
    clients = hospitals(np.random.default_rng(5), size=200)
    with jax.enable_x64(True):
        unknown = cavity.regression(FORMULA, clients, family="gaussian")
        noise_sd = float(np.exp(unknown.coefficients.mean[-1]))
        known = cavity.regression(FORMULA, clients, family="gaussian", noise_sd=noise_sd)
        found, other = unknown.heterogeneity(), known.heterogeneity()
    coefficients = ("intercept", "x0", "x1", "x2")
    for client in found:
        assert client.coefficients == coefficients
        assert len(client.z) == 5
        for name in coefficients:
            assert client.z[name] == pytest.approx(other[client.name].z[name], abs=0.05)
        assert client.p_value == pytest.approx(other[client.name].p_value, rel=0.1, abs=1e-3)


def test_what_it_needs_is_said():
    clients = hospitals(np.random.default_rng(3))
    with pytest.raises(CavityError, match="one client has no others"):
        fitted({"c0": clients["c0"]}).heterogeneity()
    with pytest.raises(CavityError, match="full covariance"):
        fitted(clients, covariance="diagonal").heterogeneity()
    with pytest.raises(CavityError, match="alpha is a probability"):
        fitted(clients).heterogeneity(alpha=1.0)


@thorough
def test_one_client_in_a_hundred_is_flagged_where_all_agree():
    """`cavity reproduce families` has 1,000 studies."""
    rng = np.random.default_rng(4)
    with jax.enable_x64(True):
        flags = [c.flagged for _ in range(60) for c in fitted(hospitals(rng), rounds=3).heterogeneity()]
        found = [fitted(hospitals(rng, planted=6.0), rounds=3).heterogeneity()["c0"].flagged for _ in range(15)]
    assert np.mean(flags) < 0.01 + 3 * np.sqrt(0.01 * 0.99 / len(flags))
    assert np.mean(found) > 0.8
