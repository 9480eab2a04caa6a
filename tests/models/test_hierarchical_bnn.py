"""Personalised networks: densities against numpy, padding, exchanges, predictions, refusals, and the experiment."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.algorithms.sfvi import SFVI
from cavity.algorithms.sfvi_avg import SFVIAvg
from cavity.errors import CavityError, DataError
from cavity.models.neural.hierarchical_bnn import fedpop, hierarchical_bnn, predict_client
from cavity.simulation.stacks import pad
from cavity_experiments import runner, sfvi_bnn
from cavity_experiments.runner import Size
from tests.marks import exhaustive, needs_data

SIZES = (4, 3, 2)
BOTH = pytest.mark.parametrize("make", [hierarchical_bnn, fedpop])
OPTIONS = {
    "covariance": "diagonal", "coupled": False, "dense": False, "num_samples": 1, "batch_size": 5, "dtype": jnp.float32,
}  # fmt: skip


def images(num_rows=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(num_rows, SIZES[0])), rng.integers(0, SIZES[2], num_rows)


def latents(model, num_units=1):
    rng = np.random.default_rng(1)
    return 0.5 * rng.normal(size=model.num_global), rng.normal(size=(num_units, model.num_local))


def log_likelihood(first, second, x, y):
    scores = np.maximum(x @ first, 0) @ second
    return sum(scores[i, c] - np.log(np.exp(scores[i]).sum()) for i, c in enumerate(y))


def by_hand(model, z_global, z_local, x, y):
    """Log prior and log joint, without a line of the model's own."""
    p, h, c = SIZES
    if model.num_global == p * h:
        prior = stats.norm.logpdf(z_global).sum()
        first, second = z_global.reshape(p, h), z_local.reshape(h, c)
    else:
        sigma = np.exp(z_global[-1])
        prior = stats.norm.logpdf(z_global[:-1]).sum() + stats.halfnorm.logpdf(sigma) + np.log(sigma)
        second, eps = z_local[: h * c].reshape(h, c), z_local[h * c :].reshape(p, h)
        first = z_global[:-1].reshape(p, h) + sigma * eps
    return prior, stats.norm.logpdf(z_local).sum() + log_likelihood(first, second, x, y)


@BOTH
def test_densities_are_those_by_hand(make):
    model, (x, y) = make(*SIZES), images()
    z_global, z_local = latents(model)
    prior, joint = by_hand(model, z_global, z_local[0], x.astype(np.float32).astype(float), y)
    data = model.prepare((x, y))
    assert float(model.log_prior(None, jnp.asarray(z_global))) == pytest.approx(prior, abs=1e-9)
    found = model.log_joint(None, jnp.asarray(z_global), jnp.asarray(z_local), data, jax.random.key(0))
    np.testing.assert_allclose(found, [joint], atol=1e-9)


@BOTH
def test_padding_does_not_matter(make):
    model = make(*SIZES)
    z_global, z_local = map(jnp.asarray, latents(model, num_units=3))
    data = model.prepare(images())
    alone = model.log_joint(None, z_global, z_local[:1], data, jax.random.key(0))
    padded = model.log_joint(None, z_global, z_local, pad(data, 20, 3), jax.random.key(0))
    np.testing.assert_allclose(padded[:1], alone, atol=1e-12)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("average", [False, True])
def test_exchanges_and_predictions(make, average):
    model = make(*SIZES)
    clients = {"a": images(12, 1), "b": images(9, 2)}
    method = (
        SFVIAvg(model, total=2, num_rounds=2, local_steps=3, **OPTIONS)
        if average
        else SFVI(model, num_steps=2, **OPTIONS)
    )
    fit = cavity.run(method, clients, rounds=2, tolerance=0.0)
    assert np.isfinite(fit.history[-1]["free_energy"])
    assert not np.array_equal(fit.posterior.q.mean, method.prior.q.mean)
    assert len(model.parameter_names) == model.num_global
    kept = fit.client_states["a"].pending.local.q
    assert kept.mean.dtype == np.float32
    x = images(7, 3)[0]
    shares = predict_client(model, fit.posterior, kept, x, jax.random.key(0), num_draws=4)
    assert shares.shape == (7, SIZES[2])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-5)


@BOTH
def test_hidden_units_start_unlike_each_other(make):
    first = np.asarray(make(*SIZES).start[0])[: SIZES[0] * SIZES[1]].reshape(SIZES[:2])
    assert np.unique(first.round(6)).size == first.size


@pytest.mark.parametrize(("data", "said"), [
    (images()[0], r"pair \(x, y\)"),
    ((images()[0][:, :3], images()[1]), "takes 4 features"),
    ((np.full((12, 4), np.nan), images()[1]), "missing or infinite"),
    ((images()[0], images()[1][:5]), "12 rows and y has 5"),
    ((images()[0], images()[1] + 1), "classes must be 0 to 1; y holds 2"),
])  # fmt: skip
def test_bad_data(data, said):
    with pytest.raises(DataError, match=said):
        fedpop(*SIZES).prepare(data)


def test_bad_sizes():
    with pytest.raises(CavityError, match="two classes"):
        hierarchical_bnn(4, 3, 1)


def test_clients_are_nine_tenths_one_digit():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(10), rng.integers(900, 1000, 10)))
    digits = np.arange(20) % 10
    parts = sfvi_bnn.skewed(rng, labels, digits)
    rows = np.concatenate(list(parts.values()))
    assert len(np.unique(rows)) == len(rows)  # no image is at two clients
    assert len({len(part) for part in parts.values()}) == 1
    for digit, part in zip(digits, parts.values(), strict=True):
        counts = np.bincount(labels[part], minlength=10)
        assert counts[digit] == pytest.approx(0.9 * len(part))
        assert np.ptp(np.delete(counts, digit)) == 0


def test_the_thresholds_are_the_papers():
    assert sfvi_bnn.PAPER[10]["FedPop", "SFVI"] == 97.5
    assert sfvi_bnn.PAPER[50]["hierarchical", "SFVI-Avg"] == 93.6
    assert (sfvi_bnn.MARGIN, sfvi_bnn.HIDDEN, sfvi_bnn.ROUNDS, sfvi_bnn.EXCHANGES) == (0.5, 64, 20, 10_000)


@exhaustive
@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_in_small(tmp_path):
    """Enough to learn each client's digit only."""
    result = runner.run("sfvi-bnn", sfvi_bnn.sfvi_bnn, directory=tmp_path, size=Size.QUICK)
    rows = result.results["fits"]
    assert len(rows) == 6
    assert all(row["accuracy"] > 85 for row in rows if row["method"] != "pooled")
    assert [check.holds for check in result.checks] == [None] * 4
    assert result.figures == ("accuracy_10.png",)
