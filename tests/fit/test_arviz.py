"""Draws for ArviZ, under whichever version is installed, and as both versions ask for them."""

from __future__ import annotations

import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.models import function_model, linear_regression
from tests import scenarios
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")


def fitted():
    x, y = scenarios.linear()
    model = linear_regression(["dose", "age", "bmi"], noise_sd=0.7)
    return cavity.run(cavity.PVI(model), scenarios.clients(x, y, scenarios.homogeneous(60, 2)))


def test_draws_are_those_of_the_posterior():
    pytest.importorskip("arviz")
    fit = fitted()
    posterior = fit.to_arviz(num_draws=4000).posterior
    assert list(posterior.data_vars) == ["intercept", "dose", "age", "bmi"]
    assert posterior["dose"].dims == ("chain", "draw")
    assert dict(posterior.sizes) == {"chain": 1, "draw": 4000}
    for estimate in fit.summary():
        draws = posterior[estimate.name].values
        assert draws.mean() == pytest.approx(estimate.mean, abs=4 * estimate.sd / np.sqrt(4000))
        assert draws.std() == pytest.approx(estimate.sd, rel=4 / np.sqrt(2 * 4000))


def test_arviz_summarises_them():
    arviz = pytest.importorskip("arviz")
    fit = fitted()
    table = arviz.summary(fit.to_arviz(num_draws=2000), kind="stats")
    assert list(table.index) == ["intercept", "dose", "age", "bmi"]
    assert float(table["mean"]["dose"]) == pytest.approx(fit.summary()["dose"].mean, abs=0.02)


@thorough
@pytest.mark.parametrize(("version", "group"), [("0.23.4", "keyword"), ("1.3.0", "key"), ("1.0.0rc0", "key")])
def test_each_version_gets_the_draws_in_its_form(monkeypatch, version, group):
    """0.x takes the groups as keywords, 1.x as a dict of groups, in which a name has no slash."""
    given = {}
    fake = types.ModuleType("arviz")
    fake.__version__ = version
    fake.from_dict = lambda data=None, **groups: given.update(data or groups)
    monkeypatch.setitem(sys.modules, "arviz", fake)
    model = function_model(lambda p, batch: -0.5 * (batch - p["a/b"]) ** 2, {"a/b": jnp.zeros(())})
    cavity.run(cavity.PVI(model), {"york": np.arange(3.0)}, rounds=1).to_arviz(num_draws=10)
    name = "a/b" if group == "keyword" else "a|b"
    assert {key: value.shape for key, value in given["posterior"].items()} == {name: (1, 10)}
