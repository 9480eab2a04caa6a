"""Rows that depend on other rows are refused by the models that promise it, whatever shows the dependence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
from cavity.errors import CavityError
from cavity.models import function_model, numpyro_model
from tests.marks import thorough

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=12), RNG.normal(size=12)


def scanned(x):
    """An autoregression written as a loop over rows."""
    return jax.lax.scan(lambda before, now: (0.5 * before + now, before), 0.0, x)[1]


def largest_before(x):
    return jax.lax.cummax(jnp.concatenate([jnp.full(1, -1.0), x[:-1]]))


def tenth_before(x):
    return jnp.concatenate([jnp.zeros(10), x])[: len(x)]


DEPENDENT = {
    "lag": lambda x: jnp.concatenate([jnp.zeros(1), x[:-1]]),
    "lead": lambda x: jnp.concatenate([x[1:], jnp.zeros(1)]),
    "running sum": jnp.cumsum,
    "reversed running sum": lambda x: jnp.cumsum(x[::-1])[::-1],
    "running maximum": largest_before,
    "centred": lambda x: x - jnp.mean(x),
    "scaled by the largest": lambda x: x / jnp.max(jnp.abs(x)),
    "softmax": jax.nn.softmax,
    "rank": lambda x: jnp.argsort(jnp.argsort(x)).astype(x.dtype),
    "first row": lambda x: x - x[0],
    "last row": lambda x: x - x[-1],
    "number of rows": lambda x: x / len(x),
    "place": lambda x: x + 0.1 * jnp.arange(len(x)),
    "loop": scanned,
    "copies": lambda x: jnp.sum(x[:, None] == x, axis=1).astype(x.dtype),
    "nearest": lambda x: jnp.sort(jnp.abs(x[:, None] - x), axis=1)[:, 1],
    "in large datasets alone": lambda x: x - jnp.mean(x) if len(x) > 12 else x,
    "far back": tenth_before,
}


def model_of(covariate):
    """A regression in NumPyro on some function of the column x; its slope has its median at 0."""

    def function(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(slope * covariate(x), 1.0), obs=y)

    return function


@thorough
@pytest.mark.parametrize("name", DEPENDENT)
def test_numpyro_models_whose_rows_depend_on_others_are_refused(name):
    with pytest.raises(CavityError, match="'y' for a row or unit depends on others.* as a column"):
        numpyro_model(model_of(DEPENDENT[name]), {"x": X, "y": Y})


def test_an_example_of_equal_rows_hides_nothing():
    with pytest.raises(CavityError, match="'y' for a row or unit depends on others"):
        numpyro_model(model_of(DEPENDENT["lag"]), {"x": np.zeros(3), "y": np.zeros(3)})


def test_a_dependence_on_whole_numbers_is_refused():
    def counted(x, y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("y", dist.Poisson(rate * (1.0 + jnp.concatenate([jnp.zeros(1), y[:-1]]))), obs=y)

    with pytest.raises(CavityError, match="'y' for a row or unit depends on others"):
        numpyro_model(counted, {"x": X, "y": np.arange(12) % 3})


def grouped(covariate):
    def function(group, x, y, num_groups):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", num_groups):
            own = numpyro.sample("own", dist.Normal(level, 1.0))
        numpyro.sample("y", dist.Normal(own[group] + covariate(x), 1.0), obs=y)

    return function


def by_height(used):
    """Units with a covariate of their own, the largest x of their rows."""

    def function(group, x, y, num_groups):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        height = jnp.nan_to_num(jax.ops.segment_max(x, group, num_groups), neginf=0.0)
        with numpyro.plate("groups", num_groups):
            own = numpyro.sample("own", dist.Normal(level * used(height), 1.0))
        numpyro.sample("y", dist.Normal(own[group], 1.0), obs=y)

    return function


def chained(x, y):
    """Rows are units, and the prior of a row's latent looks at the row before."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        own = numpyro.sample("own", dist.Normal(level * DEPENDENT["lag"](x), 1.0))
        numpyro.sample("y", dist.Normal(own, 1.0), obs=y)


def test_rows_of_units_that_depend_on_others_are_refused():
    data = {"group": np.repeat(np.arange(4), 3), "x": X, "y": Y}
    with pytest.raises(CavityError, match="'y' for a row or unit depends on others"):
        numpyro_model(grouped(DEPENDENT["lag"]), data, unit="group", num_units="num_groups")
    with pytest.raises(CavityError, match="'own' for a row or unit depends on others"):
        numpyro_model(chained, {"x": X, "y": Y})


def test_units_that_depend_on_another_unit_are_refused():
    data = {"group": np.repeat(np.arange(4), 3), "x": X, "y": Y}
    with pytest.raises(CavityError, match="'own' for a row or unit depends on others"):
        numpyro_model(by_height(lambda height: height - height[0]), data, unit="group", num_units="num_groups")


def test_a_covariate_of_a_unit_may_come_from_its_rows():
    data = {"group": np.repeat(np.arange(4), 3), "x": X, "y": Y}
    assert numpyro_model(by_height(lambda height: height), data, unit="group", num_units="num_groups").num_local == 1


def test_a_model_that_fixes_its_number_of_rows_is_refused():
    def function(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        pairs = (slope * x).reshape(-1, 4).reshape(-1)
        numpyro.sample("y", dist.Normal(pairs, 1.0), obs=y)

    with pytest.raises(CavityError, match="cannot be computed with 6 rows, but clients have different"):
        numpyro_model(function, {"x": X, "y": Y})


@pytest.mark.parametrize("name", ["lag", "reversed running sum", "centred", "rank", "loop", "copies"])
def test_functions_whose_rows_depend_on_others_are_refused(name):
    def log_likelihood(p, batch):
        x, y = batch
        return -0.5 * (y - p["slope"] * DEPENDENT[name](x)) ** 2

    model = function_model(log_likelihood, {"slope": 0.0})
    with pytest.raises(CavityError, match="`log_likelihood` for a row depends on other rows.*subclass"):
        cavity.run(cavity.PVI(model), {"york": (X, Y)}, rounds=1)


def test_a_function_that_sums_over_rows_is_refused():
    model = function_model(lambda p, y: -0.5 * jnp.sum((y - p["mean"]) ** 2), {"mean": 0.0})
    with pytest.raises(CavityError, match=r"shape \(\) for 12 rows, not one number per row.*subclass"):
        cavity.run(cavity.PVI(model), {"york": Y}, rounds=1)


def test_a_function_is_checked_once():
    calls = []

    def log_likelihood(p, y):
        calls.append(len(y))
        return -0.5 * (y - p["mean"]) ** 2

    model = function_model(log_likelihood, {"mean": 0.0})
    for size in (12, 9, 7):
        model.prepare(Y[:size])
    assert calls == [12, 6, 57]  # compiled for the example, half of it, and its rows among others
