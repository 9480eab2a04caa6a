"""Vague priors: where a model starts, which posterior it has, and which runs have not converged.

The data of the surgical and the seeds model are those of the BUGS examples, volume 1 ("Surgical: institutional ranking"
and "Seeds: random effect logistic regression"; Spiegelhalter, Thomas, Best and Gilks, 1996; the seeds are from Crowder,
1978). Both are compared with NUTS on the pooled rows. The random effects' sd is compared on its own scale, sigma =
tau ** -0.5, as BUGS reports it: log tau has a long tail to the right, where sigma goes to 0, which no Gaussian has.
"""

from __future__ import annotations

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import cavity
from cavity.models import numpyro_model
from cavity_experiments.mixed_models import by_nuts
from tests.marks import exhaustive, thorough

VAGUE = 1e-3
SURGICAL = {
    "operations": np.array([47, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360]),
    "deaths": np.array([0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24]),
}
SEEDS = {
    "seeds": np.array([39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]),
    "germinated": np.array([10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3]),
    "kind": np.repeat([0.0, 1.0], [11, 10]),
    "extract": np.repeat([0.0, 1.0, 0.0, 1.0], [5, 6, 5, 5]),
}


def surgical(operations, deaths):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1000.0))
    tau = numpyro.sample("tau", dist.Gamma(VAGUE, VAGUE))
    with numpyro.plate("hospitals", len(operations)):
        level = numpyro.sample("level", dist.Normal(mu, tau**-0.5))
        numpyro.sample("y", dist.Binomial(operations, logits=level), obs=deaths)


def surgical_by_variance(operations, deaths):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1000.0))
    variance = numpyro.sample("variance", dist.InverseGamma(VAGUE, VAGUE))
    with numpyro.plate("hospitals", len(operations)):
        level = numpyro.sample("level", dist.Normal(mu, variance**0.5))
        numpyro.sample("y", dist.Binomial(operations, logits=level), obs=deaths)


def germination(seeds, germinated, kind, extract):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 1000.0).expand([4]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(VAGUE, VAGUE))
    with numpyro.plate("plates", len(seeds)):
        level = numpyro.sample("level", dist.Normal(0.0, tau**-0.5))
        logits = alpha[0] + alpha[1] * kind + alpha[2] * extract + alpha[3] * kind * extract + level
        numpyro.sample("y", dist.Binomial(seeds, logits=logits), obs=germinated)


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    tau = numpyro.sample("tau", dist.Gamma(VAGUE, VAGUE))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, tau**-0.5), obs=y)


OUTCOMES = np.random.default_rng(0).normal(3.0, 2.0, 120)


def shared_out(columns, num_clients):
    return {
        f"client {j}": {name: column[j::num_clients] for name, column in columns.items()} for j in range(num_clients)
    }


@thorough
@pytest.mark.parametrize("prior", [dist.Gamma(VAGUE, VAGUE), dist.InverseGamma(VAGUE, VAGUE), dist.Gamma(0.1, 0.1)])
def test_a_vague_prior_starts_a_few_units_from_zero(prior):
    """Its median is exp(-628), exp(628) or exp(-5)."""

    def function(y):
        scale = numpyro.sample("scale", prior)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    model = numpyro_model(function, {"y": OUTCOMES[:3]})
    assert abs(float(model.begin[0][0])) <= 3.0


