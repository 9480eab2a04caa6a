"""`cavity reproduce pvi-mnist`: its parts, its thresholds, and that it runs; the whole run is not a test."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from cavity.datasets import partition
from cavity.distributions import DiagonalGaussian
from cavity.distributions.mean_scale import MeanScale
from cavity.models import mlp_classifier
from cavity_experiments import image_methods, pvi_mnist, runner
from cavity_experiments.image_methods import METHODS, Task
from cavity_experiments.runner import Size
from tests.marks import needs_data


def test_the_thresholds():
    assert (pvi_mnist.SAME_ERROR_BAR, pvi_mnist.SAME_GAP_BAR) == (2.3, 0.3)
    assert (pvi_mnist.SKEWED_ERROR_BAR, pvi_mnist.SKEWED_GAP_BAR, pvi_mnist.MINUTES_BAR) == (3.5, 1.5, 90.0)


def test_settings_are_the_papers_unless_stated_otherwise():
    same, skewed = pvi_mnist.SAME, pvi_mnist.SKEWED
    assert (pvi_mnist.HIDDEN, same.num_clients, skewed.num_clients) == (200, 10, 100)
    assert (same.synchronous_damping, skewed.synchronous_damping) == (0.2, 0.025)
    assert pvi_mnist.PRUNING.prior_scale == pvi_mnist.EARLY.prior_scale == 1.0


def test_one_pooled_fit_has_the_budget_of_pvi_in_both_splits():
    """So many rows pass through gradient steps, to within one in a hundred."""
    same, skewed = (
        setting.passes * setting.num_clients * setting.num_steps * setting.batch_size
        for setting in (pvi_mnist.SAME, pvi_mnist.SKEWED)
    )
    assert same == pytest.approx(skewed, rel=0.01)


def test_pruned_weights_are_counted():
    """KL(N(m, s^2) : N(0, p^2)) by hand: 0; 0.5 (0.4^2) = 0.08; 0.5 (0.5^2) = 0.125; 0.5 (1/4 - 1) + log 2 = 0.318."""
    prior = DiagonalGaussian.from_moments(np.zeros(4), np.full(4, 9.0))
    posterior = DiagonalGaussian.from_moments(3 * np.array([0.0, 0.4, 0.5, 0.0]), 9 * np.array([1.0, 1.0, 1.0, 0.25]))
    assert pvi_mnist.pruned_share(prior, posterior) == 0.5


def test_skewed_clients_have_two_digits_and_600_rows():
    labels = np.repeat(np.arange(10), 6000)
    parts = pvi_mnist.split(pvi_mnist.SKEWED, labels, seed=0)
    assert [len(rows) for rows in parts.values()] == [600] * 100
    assert max(len(np.unique(labels[rows])) for rows in parts.values()) == 2
    alike = pvi_mnist.split(pvi_mnist.SAME, labels, seed=0)
    assert [len(np.unique(labels[rows])) for rows in alike.values()] == [10] * 10


def test_the_natural_step_is_the_gradient_over_the_fisher_information_and_bounded():
    """With s = 2: s^2 x 0.05 = 0.2 and 0.1 / 2 = 0.05; at most 0.3 s = 0.6 and 0.1. The last step is of length 0."""
    optimiser = image_methods.natural(10)(1.0)
    q = MeanScale(jnp.zeros(2), jnp.log(jnp.full(2, 2.0)))
    gradient, state = MeanScale(jnp.array([0.05, -5.0]), jnp.array([0.1, -5.0])), optimiser.init(q)
    step, state = optimiser.update(gradient, state, q)
    np.testing.assert_allclose(step.mean, [-0.2, 0.6], rtol=1e-6)
    np.testing.assert_allclose(step.log_scale, [-0.05, 0.1], rtol=1e-6)
    for _ in range(10):
        step, state = optimiser.update(gradient, state, q)
    np.testing.assert_allclose(step.mean, 0.0, atol=1e-6)


def test_early_stopping_watches_the_expected_loss_and_starts_every_solve_tight():
    stopped, whole = pvi_mnist.EARLY.solver(50), pvi_mnist.PRUNING.solver(50)
    assert stopped.plateau.expected_loss_only
    assert (stopped.start.first_only, whole.start.first_only) == (False, True)
    assert whole.plateau is None


def test_several_seeds_are_a_mean_with_a_band():
    def run(error):
        steps = {"communications": 10, "gradient_steps": 40}
        return [steps | {"test_error": error, "test_log_likelihood": -error}] * 2

    one, several = (pvi_mnist.compared({"PVI": runs}) for runs in ([run(0.1)], [run(0.1), run(0.3)]))
    for figure, bands in ((one, 0), (several, 1)):
        assert [len(axes.collections) for axes in figure.axes] == [bands] * 4
    np.testing.assert_allclose(several.axes[0].lines[0].get_ydata(), 0.2)
    np.testing.assert_allclose(several.axes[2].lines[0].get_ydata(), 0.2)  # minus the log likelihood


SMALL = replace(pvi_mnist.SAME, num_clients=4, passes=3, num_steps=5, one_pass_steps=7, batch_size=10)
TWO_DIGITS = replace(SMALL, two_digits=True, step_size=0.1, damped_passes=1)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "setting", "rounds", "steps", "visits", "exponents"), [
    ("PVI", SMALL, 3, 60, 12, [1.0, 1.0, 1.0]),
    ("PVI", TWO_DIGITS, 3, 5 + 20 + 20, 12, [0.25, 1.0, 0.2]),
    ("PVI, synchronous", SMALL, 3, 15, 12, [0.2, 0.2, 0.2]),
    ("streaming VB", SMALL, 3, 60, 12, [1.0, 1.0, 1.0]),
    ("pooled VI", SMALL, 3, 60, 3, [1.0, 1.0, 1.0]),
    ("VCL", SMALL, 1, 28, 4, [1.0]),
    ("BCM (same)", SMALL, 1, 7, 4, [1.0]),
    ("BCM (split)", SMALL, 1, 7, 4, [1.0]),
])  # fmt: skip
def test_what_a_method_costs(method, setting, rounds, steps, visits, exponents):
    """Steps that clients take at the same time count once."""
    rng = np.random.default_rng(0)
    y = np.arange(80) % 3
    x = rng.normal(size=(80, 5)) + y[:, None]
    clients = partition.select((x, y), partition.homogeneous(rng, 80, 4))
    model = mlp_classifier(5, (4,), 3, prior_scale=0.3)
    fit = METHODS[method](Task(setting, model, clients, 0, {}, lambda record, server: None))
    last = fit.history[-1]
    assert (last["round"], last["gradient_steps"], last["communications"]) == (rounds, steps, visits)
    assert [record["exponent"] for record in fit.history] == pytest.approx(exponents)


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_data
def test_in_small(tmp_path):
    """A tenth of the units and two passes: far from the thresholds, and for similar clients from guessing."""
    result = runner.run("pvi-mnist", pvi_mnist.pvi_mnist, directory=tmp_path, size=Size.QUICK)
    assert [check.name.split()[0] for check in result.checks] == [f"pvi-5{letter}" for letter in "abcdefg"]
    assert all(check.holds is None and np.isfinite(check.value) for check in result.checks)
    fits = {(row["part"], row["method"]): row for row in result.results["fits"]}
    assert len(fits) == 9
    assert all(fits["homogeneous", method]["test_error"] < 0.3 for method in ("PVI", "pooled VI", "VCL"))
    assert fits["inhomogeneous", "PVI"]["test_error"] < 0.8
    # clients in turn add up their steps; those of a synchronous round are taken at the same time
    assert fits["homogeneous", "PVI"]["gradient_steps"] == 2 * 10 * 40
    assert fits["homogeneous", "BCM (same)"]["gradient_steps"] == 40
    assert fits["inhomogeneous", "PVI"]["gradient_steps"] == 40 + 20 * 40
    assert fits["inhomogeneous", "PVI"]["communications"] == 2 * 20
    assert set(result.figures) == {"homogeneous.png", "inhomogeneous.png", "pruning.png"}
