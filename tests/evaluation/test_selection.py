"""Cross-validation at the clients, and the influence of single rows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cavity
from cavity import losses
from cavity.aggregation import Fixed
from cavity.errors import CavityError
from cavity.evaluation import selection
from cavity.models import linear_regression, logistic_regression, mlp_classifier, normal_location, poisson_regression
from cavity.reporting import plots
from cavity.solvers import Gradient
from tests.marks import thorough


def location_rows(outliers=8):
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=40), np.full(outliers, 9.0)])[rng.permutation(40 + outliers)]
    return {"a": rows[::2], "b": rows[1::2]}


def beta(value):
    return cavity.FedGVI(normal_location(prior_scale=3.0), losses.Beta(value))


def test_scores_are_those_of_a_loop_over_folds():
    """Against exact posteriors of the rows outside each fold, and the closed form of the expected quadratic score."""
    model, clients = normal_location(prior_scale=3.0), location_rows()
    found = cavity.choose(lambda w: cavity.FedGVI(model, losses.Tempered(w)), [0.5, 1.0], clients, num_folds=4)
    data = {name: selection.prepare_clients(model, {name: rows})[name] for name, rows in clients.items()}
    folds = {name: selection.fold_of_rows(name, rows, 4, 0) for name, rows in data.items()}
    assert {name: np.bincount(f).tolist() for name, f in folds.items()} == {"a": [6] * 4, "b": [6] * 4}
    for power, score in zip(found.values, found.scores, strict=True):
        total = 0.0
        for fold in range(4):
            kept = np.concatenate([rows[folds[name] != fold] for name, rows in clients.items()])
            held = np.concatenate([rows[folds[name] == fold] for name, rows in clients.items()])
            precision = 1 / 9 + power * len(kept)
            mean, v = power * kept.sum() / precision, 1 / precision
            density = np.exp(-0.5 * (held - mean) ** 2 / (1 + v)) / np.sqrt(2 * np.pi * (1 + v))
            total += np.sum(-(density - 1) + 0.5 / np.sqrt(4 * np.pi) - 1)
        np.testing.assert_allclose(score, total / 48, rtol=1e-10)


@thorough
def test_robust_values_are_chosen_where_rows_are_wrong():
    found = cavity.choose(beta, [0.001, 0.1, 0.3], location_rows())
    assert found.lowest > 0.001
    assert found.chosen >= found.lowest
    assert "< chosen" in str(found)


def test_the_rule():
    def choice(errors):
        return selection.Choice((1, 2, 3), np.array([0.0, 0.1, 0.5]), np.array([0.0, 0.1, 0.1]), errors)

    assert [choice(errors).chosen for errors in (0.0, 0.9, 1.1, 4.0, 6.0)] == [1, 1, 2, 2, 3]
    assert choice(1.0).lowest == 1


def test_weights_count():
    """A row of weight 2 is two rows; one of weight 0 is none, also in the score."""
    model = normal_location(prior_scale=3.0)
    rows = np.array([0.0, 1.0, 2.0, 3.0, 50.0])

    def score(weight):
        clients = {"a": cavity.Weighted(rows, weight), "b": np.arange(5.0)}
        return cavity.choose(lambda w: cavity.FedGVI(model, losses.Tempered(w)), [1.0], clients, num_folds=5).scores[0]

    alone = cavity.choose(
        lambda w: cavity.FedGVI(model, losses.Tempered(w)), [1.0], {"b": np.arange(5.0)}, num_folds=5
    ).scores[0]
    np.testing.assert_allclose(score(np.zeros(5)), alone, rtol=1e-12)
    assert score(np.array([1.0, 1, 1, 1, 0])) < score(np.ones(5))


@pytest.mark.parametrize(("model", "outcomes"), [
    (logistic_regression(1), [0.0, 1.0]), (poisson_regression(1), [0.0, 1.0, 4.0]), (linear_regression(1), [0.0, 2.5]),
    (mlp_classifier(1, (3,), 3), [0.0, 1.0, 2.0]),
])  # fmt: skip
def test_default_scores_are_finite_and_bounded(model, outcomes):
    posterior = jax.tree.map(jnp.asarray, model.prior)
    y = np.tile(outcomes, 3)
    rows = selection.prepare_clients(model, {"a": (np.linspace(-1, 1, len(y))[:, None], y)})["a"]
    values = np.asarray(selection.default_score(model)(model, posterior, rows))
    assert values.shape == y.shape
    assert np.all(np.isfinite(values))


def test_brier_is_the_squared_error_of_the_prediction():
    model = logistic_regression(1)
    rows = selection.prepare_clients(model, {"a": (np.array([[0.5], [-1.0]]), np.array([1.0, 0.0]))})["a"]
    predicted = np.asarray(model.predict(model.prior, rows.batch[0], key=jax.random.key(0)).mean)
    np.testing.assert_allclose(selection.brier(model, model.prior, rows), (predicted - [1.0, 0.0]) ** 2)


def test_what_cannot_be_chosen_from():
    clients = location_rows()
    for arguments, options, message in (
        ((beta, [], clients), {}, "no values"),
        ((beta, [0.5], clients), {"num_folds": 1}, "at least 2 folds"),
        ((beta, [0.5], clients), {"num_folds": 25}, "client 'a' has 24 rows"),
        ((beta, [0.5], clients), {"errors": -1.0}, "errors"),
        ((beta, [0.5, -1.0], clients), {}, "beta must be positive"),
    ):
        with pytest.raises(CavityError, match=message):
            cavity.choose(*arguments, **options)


def test_the_influence_of_a_row_is_that_of_adding_it():
    """In a conjugate model the others' factors do not change, so the answer is that of a new fit with the row."""
    model = linear_regression(1, noise_sd=1.0)
    rng = np.random.default_rng(1)
    clients = {name: (rng.normal(size=(10, 1)), rng.normal(size=10)) for name in "ab"}
    fit = cavity.run(cavity.PVI(model), clients)
    rows = (np.array([[0.5], [2.0]]), np.array([1.0, 30.0]))
    for i, found in enumerate(fit.row_influence("b", rows)):
        x, y = clients["b"]
        more = clients | {"b": (np.concatenate([x, rows[0][i : i + 1]]), np.append(y, rows[1][i]))}
        refitted = cavity.run(cavity.PVI(model), more)
        np.testing.assert_allclose(found.kl, cavity.kl(refitted.posterior, fit.posterior), rtol=1e-8)


