"""Every kind of group term, fitted with default settings: estimates, predictions, local posteriors, and saved fits."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from scipy import stats

import cavity
from tests.marks import exhaustive, thorough

SLOPE = 0.4


def hospitals(family, num_groups=6, size=6, seed=0):
    """An intercept and a slope of each group; x is not centred."""
    rng, found = np.random.default_rng(seed), {}
    for client in ("york", "leeds", "hull"):
        ward = np.repeat([f"{client}-{i}" for i in range(num_groups)], size)
        level, tilt = np.repeat(rng.normal(0, [[0.8], [0.2]], (2, num_groups)), size, axis=1)
        x = rng.normal(1.0, 2.0, len(ward))
        f = 0.2 + SLOPE * x + level + tilt * x
        y = {
            "gaussian": lambda f=f: 10 + 5 * (f + rng.normal(0, 0.7, len(f))),
            "bernoulli": lambda f=f: rng.random(len(f)) < 1 / (1 + np.exp(-f)),
            "poisson": lambda f=f: rng.poisson(np.exp(f / 2)),
        }[family]()
        found[client] = {"y": y, "x": x, "ward": ward}
    return found


@exhaustive
@thorough
@pytest.mark.parametrize(
    ("family", "term", "effects"),
    [
        ("poisson", "(1 | ward)", ["1|ward"]),
        ("bernoulli", "(0 + x | ward)", ["x|ward"]),
        ("bernoulli", "(x || ward)", ["1|ward", "x|ward"]),
        ("gaussian", "(x | ward)", ["1|ward", "x|ward"]),
        ("bernoulli", "(1 | client)", ["1|client"]),
    ],
)
def test_every_kind_of_group_term_is_fitted(family, term, effects):
    fit = cavity.regression(f"y ~ x + {term}", hospitals(family), family=family, rounds=30, tolerance=1e-3)
    assert fit.converged
    summary = fit.summary()
    names = [estimate.name for estimate in summary]
    expected = ["intercept", "x", *(["sigma"] if family == "gaussian" else []), *(f"{name}_sigma" for name in effects)]
    assert names == expected + (["1,x|ward_corr"] if term == "(x | ward)" else [])
    slope = {"gaussian": 5 * SLOPE, "poisson": SLOPE / 2, "bernoulli": SLOPE}[family]
    assert summary["x"].mean == pytest.approx(slope, abs=4 * summary["x"].sd)
    assert all(summary[f"{name}_sigma"].lower > 0 for name in effects)


@pytest.fixture(scope="module")
def fit():
    return cavity.regression("y ~ x + (1 | ward)", hospitals("gaussian"), family="gaussian", rounds=20, tolerance=1e-5)


@exhaustive
@thorough
def test_normal_outcomes_have_the_posterior_of_their_normal_density(fit):
    """Against importance weights computed with scipy, in the units of the data."""
    encoding = fit.algorithm.model.latent.encoding
    rows = {
        name: np.concatenate([each[name] for each in hospitals("gaussian").values()]) for name in ("y", "x", "ward")
    }
    scale = encoding.scaling.outcome.scale
    draws = fit.posterior.sample(jax.random.key(0), (1500,))
    values = jax.vmap(fit.algorithm.model.constrain)(draws)
    same = rows["ward"][:, None] == rows["ward"][None]
    log_p = []
    for i in range(len(draws)):
        value = {name: float(column[i]) for name, column in values.items()}
        covariance = value["sigma"] ** 2 * np.eye(len(same)) + value["1|ward_sigma"] ** 2 * same
        mean = value["intercept"] + value["x"] * rows["x"]
        log_p.append(stats.multivariate_normal.logpdf(rows["y"], mean, covariance))
    # the priors of the study, on the scale that the model computes on
    intercept, slope, log_sigma, log_sd = np.asarray(draws).T
    log_prior = stats.norm.logpdf(np.stack([intercept, slope]), 0, 2.5).sum(axis=0)
    log_prior = log_prior + stats.norm.logpdf(log_sigma, 0, np.asarray(fit.algorithm.model.latent.family_scale)[0])
    log_prior = log_prior + stats.halfnorm.logpdf(np.exp(log_sd), scale=2.5) + log_sd
    log_w = np.array(log_p) + log_prior - np.asarray(jax.vmap(fit.posterior.log_prob)(draws))
    weight = np.exp(log_w - log_w.max())
    weight = weight / weight.sum()
    assert np.std(log_w) < 0.5
    for name in ("intercept", "x", "sigma"):
        corrected = weight @ np.asarray(values[name])
        assert fit.summary()[name].mean == pytest.approx(corrected, abs=0.15 * fit.summary()[name].sd)
    assert scale > 1  # the outcome is scaled


@thorough
def test_predictions_and_the_posterior_of_a_clients_groups(fit):
    new = {"x": np.array([0.0, 1.0]), "ward": np.array(["york-1", "elsewhere"])}
    own = fit.local("york").summary(num_draws=300)
    assert [estimate.name for estimate in own] == [f"1|ward[york-{i}]" for i in range(6)]
    at_home, anywhere = fit.local("york").predict(new, num_draws=300), fit.predict(new, num_draws=300)
    assert at_home.sd[0] < anywhere.sd[0]  # its own effect is known
    shift = own["1|ward[york-1]"].mean
    assert at_home.mean[0] - anywhere.mean[0] == pytest.approx(shift, abs=0.5 * float(anywhere.sd[0]))


@thorough
def test_a_client_withdraws_and_has_an_influence(fit):
    without = fit.withdraw("hull")
    assert without.client_names == ["york", "leeds"]
    assert without.converged
    influence = fit.influence(refine=False)
    assert influence["hull"].kl > 0
    shift = (without.summary()["x"].mean - fit.summary()["x"].mean) / fit.summary()["x"].sd
    assert influence["hull"].shift["x"] == pytest.approx(shift, abs=0.2)


@thorough
def test_a_fit_is_saved_and_loaded(fit, tmp_path):
    fit.save(tmp_path / "fit.cavity")
    loaded = cavity.load(tmp_path / "fit.cavity", clients=hospitals("gaussian"))
    assert loaded.summary()["x"] == fit.summary()["x"]
    assert loaded.local("york").labels == fit.local("york").labels
    assert loaded.refine(1).history[-1]["gap"] < 1e-4


def mothers(num_communities=4, seed=1):
    """Mothers in communities; mothers are numbered within each community."""
    rng, found = np.random.default_rng(seed), {}
    for client in ("york", "leeds"):
        home = [(f"{client}-{c}", m) for c in range(num_communities) for m in range(5) for _ in range(1 + m)]
        community, mother = np.array([c for c, _ in home]), np.array([m for _, m in home])
        effects = {each: rng.normal(0, 1.2) for each in dict.fromkeys(home)}
        level = {each: rng.normal(0, 0.8) for each in dict.fromkeys(community.tolist())}
        x = rng.normal(size=len(home))
        f = 0.6 * x - 0.3 + np.array([effects[each] + level[each[0]] for each in home])
        found[client] = {
            "y": rng.random(len(x)) < 1 / (1 + np.exp(-f)),
            "x": x,
            "community": community,
            "mother": mother,
        }
    return found


def by_nuts(rows):
    """Mean and sd of the same parameters, by NUTS on pooled rows with the same priors."""
    x, y = rows["x"], rows["y"].astype(float)
    centre = x.mean()
    community = np.unique(rows["community"], return_inverse=True)[1]
    each = [f"{c}:{m}" for c, m in zip(rows["community"], rows["mother"], strict=True)]
    mother = np.unique(each, return_inverse=True)[1]

    def function():
        intercept = numpyro.sample("at_mean", dist.Normal(0.0, 10.0))
        slope = numpyro.sample("x", dist.Normal(0.0, 2.5))
        sds = [numpyro.sample(name, dist.HalfNormal(2.5)) for name in ("1|community_sigma", "1|community:mother_sigma")]
        own = [
            numpyro.sample(f"own{i}", dist.Normal(0.0, 1.0).expand([unit.max() + 1]))
            for i, unit in enumerate((community, mother))
        ]
        f = intercept + slope * (x - centre) + sds[0] * own[0][community] + sds[1] * own[1][mother]
        numpyro.deterministic("intercept", intercept - slope * centre)
        numpyro.sample("y", dist.Bernoulli(logits=f), obs=y)

    sampler = MCMC(
        NUTS(function, target_accept_prob=0.9),
        num_warmup=500,
        num_samples=1500,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    sampler.run(jax.random.key(0))
    return {name: (float(draws.mean()), float(draws.std())) for name, draws in sampler.get_samples().items()}


@exhaustive
@pytest.mark.slow
def test_groups_within_groups_against_nuts():
    frames = mothers()
    fit = cavity.regression("y ~ x + (1 | community/mother)", frames, prior_scales={"x": 2.5})
    assert fit.converged
    assert len(fit.history) <= 10
    pooled = {name: np.concatenate([each[name] for each in frames.values()]) for name in frames["york"]}
    reference, summary = by_nuts(pooled), fit.summary()
    for name in ("intercept", "x", "1|community_sigma", "1|community:mother_sigma"):
        mean, sd = reference[name]
        assert summary[name].mean == pytest.approx(mean, abs=0.15 * sd)
        if "sigma" not in name:  # whose sd is that of a log-normal, which 8 communities do not determine
            assert 0.8 < summary[name].sd / sd < 1.1
    own = fit.local("york").summary(num_draws=200)
    assert [estimate.name for estimate in own] == [f"1|community[york-{i}]" for i in range(4)]
    new = {"x": np.zeros(2), "community": np.array(["york-0", "new"]), "mother": np.array([0, 0])}
    assert ((fit.predict(new, num_draws=50).mean > 0) & (fit.predict(new, num_draws=50).mean < 1)).all()
