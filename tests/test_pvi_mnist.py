"""`cavity reproduce pvi-mnist`: its parts, its bars, and that it runs; the whole run is not a test."""

import numpy as np
import pytest

from cavity.distributions import DiagonalGaussian
from cavity.experiments import pvi_mnist, runner
from cavity.experiments.runner import Size
from tests.marks import needs_data


def test_the_bars_are_those_that_are_asked():
    assert (pvi_mnist.SAME_ERROR_BAR, pvi_mnist.SAME_GAP_BAR) == (2.3, 0.3)
    assert (pvi_mnist.SKEWED_ERROR_BAR, pvi_mnist.SKEWED_GAP_BAR, pvi_mnist.MINUTES_BAR) == (3.5, 1.5, 90.0)


def test_settings_are_the_papers_where_they_are_not_said_to_differ():
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


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_data
def test_in_small(tmp_path):
    """A tenth of the units and two passes: far from the bars, and, with all digits at each client, from guessing."""
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