@pytest.mark.slow
def test_a_row_of_no_weight_has_no_influence():
    """Also where the solver draws mini-batches, and the fit has not converged."""
    model = logistic_regression(1)
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(20, 1)), rng.integers(0, 2, 20)) for name in "ab"}
    solver = Gradient(optax.adam, 0.05, 20, batch_size=8)
    fit = cavity.run(cavity.PVI(model, solver=solver, damping=Fixed(0.3)), clients, rounds=1)
    row = cavity.Weighted(([[1.0]], [1]), [0.0])
    assert fit.row_influence("a", row)[0].kl < 1e-20
    assert fit.row_influence("a", ([[1.0]], [1]))[0].kl > 1e-6


@thorough
def test_influence_is_bounded_under_a_robust_loss_only():
    clients, positions = location_rows(0), np.array([3.0, 10.0, 100.0, 1e4])
    robust, plain = cavity.run(beta(0.5), clients), cavity.run(cavity.PVI(normal_location(prior_scale=3.0)), clients)
    assert max(found.kl for found in robust.row_influence("a", positions)) < 0.1
    far = [found.kl for found in plain.row_influence("a", positions)]
    assert far[-1] > 1e3 * far[1] > far[0]


def test_rows_that_cannot_be_weighed():
    fit = cavity.run(beta(0.5), location_rows())
    with pytest.raises(CavityError, match="no client 'c'; the clients are a, b"):
        fit.row_influence("c", np.zeros(1))
    with pytest.raises(CavityError, match="missing"):
        fit.row_influence("a", np.array([np.nan]))


def test_the_picture_of_a_choice():
    figure = plots.choice(cavity.choose(beta, [0.1, 0.5], location_rows()))
    assert "above the lowest" in figure.axes[0].get_ylabel()
