"""Mixed models by PVI: all that a regression offers, with latents of units that stay at their client."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize

import cavity
from cavity.aggregation import Fixed
from cavity.distributions.quadrature import hermite_grid
from cavity.errors import CavityError
from cavity.evaluation import diagnostics
from cavity.evaluation.integration import integration
from cavity.models import MarginalModel, marginal_model, numpyro_model
from cavity.models.latent_prior import SERVER
from tests.marks import thorough

NOISE, NUM_GROUPS = 0.6, 18


def measured(group, x, num_groups, y=None):
    """A Gaussian mixed model with a prior of its group sd that is no Gaussian on the log scale."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    between = numpyro.sample("between", dist.HalfNormal(2.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(0.0, between))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(level + slope * x + own[group], NOISE), obs=y)


def columns():
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(NUM_GROUPS), rng.integers(2, 7, NUM_GROUPS))
    x = rng.normal(size=len(group))
    y = 1.0 + 0.5 * x + rng.normal(0, 0.9, NUM_GROUPS)[group] + rng.normal(0, NOISE, len(group))
    return {"group": group, "x": x, "y": y}


def clients():
    data = columns()
    return {
        name: {key: column[data["group"] % 3 == i] for key, column in data.items()}
        for i, name in enumerate(["york", "leeds", "hull"])
    }


def log_posterior(z, data):
    """By hand, at many points z [s, 3]: a group's rows have the covariance NOISE^2 I + between^2 11'."""
    level, slope, log_between = z.T
    between = np.exp(log_between)
    found = -0.5 * (level**2 + slope**2) / 25 - 0.5 * (between / 2.0) ** 2 + log_between
    for group in np.unique(data["group"]):
        mine = data["group"] == group
        rest = data["y"][mine] - level[:, None] - slope[:, None] * data["x"][mine]
        whole = NOISE**2 + mine.sum() * between**2
        square = np.sum(rest**2, axis=1) - np.sum(rest, axis=1) ** 2 * between**2 / whole
        found += -0.5 * square / NOISE**2 - 0.5 * np.log(whole)
    return found


