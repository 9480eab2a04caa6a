"""Numbers out of range, and parts that do not fit: each is refused at construction, with the reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cavity
from cavity.core.fields import require_kind
from cavity.distributions import Beta as BetaShare
from cavity.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian
from cavity.divergences import KL, FDivergence, FisherRao, Renyi, ReverseKL, WeightedKL
from cavity.errors import CavityError, UnsuitableError
from cavity.losses import (
    Beta,
    Gamma,
    GeneralisedCrossEntropy,
    InverseMultiQuadric,
    NegativeLogLikelihood,
    ScoreMatching,
    SquaredExponential,
    Tempered,
)
from cavity.models import (
    BernoulliShare,
    Regression,
    function_model,
    linear_regression,
    logistic_regression,
    normal_location,
    poisson_regression,
)
from cavity.solvers import LBFGS, Conjugate, FixedPoint, NaturalGradient, StochasticNaturalGradient
from tests.doubles import CauchyNoise

NAN, INF = float("nan"), float("inf")

# a part, numbers that it refuses, a word of the reason, and numbers that it takes
NUMBERS = {
    "beta": (Beta, [0.0, -0.5, NAN, INF], "beta must be positive", [1e-6, 3.0]),
    "gamma": (Gamma, [1.0, 0.5, -2.0, NAN, INF], "gamma must exceed 1", [1 + 1e-6, 3.0]),
    "delta": (GeneralisedCrossEntropy, [0.0, -0.1, 1.01, NAN], "delta must be above 0", [1e-6, 1.0]),
    "alpha": (Renyi, [-1e-9, -2.0, NAN, INF], "alpha of the Renyi divergence", [0.0, 0.5, 1.0, 7.0]),
    "w": (WeightedKL, [0.0, -1.0, NAN, INF], "w of KL / w must be positive", [1e-3, 4.0]),
    "weight": (Tempered, [0.0, -1.0, NAN, INF], "weight of a loss must be positive", [1e-3, 4.0]),
    "width": (SquaredExponential, [0.0, -1.0, NAN], "width of the weights must be positive", [0.1, 1e6]),
    "width of another": (InverseMultiQuadric, [0.0, -1.0, NAN], "width of the weights must be positive", [0.1]),
    "a": (lambda a: InverseMultiQuadric(1.0, a), [0.24, 0.0, -1.0, NAN], "a must be at least 1/4", [0.25, 2.0]),
}


@pytest.mark.parametrize(("part", "bad", "reason", "good"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_out_of_range(part, bad, reason, good):
    for number in bad:
        with pytest.raises(CavityError, match=reason) as caught:
            part(number)
        assert f"{number}"[:4] in str(caught.value)  # it names what it was given
    for number in good:
        part(number)
        part(np.float32(number))


def test_f_must_vanish_at_one():
    with pytest.raises(CavityError, match=r"f\(1\) must be 0"):
        FDivergence(lambda u: u**2)
    with pytest.raises(CavityError, match=r"f\(1\) must be 0"):
        FDivergence(lambda u: jnp.log(u - 1.0))


def log_likelihood(parameters, batch):
    return -0.5 * (batch - parameters) ** 2


LINEAR = linear_regression(1, noise_sd=1.0)
MEAN_FIELD = linear_regression(1, noise_sd=1.0, covariance=DiagonalGaussian)
ISOTROPIC = linear_regression(1, noise_sd=1.0, covariance=IsotropicGaussian)
UNKNOWN = linear_regression(1)
LOGISTIC = logistic_regression(1)
CAUCHY = Regression(FullGaussian(jnp.zeros(2), jnp.eye(2)), CauchyNoise(), ("x",))
FUNCTION = function_model(log_likelihood, 0.0)
SHARE = BernoulliShare(BetaShare.from_concentrations(jnp.asarray(1.0), jnp.asarray(1.0)))
SCORES = ScoreMatching(SquaredExponential(2.0))
NLL = NegativeLogLikelihood()

# the arguments of FedGVI, a solver, and the reason
UNSUITABLE = {
    "score matching of classes": ((LOGISTIC, SCORES), None, "discrete"),
    "score matching of counts": ((poisson_regression(1), SCORES), None, "discrete"),
    "score matching of unknown noise": ((UNKNOWN, SCORES), None, "known noise"),
    "score matching of a function": ((FUNCTION, SCORES), None, "known noise"),
    "tempered score matching of classes": ((LOGISTIC, Tempered(0.5, SCORES)), None, "discrete"),
    "cross entropy of densities": ((LINEAR, GeneralisedCrossEntropy(0.5)), None, "probabilities"),
    "cross entropy of unknown noise": ((UNKNOWN, GeneralisedCrossEntropy(0.5)), None, "probabilities"),
    "cross entropy of vectors": ((normal_location(2), GeneralisedCrossEntropy(0.5)), None, "probabilities"),
    "beta without predictors": ((FUNCTION, Beta(0.5)), None, "predictors; FunctionModel has none"),
    "gamma without predictors": ((SHARE, Gamma(1.5)), None, "predictors; BernoulliShare has none"),
    "tempered beta without predictors": ((FUNCTION, Tempered(0.5, Beta(0.5))), None, "predictors"),
    "beta without integrals": ((CAUCHY, Beta(0.5)), None, "beta loss needs the integral.*Cauchy"),
    "gamma without integrals": ((CAUCHY, Gamma(1.5)), None, "gamma loss needs the integral.*Cauchy"),
    "Fisher-Rao of a full Gaussian": ((LINEAR, NLL, FisherRao()), None, "mean-field.*FullGaussian"),
    "Fisher-Rao of an isotropic Gaussian": ((ISOTROPIC, NLL, FisherRao()), None, "mean-field.*IsotropicGaussian"),
    "Renyi of shares": ((SHARE, NLL, Renyi(2.0)), None, "for Gaussian families"),
    "f-divergence of shares": ((SHARE, NLL, FDivergence(lambda u: u * jnp.log(u))), None, "for Gaussian families"),
    "natural gradient with Renyi": ((LINEAR, NLL, Renyi(2.0)), NaturalGradient(), "KL.*Renyi.*LBFGS"),
    "natural gradient with reverse KL": ((LINEAR, NLL, ReverseKL()), NaturalGradient(), "KL.*ReverseKL.*LBFGS"),
    "fixed point with Renyi": ((LINEAR, NLL, Renyi(2.0)), FixedPoint(), "KL.*Renyi"),
    "noisy natural gradient with Renyi": ((LINEAR, NLL, Renyi(2.0)), StochasticNaturalGradient(), "KL.*Renyi"),
    "closed form with beta": ((LINEAR, Beta(0.5)), Conjugate(), "negative log likelihood.*Beta"),
    "closed form with a tempered beta": ((LINEAR, Tempered(0.5, Beta(0.5))), Conjugate(), "negative log likelihood"),
    "closed form with Renyi": ((LINEAR, NLL, Renyi(2.0)), Conjugate(), "Renyi"),
    "closed form of mean field": ((MEAN_FIELD, NLL), Conjugate(), "full-covariance"),
}


@pytest.mark.parametrize(("parts", "solver", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_parts_that_do_not_fit(parts, solver, reason):
    with pytest.raises(UnsuitableError, match=reason):
        cavity.FedGVI(*parts, solver=solver)


@pytest.mark.parametrize("divergence", [FisherRao(), Renyi(2.0)], ids=["Fisher-Rao", "Renyi"])
def test_the_server_checks_its_divergence_too(divergence):
    model, reason = (LINEAR, "mean-field") if isinstance(divergence, FisherRao) else (SHARE, "for Gaussian families")
    with pytest.raises(UnsuitableError, match=reason):
        cavity.FedGVI(model, NLL, server_divergence=divergence)


def test_parts_that_fit():
    """Their neighbours are accepted, with a solver that can carry them."""
    fedgvi = cavity.FedGVI
    assert isinstance(fedgvi(LINEAR, NLL).solver, Conjugate)
    assert isinstance(fedgvi(LINEAR, SCORES, WeightedKL(2.0)).solver, Conjugate)
    assert isinstance(fedgvi(normal_location(2), Tempered(0.5, SCORES)).solver, Conjugate)
    assert isinstance(fedgvi(SHARE, Tempered(0.5)).solver, Conjugate)
    assert isinstance(fedgvi(LINEAR, Beta(0.5)).solver, NaturalGradient)
    assert isinstance(fedgvi(UNKNOWN, Gamma(1.5), WeightedKL(2.0)).solver, NaturalGradient)
    assert isinstance(fedgvi(LOGISTIC, GeneralisedCrossEntropy(1.0)).solver, NaturalGradient)
    assert isinstance(fedgvi(MEAN_FIELD, NLL, FisherRao(), server_divergence=FisherRao()).solver, LBFGS)
    assert isinstance(fedgvi(LINEAR, Beta(0.5), Renyi(2.0)).solver, LBFGS)
    assert isinstance(fedgvi(CAUCHY, NLL).divergence, KL)


def test_a_traced_number_is_not_looked_at():
    """A sweep over a number is one program."""
    f, y = jnp.zeros((1, 1)), jnp.ones(1)
    sweep = jax.jit(jax.vmap(lambda beta: Beta(beta).of_predictor(LOGISTIC.likelihood, f, y)[0]))
    each = [Beta(beta).of_predictor(LOGISTIC.likelihood, f, y)[0] for beta in (0.2, 1.0)]
    np.testing.assert_allclose(sweep(jnp.array([0.2, 1.0])), each, rtol=1e-12)


def test_a_part_of_another_kind_is_named():
    """By its class if it is a part of Cavity, by its value otherwise."""
    kl = KL()
    assert require_kind(kl, KL, "give KL") is kl
    for value, name in ((0.5, "0.5"), ("KL", "'KL'"), (Beta(0.5), "Beta")):
        with pytest.raises(UnsuitableError) as error:
            require_kind(value, KL, "give KL", UnsuitableError)
        assert str(error.value) == f"give KL, not {name}"


def test_only_kl_itself_is_kl():
    """A weight of 1 is still a multiple: the server takes its power of the factors."""
    assert KL().is_kl
    assert not WeightedKL(1.0).is_kl
    assert WeightedKL(1.0).kl_weight == 1.0
    assert Renyi(0.5).kl_weight is None
