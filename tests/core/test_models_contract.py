"""Every model against the contracts of datasets (padded, permuted, re-weighted rows) and of capabilities."""

import importlib
import inspect
import pkgutil

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
import cavity.models
from cavity.core import Data, LatentModel, Model
from cavity.core.client_data import as_data
from cavity.distributions import Beta, DiagonalGaussian, Dirichlet, FullGaussian, Gamma
from cavity.likelihoods import CategoricalSoftmax, PoissonLog
from cavity.models.mixed.grouped_regression import GroupedRegression, GroupEffects
from cavity.models.mixed.marginal import marginal_model
from cavity.models.neural.hierarchical_bnn import fedpop, hierarchical_bnn
from cavity.models.numpyro.globals_only import SERVER, as_rows
from cavity.models.survival.client_baseline import ClientBaselineRegression
from cavity.models.survival.cox import CoxRegression
from cavity.models.topics import prodlda
from tests.contracts.model import (
    NUM_ROWS,
    check_capabilities,
    check_counts_rows_by_weight,
    check_model,
    check_server_rows,
)
from tests.marks import thorough

M = cavity.models
RNG = np.random.default_rng(5)
X = RNG.normal(size=(NUM_ROWS, 2))
Z = RNG.normal(size=NUM_ROWS)
YES = (RNG.random(NUM_ROWS) < 0.5).astype(float)
COUNTS = RNG.poisson(2.0, NUM_ROWS).astype(float)
CLASSES = RNG.integers(0, 3, NUM_ROWS)
WORDS = RNG.integers(-1, 4, (NUM_ROWS, 3))
GROUPS = np.repeat(np.arange(4), 3)


def student_t(p, batch):
    return jax.scipy.stats.t.logpdf(batch, 4.0, p["location"], jnp.exp(p["log_scale"]))


def location(p, x):
    return jnp.broadcast_to(p["location"], x.shape)


def normal(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))  # no Gaussian: the server corrects the prior
    numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)


def grouped(group, y, num_groups):
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", num_groups):
        own = numpyro.sample("own", dist.Normal(level, scale))
    numpyro.sample("y", dist.Poisson(jnp.exp(own[group])), obs=y)


def grouped_model():
    return M.numpyro_model(grouped, {"group": GROUPS, "y": COUNTS}, unit="group", num_units="num_groups")


MODELS = {
    "linear, known noise": (lambda: M.linear_regression(2, noise_sd=0.7), (X, Z)),
    "linear, mean field": (lambda: M.linear_regression(2, noise_sd=0.7, covariance=DiagonalGaussian), (X, Z)),
    "linear": (lambda: M.linear_regression(2), (X, Z)),
    "logistic": (lambda: M.logistic_regression(2), (X, YES)),
    "probit": (lambda: M.probit_regression(2, covariance=DiagonalGaussian), (X, YES)),
    "Poisson": (lambda: M.poisson_regression(2), (X, COUNTS)),
    "softmax": (lambda: M.softmax_regression(2, 3), (X, CLASSES)),
    "with_shrinkage_prior": (lambda: M.with_shrinkage_prior(M.logistic_regression(2), M.Horseshoe(0.5)), (X, YES)),
    "location": (lambda: M.normal_location(2, noise_covariance=[[1.0, 0.6], [0.6, 2.0]]), X),
    "share": (lambda: M.BernoulliShare(Beta(jnp.array(2.0), jnp.array(1.0))), YES),
    "rate": (lambda: M.PoissonRate(Gamma(jnp.array(2.0), jnp.array(1.0))), COUNTS),
    "shares": (lambda: M.CategoricalShares(Dirichlet(jnp.ones(3)), 3), CLASSES),
    "function": (lambda: M.function_model(student_t, {"location": 0.0, "log_scale": 0.0}), Z),
    "predicted function": (
        lambda: M.function_model(student_t, {"location": 0.0, "log_scale": 0.0}, predictor=location),
        Z,
    ),
    "numpyro": (lambda: as_rows(M.numpyro_model(normal, {"x": Z, "y": X[:, 0]})), {"x": Z, "y": X[:, 0]}),
    "MLP classifier": (lambda: M.mlp_classifier(2, [3], 3), (X, CLASSES)),
    "MLP regression": (lambda: M.mlp_regression(2, [3], noise_sd=0.5), (X, Z)),
    "CNN": (
        lambda: M.cnn_classifier((6, 6, 1), 3, channels=(2,), kernel=3),
        (RNG.normal(size=(NUM_ROWS, 6, 6, 1)), CLASSES),
    ),
    "equinox": (
        lambda: M.equinox_model(eqx.nn.MLP(2, 3, 3, 1, key=jax.random.key(0)), CategoricalSoftmax(3)),
        (X, CLASSES),
    ),
    "bag of words": (lambda: M.bag_of_words(4, 2), (WORDS, RNG.integers(-1, 2, (NUM_ROWS, 1)))),
}


GLM = {"PredictorModel", "LinearModel", "PredictorDraws", "PredictiveModel", "ReportedModel", "OutcomeDraws"}
CLAIMS = dict.fromkeys(("linear, known noise", "linear", "logistic", "probit", "Poisson", "softmax"), GLM) | {
    "with_shrinkage_prior": {"CorrectedPrior", "PredictiveModel"},
    "location": {"LinearModel", "PredictiveModel", "ExpectedPower"},
    "predicted function": {"PredictiveModel"},
}