def exact(data):
    """Mean and sd of level, slope and log between on a grid around the posterior."""
    axes = [np.linspace(0.2, 1.9, 31), np.linspace(0.1, 0.9, 31), np.linspace(-3.0, 1.2, 71)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    log_p = log_posterior(grid, data)
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    mean = weight @ grid
    return mean, np.sqrt(weight @ (grid - mean) ** 2)


@pytest.fixture(scope="module")
def model():
    return numpyro_model(
        measured, {key: column[:6] for key, column in columns().items()}, unit="group", num_units="num_groups"
    )


@pytest.fixture(scope="module")
def fit(model):
    return cavity.run(cavity.PVI(model), clients(), rounds=12, tolerance=1e-8)


def test_names_are_in_the_order_of_the_posterior(model):
    """The program has its sites in another order than the alphabet; each name is that of the entry which moves it."""
    marginal = marginal_model(model)
    names, start = marginal.parameter_names, np.asarray(marginal.prior.mean)
    assert list(names) != sorted(names)
    before = marginal.constrain(start)
    for place, name in enumerate(names):
        after = marginal.constrain(start + 0.1 * np.eye(len(start))[place])
        assert [key for key in before if not np.array_equal(before[key], after[key])] == [name]


def closest_gaussian(data):
    """Mean and covariance of the Gaussian with the largest bound, by scipy and a fine grid of nodes."""
    nodes, weights = hermite_grid(3, 12)
    rows, below = np.tril_indices(3)

    def parts(v):
        root = np.zeros((3, 3))
        root[rows, below] = v[3:]
        return v[:3], root

    def negative_bound(v):
        mean, root = parts(v)
        return -weights @ log_posterior(mean + nodes @ root.T, data) - np.sum(np.log(np.abs(np.diag(root))))

    mean, sd = exact(data)
    start = np.concatenate([mean, np.diag(sd)[rows, below]])
    mean, root = parts(minimize(negative_bound, start, method="BFGS").x)
    return mean, root @ root.T


@thorough
def test_it_is_the_closest_gaussian(fit):
    assert isinstance(fit.algorithm.model, MarginalModel)
    assert fit.converged
    mean, covariance = closest_gaussian(columns())
    q, sd = fit.posterior, np.sqrt(np.diag(covariance))
    np.testing.assert_allclose((np.asarray(q.mean) - mean) / sd, 0.0, atol=0.01)
    np.testing.assert_allclose(np.asarray(q.covariance) / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.01)


@thorough
def test_it_is_near_the_exact_posterior(fit):
    """As near as a Gaussian is: the closest one has an sd of the level that is 6.6 % too small."""
    mean, sd = exact(columns())
    q = fit.posterior
    np.testing.assert_allclose((np.asarray(q.mean) - mean) / sd, 0.0, atol=0.05)
    np.testing.assert_allclose(np.sqrt(np.diag(np.asarray(q.covariance))), sd, rtol=0.07)


@thorough
def test_clients_agree_with_pooled_rows(fit, model):
    pooled = cavity.run(cavity.PVI(model), {"all": columns()}, rounds=12, tolerance=1e-8)
    assert diagnostics.kl(fit.posterior, pooled.posterior) < 1e-6
    assert fit.log_evidence == pytest.approx(pooled.log_evidence, abs=1e-3)
    early = [record["gap"] for record in fit.history][:4]
    assert early[3] < 1e-3


@thorough
def test_the_summary_says_how_latents_were_integrated_out(fit):
    text = str(fit.summary())
    for word in ("level", "slope", "between", "adaptive quadrature", "7 nodes per latent", "approximation:"):
        assert word in text
    assert fit.summary()["between"].mean > 0  # on the scale of the model's author
    found = integration(fit)
    assert found.orders == (7,)
    assert found.error < 1e-9  # Gaussian units are exact
    assert fit.client_names == ["york", "leeds", "hull"]


@thorough
def test_the_verdict_is_known(fit):
    """Its corrected values are near the exact ones."""
    assert fit.verdict.verdict == "rough"
    mean, sd = exact(columns())
    np.testing.assert_allclose(list(fit.verdict.sds.values()), sd, rtol=0.06)
    np.testing.assert_allclose((np.array(list(fit.verdict.means.values())) - mean) / sd, 0.0, atol=0.05)


@thorough
def test_a_client_sees_its_units(fit):
    """Against the posterior of a group's mean given the shared parameters, averaged over them by hand."""
    local = fit.local("york")
    summary = local.summary(num_draws=2000)
    data = clients()["york"]
    z = np.random.default_rng(0).multivariate_normal(
        np.asarray(fit.posterior.mean), np.asarray(fit.posterior.covariance), 4000
    )
    for group in np.unique(data["group"])[:2]:
        mine = data["group"] == group
        precision = mine.sum() / NOISE**2 + np.exp(-2 * z[:, 2])
        rest = np.sum(data["y"][mine][None] - z[:, :1] - z[:, 1:2] * data["x"][mine][None], axis=1)
        centre = rest / NOISE**2 / precision
        row = summary[f"own[{group}]"]
        sd = np.sqrt(np.mean(1 / precision) + np.var(centre))
        assert row.mean == pytest.approx(centre.mean(), abs=0.1 * sd)
        assert row.sd == pytest.approx(sd, rel=0.1)
    with pytest.raises(CavityError, match="no client 'oslo'"):
        fit.local("oslo")


@thorough
def test_it_predicts_new_groups(fit):
    x = {"group": np.array([90, 91]), "x": np.array([0.0, 1.0])}
    prediction = fit.predict(x, num_draws=500)
    between = float(np.exp(np.asarray(fit.posterior.mean)[2]))
    assert prediction.sd[0] == pytest.approx(between, rel=0.35)


@thorough
def test_a_client_leaves_and_joins_again(fit, model):
    without = fit.withdraw("hull")
    two = {name: data for name, data in clients().items() if name != "hull"}
    direct = cavity.run(cavity.PVI(model), two, tolerance=1e-8)
    assert diagnostics.kl(without.posterior, direct.posterior) < 1e-5
    back = without.join("hull", clients()["hull"])
    assert diagnostics.kl(back.posterior, fit.posterior) < 1e-5
    assert set(fit.influence(refine=False)) == {"york", "leeds", "hull"}


@thorough
def test_it_is_saved_and_loaded(fit, tmp_path):
    fit.save(tmp_path / "fit.npz")
    loaded = cavity.load(tmp_path / "fit.npz", algorithm=fit.algorithm, clients=clients())
    np.testing.assert_array_equal(loaded.posterior.precision, fit.posterior.precision)
    assert SERVER in loaded.server.names
    assert loaded.local("leeds").labels == fit.local("leeds").labels


def test_what_cannot_be_integrated_out_is_refused():
    def wide(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("units", len(y)):
            own = numpyro.sample("own", dist.Normal(level, 1.0).expand([9]).to_event(1))
            numpyro.sample("y", dist.Normal(jnp.sum(own, axis=-1), 1.0), obs=y)

    with pytest.raises(CavityError, match="9 local latents.*use SFVI"):
        cavity.PVI(numpyro_model(wide, {"y": np.zeros(3)}))

    def learned(y):
        scale = numpyro.param("scale", 1.0)
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("units", len(y)):
            own = numpyro.sample("own", dist.Normal(level, 1.0))
            numpyro.sample("y", dist.Normal(own, scale**2), obs=y)

    with pytest.raises(CavityError, match="learned"):
        marginal_model(numpyro_model(learned, {"y": np.zeros(3)}))


@pytest.mark.slow
def test_one_unit_per_client_with_a_vague_prior():
    """Eight schools over eight clients: undamped rounds overshoot and never end."""
    effect = np.array([28.39, 7.94, -2.75, 6.82, -0.64, 0.63, 18.01, 12.16])
    error = np.array([14.9, 10.2, 16.3, 11.0, 9.4, 11.4, 10.4, 17.6])

    def schools(effect, error):
        mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
        log_tau = numpyro.sample("log_tau", dist.Normal(np.log(5.0), 4.0))
        with numpyro.plate("schools", len(error)):
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mu + jnp.exp(log_tau) * own, error), obs=effect)

    model = numpyro_model(schools, {"effect": effect, "error": error})
    pooled = cavity.run(cavity.PVI(model), {"all": {"effect": effect, "error": error}}, tolerance=1e-9).posterior
    each = {f"school {i}": {"effect": effect[i : i + 1], "error": error[i : i + 1]} for i in range(8)}
    kl = {"kl": lambda q: diagnostics.kl(q, pooled)}
    undamped = cavity.run(cavity.PVI(model, damping=Fixed(1.0)), each, rounds=12, tolerance=0.0, metrics=kl)
    assert min(record["kl"] for record in undamped.history) > 0.1
    fit = cavity.run(cavity.PVI(model), each, rounds=12, tolerance=0.0, metrics=kl)
    assert min(record["kl"] for record in fit.history[:7]) < 1e-2
    assert fit.history[-1]["kl"] < 1e-3
