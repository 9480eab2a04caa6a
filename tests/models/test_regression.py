"""Models: their names, their constants, their predictions, and that two ways to the same model agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import cavity
from cavity.core import Data, PredictiveModel
from cavity.distributions import Beta, DiagonalGaussian, Dirichlet, FullGaussian, Gamma, IsotropicGaussian
from cavity.errors import CavityError, DataError
from cavity.likelihoods import BernoulliLogit
from cavity.models import (
    BernoulliShare,
    CategoricalShares,
    PoissonRate,
    Regression,
    function_model,
    linear_regression,
    logistic_regression,
    poisson_regression,
    probit_regression,
    softmax_regression,
)
from cavity.models.prediction import predict_from_designs
from tests import scenarios
from tests.marks import thorough

KEY = jax.random.key(0)


def as_data(batch, weight) -> Data:
    return Data(jax.tree.map(jnp.asarray, batch), jnp.asarray(weight), jnp.asarray(len(weight)))


def moments(q):
    return np.asarray(q.mean), np.asarray(q.covariance)


def test_parameter_names():
    assert logistic_regression(["age", "dose"]).parameter_names == ("intercept", "age", "dose")
    assert poisson_regression(2, intercept=False).parameter_names == ("x1", "x2")
    assert linear_regression(["age"]).parameter_names == ("intercept", "age", "log_noise_sd")
    assert linear_regression(["age"], noise_sd=1.0).parameter_names == ("intercept", "age")
    names = ("class 1: intercept", "class 1: age", "class 2: intercept", "class 2: age")
    assert softmax_regression(["age"], 3).parameter_names == names
    model = function_model(lambda p, batch: batch, {"w": np.zeros(2), "b": 0.0})
    assert model.parameter_names == ("b", "w[0]", "w[1]")
    assert PoissonRate(Gamma(np.array(1.0), np.array(1.0))).parameter_names == ("rate",)
    assert BernoulliShare(Beta(np.array(0.0), np.array(0.0))).parameter_names == ("share",)
    assert CategoricalShares(Dirichlet(np.zeros(2)), 2).parameter_names == ("share 0", "share 1")


def test_parameters_stand_in_the_order_of_their_names():
    """The predictor of each class sees the coefficients that carry its name, the intercept first."""
    x = jnp.array([[2.0, 3.0]])
    theta = jnp.arange(1.0, 7.0) / 10  # class 1: 0.1, 0.2, 0.3; class 2: 0.4, 0.5, 0.6
    probabilities = np.exp(np.array([0, 1 + 2 * 2 + 3 * 3, 4 + 5 * 2 + 6 * 3]) / 10)
    for c in range(3):
        got = softmax_regression(2, 3).row_log_prob(theta, (x, jnp.array([float(c)])))
        np.testing.assert_allclose(got, np.log(probabilities[c] / probabilities.sum()), rtol=1e-12)
    got = linear_regression(2).row_log_prob(jnp.array([1.0, 2.0, 3.0, np.log(0.5)]), (x, jnp.array([13.0])))
    np.testing.assert_allclose(got, stats.norm.logpdf(13.0, 14.0, 0.5), rtol=1e-12)


def test_default_prior_is_a_scale_per_coefficient():
    prior = logistic_regression(2).prior
    np.testing.assert_allclose(prior.covariance, 2.5**2 * np.eye(3), rtol=1e-12)
    np.testing.assert_array_equal(prior.mean, np.zeros(3))
    scales = np.array([5.0, 1.0, 0.5])
    for family in (FullGaussian, DiagonalGaussian):
        prior = logistic_regression(2, prior_scale=scales, covariance=family).prior
        assert isinstance(prior, family)
        np.testing.assert_allclose(prior.variance, scales**2, rtol=1e-12)
    assert isinstance(logistic_regression(2000).prior, DiagonalGaussian)
    prior = logistic_regression(2, covariance=IsotropicGaussian).prior
    assert prior.precision.shape == ()
    np.testing.assert_allclose(prior.covariance, 2.5**2 * np.eye(3), rtol=1e-12)
    with pytest.raises(CavityError, match="one scale"):
        logistic_regression(2, prior_scale=scales, covariance=IsotropicGaussian)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(CavityError, match="dimension 2, but the model has 3"):
        logistic_regression(2, prior=DiagonalGaussian(np.zeros(2), np.ones(2)))
    with pytest.raises(CavityError, match="dimension 2, the parameters have 1"):
        function_model(lambda p, batch: batch, 0.0, prior=DiagonalGaussian(np.zeros(2), np.ones(2)))
    with pytest.raises(CavityError, match="positive"):
        linear_regression(2, noise_sd=0.0)
    with pytest.raises(CavityError, match="two classes"):
        softmax_regression(2, 1)
    with pytest.raises(DataError, match="coded as 0 and 1"):
        BernoulliShare(Beta(np.array(0.0), np.array(0.0))).prepare(np.array([0, 2]))
    with pytest.raises(DataError, match="counts"):
        PoissonRate(Gamma(np.array(1.0), np.array(1.0))).prepare(np.array([0.5]))
    with pytest.raises(DataError, match="0 to 1"):
        CategoricalShares(Dirichlet(np.zeros(2)), 2).prepare(np.array([0, 2]))


WEIGHT = np.array([1.0, 2.0, 0.0, 0.5, 1.0, 3.0])
CONJUGATE = {
    "linear": (
        linear_regression(2, noise_sd=0.7),
        tuple(a[:6] for a in scenarios.linear(6, 2)),
        np.random.default_rng(0).normal(size=(3, 3)),
    ),
    "bernoulli": (
        BernoulliShare(Beta(np.array(0.5), np.array(1.0))),
        np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]),
        np.array([0.2, 0.5, 0.9]),
    ),
    "poisson": (
        PoissonRate(Gamma(np.array(0.5), np.array(1.0))),
        np.array([0.0, 3.0, 1.0, 7.0, 2.0, 2.0]),
        np.array([0.2, 1.5, 4.0]),
    ),
    "categorical": (
        CategoricalShares(Dirichlet(np.array([0.5, 1.0, 0.0])), 3),
        np.array([0, 2, 2, 1, 0, 2]),
        np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]),
    ),
}


@pytest.mark.parametrize("case", CONJUGATE.values(), ids=CONJUGATE.keys())
def test_likelihood_factor_and_its_constant(case):
    """log p(data | theta) = log factor(theta) + constant, rows counted by their weights."""
    model, batch, thetas = case
    data = as_data(batch, WEIGHT)
    factor, constant = model.conjugate.likelihood_factor(data)
    for theta in jnp.asarray(thetas):
        expected = jnp.sum(data.weight * model.row_log_prob(theta, data.batch))
        np.testing.assert_allclose(factor.log_factor(theta) + constant, expected, rtol=1e-12)


def test_log_prob_of_conjugate_models_is_normalised():
    share, rate, shares = (CONJUGATE[name][0] for name in ("bernoulli", "poisson", "categorical"))
    counts = np.arange(5)
    np.testing.assert_allclose(
        share.row_log_prob(jnp.array(0.3), jnp.array([0.0, 1.0])), np.log([0.7, 0.3]), rtol=1e-12
    )
    np.testing.assert_allclose(
        rate.row_log_prob(jnp.array(2.5), jnp.asarray(counts, float)), stats.poisson.logpmf(counts, 2.5), rtol=1e-12
    )
    theta = jnp.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(shares.row_log_prob(theta, jnp.arange(3)), np.log(theta), rtol=1e-12)


POSTERIOR = FullGaussian.from_moments(
    jnp.array([0.3, 1.2, -0.5]), jnp.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.1], [0.0, -0.1, 0.8]])
)
NEW_ROWS = np.random.default_rng(4).normal(size=(6, 2))


def of_the_predictor(function):
    """E and sd of function(f) for each new row, by dense quadrature over f ~ N(x'm, x'Sx)."""
    design = np.column_stack([np.ones(6), NEW_ROWS])
    mean, variance = design @ POSTERIOR.mean, np.einsum("nd,de,ne->n", design, POSTERIOR.covariance, design)
    nodes, weights = scenarios.hermite(150)
    values = function(mean[:, None] + np.sqrt(variance)[:, None] * nodes)
    first = values @ weights
    sd = np.sqrt(values**2 @ weights - first**2)
    quantiles = function(mean + np.sqrt(variance) * stats.norm.ppf([[0.025], [0.975]]))
    return first, sd, quantiles


@thorough
@pytest.mark.parametrize(
    ("model", "function", "gap"),
    [
        (logistic_regression(2), expit, 1e-9),
        (probit_regression(2), stats.norm.cdf, 1e-9),
        (poisson_regression(2), np.exp, 1e-9),
        (linear_regression(2, noise_sd=1.0), lambda f: f, 1e-9),
    ],
    ids=["logistic", "probit", "poisson", "linear"],
)
def test_prediction(model, function, gap):
    """In closed form and by draws, against quadrature: mean, standard deviation and 95 % interval of E[y | x]."""
    mean, sd, (lower, upper) = of_the_predictor(function)
    closed = model.predict(POSTERIOR, NEW_ROWS, key=KEY, num_draws=None)
    assert np.max(np.abs(closed.mean - mean)) < gap
    np.testing.assert_allclose(closed.sd, sd, rtol=1e-5)
    np.testing.assert_allclose([closed.lower, closed.upper], [lower, upper], rtol=1e-9)

    num_draws = 40_000
    drawn = model.predict(POSTERIOR, NEW_ROWS, key=KEY, num_draws=num_draws)
    assert (np.abs(drawn.mean - mean) < 5 * sd / np.sqrt(num_draws)).all()
    for got, exact, level in ((drawn.lower, lower, 0.025), (drawn.upper, upper, 0.975)):
        # a quantile's standard error is sqrt(p (1 - p) / n) over the density; bound it by the quantiles beside it
        step = 5 * np.sqrt(0.025 * 0.975 / num_draws)
        mean_f, sd_f = predictor_moments()
        below, above = (function(mean_f + sd_f * stats.norm.ppf(level + side * step)) for side in (-1, 1))
        assert (got >= below).all()
        assert (got <= above).all()
        assert (exact >= below).all()


def test_a_count_of_draws_may_come_from_numpy():
    designs = (jnp.ones((2, 3)),)
    drawn, same = (predict_from_designs(KEY, BernoulliLogit(), POSTERIOR, designs, n) for n in (np.int64(40), 40))
    np.testing.assert_array_equal(drawn.mean, same.mean)


def predictor_moments():
    design = np.column_stack([np.ones(6), NEW_ROWS])
    return design @ POSTERIOR.mean, np.sqrt(np.einsum("nd,de,ne->n", design, POSTERIOR.covariance, design))


def test_logistic_prediction_is_the_expected_share():
    got = logistic_regression(2).predict(POSTERIOR, NEW_ROWS, key=KEY, num_draws=None).mean
    truth, _, _ = of_the_predictor(expit)
    np.testing.assert_allclose(got, truth, rtol=1e-6)


def test_softmax_prediction_by_draws():
    """Class probabilities add up to one and match a dense grid over both predictors."""
    model = softmax_regression(1, 3)
    root = 0.5 * np.array([[1.0, 0, 0, 0], [0.2, 1, 0, 0], [-0.1, 0.3, 1, 0], [0.4, 0, 0.1, 1]])
    posterior = FullGaussian.from_moments(jnp.array([0.2, -0.4, 0.5, 0.9]), jnp.asarray(root @ root.T))
    x = np.array([[-1.0], [0.0], [2.0]])
    num_draws = 20_000
    got = model.predict(posterior, x, key=KEY, num_draws=num_draws)
    nodes, weights = scenarios.hermite(40)
    z = np.stack([a.ravel() for a in np.meshgrid(nodes, nodes, indexing="ij")], -1)
    weight = np.outer(weights, weights).ravel()
    for n, row in enumerate(x[:, 0]):
        design = np.array([[1, row, 0, 0], [0, 0, 1, row]])
        mean, covariance = design @ posterior.mean, design @ posterior.covariance @ design.T
        f = np.column_stack([np.zeros(len(z)), mean + z @ np.linalg.cholesky(covariance).T])
        p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
        expected, sd = weight @ p, np.sqrt(weight @ p**2 - (weight @ p) ** 2)
        assert (np.abs(got.mean[n] - expected) < 5 * sd / np.sqrt(num_draws)).all()
    np.testing.assert_allclose(got.mean.sum(axis=1), 1.0, rtol=1e-12)


def test_prediction_ignores_the_noise_of_unknown_noise():
    model = linear_regression(2)
    wider = FullGaussian.from_moments(
        jnp.append(POSTERIOR.mean, 0.4), jnp.zeros((4, 4)).at[:3, :3].set(POSTERIOR.covariance).at[3, 3].set(0.2)
    )
    mean, sd = predictor_moments()
    got = model.predict(wider, NEW_ROWS, key=KEY, num_draws=None)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(got.sd, sd, rtol=1e-7)


def logistic_run(model, scenario=None):
    scenario = scenarios.logistic() if scenario is None else scenario
    clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(len(scenario.y), 3))
    return cavity.run(cavity.PVI(model), clients, tolerance=1e-9).posterior


@pytest.fixture(scope="module")
def logistic_posterior():
    return logistic_run(logistic_regression(2, prior_scale=2.0))


@thorough
def test_a_users_function_gives_the_same_posterior(logistic_posterior):
    """The same likelihood as a function of a dict, with its expectations over theta instead of the predictor."""

    def log_likelihood(parameters, batch):
        x, y = batch
        f = parameters["intercept"] + x @ parameters["slope"]
        return y * f - jax.nn.softplus(f)

    template = {"intercept": 0.0, "slope": np.zeros(2)}
    model = function_model(
        log_likelihood, template, prior_scale=2.0, predictor=lambda p, x: expit_of(p["intercept"] + x @ p["slope"])
    )
    own = logistic_run(model)
    # both integrate by quadrature, over three dimensions and over one
    assert scenarios.gaussian_kl(*moments(own), *moments(logistic_posterior)) < 1e-9
    num_draws = 20_000
    drawn = model.predict(jax.tree.map(jnp.asarray, own), NEW_ROWS, key=KEY, num_draws=num_draws)
    built_in = logistic_regression(2).predict(jax.tree.map(jnp.asarray, own), NEW_ROWS, key=KEY, num_draws=num_draws)
    assert (np.abs(drawn.mean - built_in.mean) < 5 * np.sqrt(2) * drawn.sd / np.sqrt(num_draws)).all()
    assert isinstance(model, PredictiveModel)
    assert not isinstance(function_model(log_likelihood, template), PredictiveModel)  # without a predictor


def expit_of(f):
    return 1 / (1 + jnp.exp(-f))


@thorough
def test_two_classes_are_a_logistic_regression(logistic_posterior):
    two = logistic_run(softmax_regression(2, 2, prior_scale=2.0))
    np.testing.assert_allclose(two.precision, logistic_posterior.precision, rtol=1e-8)
    np.testing.assert_allclose(two.precision_mean, logistic_posterior.precision_mean, rtol=1e-8)


def test_parts_can_be_put_together_by_hand():
    """`Regression` with its parts given one by one is what the function builds; an intercept is a column of ones."""
    scenario = scenarios.logistic()
    prior = FullGaussian.from_moments(jnp.zeros(3), 4.0 * jnp.eye(3))
    built = logistic_regression(["a", "b"], prior_scale=2.0)
    by_hand = Regression(prior, BernoulliLogit(), ("a", "b"))
    without = logistic_regression(3, intercept=False, prior_scale=2.0)
    theta = jnp.array([0.3, -0.5, 1.2])
    x, y = jnp.asarray(scenario.x), jnp.asarray(scenario.y)
    expected = built.row_log_prob(theta, (x, y))
    np.testing.assert_allclose(by_hand.row_log_prob(theta, (x, y)), expected, rtol=1e-12)
    with_ones = jnp.concatenate([jnp.ones((len(x), 1)), x], axis=1)
    np.testing.assert_allclose(without.row_log_prob(theta, (with_ones, y)), expected, rtol=1e-12)
    np.testing.assert_allclose(expected, -scenarios.logistic_loss(scenario.design @ theta, scenario.y)[0], rtol=1e-12)
    for model in (built, without):
        np.testing.assert_allclose(model.prior.precision, prior.precision, rtol=1e-12)


def test_a_users_weights_count_rows():
    """Rows of weight 2 are two rows, rows of weight 0 none, whoever holds them."""
    x, y = scenarios.linear(120, 2)
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    parts = scenarios.homogeneous(len(y), 2)
    weighted = {f"c{i}": cavity.Weighted((x[rows], y[rows]), weight[rows]) for i, rows in enumerate(parts)}
    repeated = [np.repeat(rows, weight[rows].astype(int)) for rows in parts]
    algorithm = cavity.PVI(linear_regression(2, noise_sd=0.7, prior_scale=3.0))
    left = cavity.run(algorithm, weighted)
    right = cavity.run(algorithm, scenarios.clients(x, y, repeated))
    h, precision = scenarios.linear_posterior(x, y, 0.7, 3.0, weight)
    for fit in (left, right):
        np.testing.assert_allclose(fit.posterior.precision, precision, rtol=1e-10)
        np.testing.assert_allclose(fit.posterior.precision_mean, h, rtol=1e-10)
    np.testing.assert_allclose(left.history[-1]["free_energy"], right.history[-1]["free_energy"], rtol=1e-12)


def unknown_noise_grid(scenario):
    """The exact posterior's mean and covariance, on a dense grid."""

    def log_density(theta):
        f = theta[:, :1] + theta[:, 1:2] * scenario.x[:, 0]
        z = (scenario.y - f) * np.exp(-theta[:, 2:])
        log_likelihood = -0.5 * np.sum(z**2, axis=1) - len(scenario.y) * theta[:, 2]
        return log_likelihood - 0.5 * np.sum(theta**2, axis=1) / scenario.prior_scale**2

    mean, covariance = scenarios.gaussian_optimum(scenario, mean_field=False)
    return scenarios.grid_moments(log_density, mean, np.sqrt(np.diag(covariance)))


@thorough
def test_unknown_noise():
    """At the optimum of the closed-form free energy, and near the exact posterior on a dense grid."""
    scenario = scenarios.unknown_noise()
    clients = scenarios.clients(scenario.x, scenario.y, scenarios.homogeneous(len(scenario.y), 3))
    model = linear_regression(1, prior_scale=scenario.prior_scale)
    fit = cavity.run(cavity.PVI(model), clients, tolerance=1e-9)
    mean, covariance = moments(fit.posterior)
    optimum = scenarios.gaussian_optimum(scenario, mean_field=False)
    assert scenarios.gaussian_kl(mean, covariance, *optimum) < 1e-7
    exact_mean, exact_covariance = unknown_noise_grid(scenario)
    sd = np.sqrt(np.diag(exact_covariance))
    # skewness of the exact posterior is of order 1 / sqrt(n), so the best Gaussian's moments are off by order 1 / n
    assert np.max(np.abs(mean - exact_mean) / sd) < 3 / len(scenario.y)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), sd, rtol=3 / len(scenario.y))
