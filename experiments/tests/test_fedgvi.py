"""`cavity reproduce fedgvi-...` and `cavity bench fedgvi`: the thresholds, the draws, and that they run in small."""

import numpy as np
import pytest

from cavity import losses
from cavity.divergences import KL, Renyi
from cavity.models import mlp_classifier
from cavity.solvers import Gradient
from cavity_experiments import bench_fedgvi, fedgvi_covertype, fedgvi_heart, fedgvi_images, fedgvi_toys, runner
from cavity_experiments.runner import Size
from tests.marks import exhaustive, needs_data


def test_the_thresholds():
    assert fedgvi_images.MNIST_BARS == {10: 97.2, 3: 97.8}
    assert fedgvi_images.PAPER_FASHION == {0.0: 89.0, 0.1: 88.6, 0.2: 88.4, 0.4: 87.2}
    assert (fedgvi_images.MNIST_SHARE, fedgvi_images.MNIST_DELTA, fedgvi_images.ALPHA) == (0.1, 0.8, 2.5)
    assert fedgvi_toys.PLANE_PRIOR_SCALE**2 == 100


def test_methods_by_their_names():
    model, solver = mlp_classifier(2, (2,), 2), Gradient(lambda step_size: None, 0.1)
    both = fedgvi_images.method("Renyi + GCE, w = 10", model, solver, delta=0.4)
    assert isinstance(both.loss, losses.Tempered)
    assert isinstance(both.loss.loss, losses.GeneralisedCrossEntropy)
    assert (float(both.loss.weight), float(both.loss.loss.delta)) == pytest.approx((10.0, 0.4))
    assert isinstance(both.divergence, Renyi)
    only = fedgvi_images.method("GCE, w = 1", model, solver)
    assert float(only.loss.weight) == 1.0
    assert isinstance(only.divergence, KL)
    renyi = fedgvi_images.method("Renyi", model, solver)
    assert isinstance(renyi.loss, losses.NegativeLogLikelihood)
    assert isinstance(renyi.divergence, Renyi)


def test_clutter_is_where_it_should_be():
    target, rows = fedgvi_toys.clutter(np.random.default_rng(0), 0.25, num_rows=40_000)
    is_clutter = rows > target + 3.3
    np.testing.assert_allclose(is_clutter.mean(), 0.25, atol=0.02)
    np.testing.assert_allclose(rows[is_clutter].mean() - target, 5.0, atol=0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_toys_in_small(tmp_path):
    """Three seeds of the clutter and two of the plane; the picture of the influence is the whole one."""
    result = runner.run("fedgvi-toys", fedgvi_toys.fedgvi_toys, directory=tmp_path, size=Size.QUICK)
    values = {check.name.split()[0]: check.value for check in result.checks}
    assert values["fedgvi-4a"] < 0.4 < 0.8 < values["fedgvi-4b"]
    assert values["fedgvi-5a"] < 1 < 3 <= values["fedgvi-5b"]
    assert values["fedgvi-6"] < 0.8
    assert set(result.figures) == {"clutter.png", "influence.png", "plane.png", "beta.png"}


@exhaustive
@needs_data
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("experiment", "table", "num_rows"), [
    (fedgvi_images.fedgvi_mnist, "mnist", 7), (fedgvi_images.fedgvi_fashion, "chosen", 4),
    (fedgvi_covertype.fedgvi_covertype, "covertype", 4), (fedgvi_heart.fedgvi_heart, "overall", 3),
])  # fmt: skip
def test_real_data_in_small(experiment, table, num_rows, tmp_path):
    result = runner.run("small", experiment, directory=tmp_path, size=Size.QUICK)
    rows = result.results[table]
    assert len(rows) == num_rows
    right = [row["accuracy"] if "accuracy" in row else 100 * (1 - row["error"]) for row in rows]
    assert all(accuracy > 50 for accuracy in right)
    assert all(check.holds is None for check in result.checks)


@pytest.mark.slow
def test_the_benchmark_in_small(tmp_path):
    result = runner.run("bench", bench_fedgvi.bench_fedgvi, directory=tmp_path, size=Size.QUICK)
    assert [check.name.split()[0] for check in result.checks] == ["fedgvi-8a", "fedgvi-8b"]
    assert all(check.value > 0 and check.holds is None for check in result.checks)