def test_an_informative_prior_starts_at_its_median():
    def function(y):
        level = numpyro.sample("level", dist.Normal(20_000.0, 2.0))
        scale = numpyro.sample("scale", dist.LogNormal(9.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(level, scale), obs=y)

    start = np.asarray(numpyro_model(function, {"y": OUTCOMES[:3]}).begin[0])
    np.testing.assert_allclose(start, [20_000.0, 9.0], atol=0.6)  # of 200 draws


def by_grid():
    """Mean and sd of mu and log tau, by a sum over a grid."""
    mu, log_tau = np.meshgrid(np.linspace(1.5, 5.0, 401), np.linspace(-2.5, 0.0, 401), indexing="ij")
    tau, y = np.exp(log_tau), OUTCOMES
    squares = np.sum((y - y.mean()) ** 2) + len(y) * (mu - y.mean()) ** 2
    log_density = (VAGUE + len(y) / 2) * log_tau - VAGUE * tau - tau * squares / 2 - mu**2 / 2e4
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    means = np.array([np.sum(weight * part) for part in (mu, log_tau)])
    sds = np.sqrt([np.sum(weight * (part - mean) ** 2) for part, mean in zip((mu, log_tau), means, strict=True)])
    return means, sds


@pytest.mark.parametrize("double", [True, False])
@thorough
def test_a_mean_and_a_precision_by_pvi(double):
    """In single precision too, which is JAX's default."""
    with jax.enable_x64(double):
        model = numpyro_model(normal, {"y": OUTCOMES})
        fit = cavity.run(cavity.PVI(model), shared_out({"y": OUTCOMES}, 3))
    mean, sd = cavity.evaluation.diagnostics.moments(fit.posterior)
    means, sds = by_grid()
    assert fit.converged
    assert np.abs((mean - means) / sds).max() < 0.05
    assert np.abs(sd / sds - 1).max() < 0.05


@thorough
def test_a_start_without_a_gradient_has_not_converged():
    """At tau = exp(-600) all gradients vanish: the gaps are 0, but tau is not determined."""
    model = numpyro_model(normal, {"y": OUTCOMES}, start={"tau": -600.0})
    fit = cavity.run(cavity.PVI(model), shared_out({"y": OUTCOMES}, 3))
    assert not fit.converged
    assert "not converged: tau at the limit of floating point; give a less vague prior" in str(fit.summary())


@thorough
def test_a_posterior_wider_than_its_prior_has_not_converged():
    """A likelihood of exp(0.3 level^2) takes 0.6 of the prior's precision of 1."""

    def pushed(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.factor("y", 0.3 * level**2 + 0.0 * y)

    model = numpyro_model(pushed, {"y": np.zeros(1)})
    fit = cavity.run(cavity.PVI(model), {"a": {"y": np.zeros(1)}})
    assert not fit.converged
    assert "the sd of level is above the prior's" in str(fit.summary())


def compared(fit, reference, names):
    """By how many of NUTS's sds the mean of each is off; sigma by draws of the fit."""
    q = fit.posterior.q.gaussian
    mean, sd = cavity.evaluation.diagnostics.moments(q)
    found = dict(zip(names, mean, strict=False)) | {"sigma": float(np.exp(-mean[-1] / 2 + sd[-1] ** 2 / 8))}
    reference = reference | {"sigma": reference["tau"] ** -0.5}
    return {name: abs(found[name] - reference[name].mean()) / reference[name].std() for name in found}


@exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [4, 12])
def test_surgical(num_clients):
    reference, r_hat, _ = by_nuts(surgical, SURGICAL, num_draws=4000, seed=0, free_of=("level",))
    fit = cavity.run(cavity.SFVI(numpyro_model(surgical, SURGICAL)), shared_out(SURGICAL, num_clients))
    assert r_hat < 1.01
    assert fit.converged
    assert len(fit.history) < 3000
    off = compared(fit, reference, ["mu"])
    assert max(off.values()) < 0.15, off


@exhaustive
@pytest.mark.slow
def test_surgical_with_a_variance():
    """The same posterior in other words."""
    fits = [
        cavity.run(cavity.SFVI(numpyro_model(function, SURGICAL)), shared_out(SURGICAL, 4))
        for function in (surgical, surgical_by_variance)
    ]
    assert all(fit.converged for fit in fits)
    (one, sd), (other, _) = (cavity.evaluation.diagnostics.moments(fit.posterior.q.gaussian) for fit in fits)
    np.testing.assert_allclose(one / sd, np.array([1.0, -1.0]) * other / sd, atol=0.15)


@exhaustive
@pytest.mark.slow
def test_seeds():
    reference, r_hat, _ = by_nuts(germination, SEEDS, num_draws=4000, seed=0, free_of=("level",))
    fit = cavity.run(cavity.SFVI(numpyro_model(germination, SEEDS)), shared_out(SEEDS, 3))
    assert r_hat < 1.01
    assert fit.converged
    off = compared(fit, reference, [f"alpha[{i}]" for i in range(4)])
    assert max(off.values()) < 0.15, off


@pytest.mark.slow
def test_a_mean_and_a_precision_by_sfvi():
    fit = cavity.run(cavity.SFVI(numpyro_model(normal, {"y": OUTCOMES})), shared_out({"y": OUTCOMES}, 3))
    means, sds = by_grid()
    assert fit.converged
    assert np.abs((cavity.evaluation.diagnostics.moments(fit.posterior.q.gaussian)[0] - means) / sds).max() < 0.15