def some_theta(model):
    """A value inside the support that no row has to itself."""
    if not isinstance(model.prior, (FullGaussian, DiagonalGaussian)):
        return {"BernoulliShare": jnp.array(0.3), "PoissonRate": jnp.array(2.5)}.get(
            type(model).__name__, jnp.array([0.2, 0.3, 0.5])
        )
    mean = model.prior.mean
    return mean + 0.3 * jnp.asarray(np.random.default_rng(1).normal(size=mean.shape), mean.dtype)


@pytest.mark.parametrize("name", MODELS)
def test_a_likelihood_counts_rows_by_their_weights(name):
    make, batch = MODELS[name]
    model = make()
    theta, data = some_theta(model), as_data(model, batch)
    check_model(model, theta, data)
    check_server_rows(model, theta, data)


@pytest.mark.parametrize("name", MODELS)
def test_every_capability_that_a_model_claims_works(name):
    make, batch = MODELS[name]
    model = make()
    x = batch[0] if isinstance(batch, tuple) else batch
    checked = check_capabilities(model, some_theta(model), as_data(model, batch), x)
    assert checked >= CLAIMS.get(name, set())
    assert ("gaussian_rows" in checked) == (name in ("linear, known noise", "location", "linear, mean field"))
    assert ("conjugate" in checked) == (name in ("linear, known noise", "location", "share", "rate", "shares"))


@thorough
def test_a_likelihood_that_is_not_a_sum_over_rows_counts_rows_by_their_weights():
    model = marginal_model(grouped_model())
    data, z = as_data(model, {"group": GROUPS, "y": COUNTS}), jnp.array([0.3, -0.4])
    check_model(model, z, data)
    check_server_rows(model, z, data)
    assert set(model.server_entries()) == {SERVER}


def mixed_regression():
    effects = (GroupEffects(("1", "age"), "ward"),)
    return GroupedRegression(PoissonLog(), ("age", "rx"), effects, [10.0, 2.5, 1.5], [], [2.0, 1.0])


LATENT = {
    "numpyro": (grouped_model, {"group": GROUPS, "y": COUNTS}),
    "hierarchical BNN": (lambda: hierarchical_bnn(2, 2, 3), (X, CLASSES)),
    "FedPop": (lambda: fedpop(2, 2, 3), (X, CLASSES)),
    "mixed regression": (mixed_regression, {"x": X, "y": COUNTS, "z": X, "group": GROUPS}),
}


@pytest.mark.parametrize("name", LATENT)
def test_the_joint_density_of_local_latents_counts_rows_by_their_weights(name):
    make, batch = LATENT[name]
    model, data = make(), as_data(make(), batch)
    z_local = jnp.asarray(RNG.normal(size=(len(data.units.weight) + 2, model.num_local)))

    def total(z, data):
        own = z_local[: len(data.units.weight)]
        each = model.log_joint(model.theta, z, own, data, jax.random.key(0))
        return jnp.sum(jnp.asarray(data.units.weight) * each)

    check_counts_rows_by_weight(total, jnp.asarray(0.3 * RNG.normal(size=model.num_global)), data)


def test_the_joint_density_of_topics_counts_documents_by_their_weights():
    """Each document has latents of its own: one of weight 0 is left out with them."""
    model = prodlda(2, 4)
    data = as_data(model, RNG.integers(0, 5, (NUM_ROWS, 4)))
    z_local, z = jnp.asarray(RNG.normal(size=(NUM_ROWS, 2))), jnp.asarray(RNG.normal(size=model.num_global))
    joint = jax.jit(lambda own, data: model.log_joint(model.theta, z, own, data, jax.random.key(0)))
    each = joint(z_local, data)
    some = Data(jax.tree.map(lambda leaf: leaf[::-2], data.batch), data.weight[::-2], np.asarray(NUM_ROWS // 2), None)
    np.testing.assert_allclose(joint(z_local[::-2], some), each[::-2], rtol=1e-12)


@thorough
def test_the_bound_of_a_gaussian_process_counts_rows_by_their_weights():
    model = M.sparse_gp(2, num_inducing=3)
    data = as_data(model, (X, Z))
    conditional = model.conditional(model.coordinates(model.no_factor(), data))

    def bound(phi, data):
        return model.bound(phi, model.prior.conditional, conditional, data)

    check_counts_rows_by_weight(bound, model.start, data)


@thorough
def test_no_model_of_the_package_is_left_out():
    covered = {type(make()) for make, _ in (*MODELS.values(), *LATENT.values())}
    covered |= {type(marginal_model(grouped_model())), type(prodlda(2, 4)), type(M.sparse_gp(2, num_inducing=3))}
    covered |= {CoxRegression, ClientBaselineRegression}  # in tests/models/survival
    found = set()
    for module in pkgutil.walk_packages(cavity.models.__path__, "cavity.models."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {member for member in members if inspect.isclass(member) and issubclass(member, (Model, LatentModel))}
    final = {
        kind for kind in found if not any(kind in other.__mro__[1:] for other in found)
    }  # classes are abstract or final
    concrete = {kind for kind in final if not inspect.isabstract(kind)}
    assert {kind.__name__ for kind in concrete - covered} == set()
