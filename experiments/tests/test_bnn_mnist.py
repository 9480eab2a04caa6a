"""`cavity reproduce bnn-mnist`: the thresholds, and that it runs; the whole run takes ten minutes and is not a test."""

import pytest

from cavity_experiments import bnn_mnist, runner
from cavity_experiments.runner import Size
from tests.marks import needs_data


def test_the_thresholds():
    assert (bnn_mnist.GAP_BAR, bnn_mnist.ERROR_BAR, bnn_mnist.MINUTES_BAR) == (0.3, 2.5, 20.0)
    assert (bnn_mnist.NUM_CLIENTS, bnn_mnist.HIDDEN) == (10, 200)


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_data
def test_in_small(tmp_path):
    """A fiftieth of the budget and a tenth of the units: far from the thresholds, and far from guessing."""
    result = runner.run("bnn-mnist", bnn_mnist.bnn_mnist, directory=tmp_path, size=Size.QUICK)
    assert [check.holds for check in result.checks] == [None, None, None]
    errors = {row["fit"]: row["test_error"] for row in result.results["fits"]}
    assert errors.keys() == {"PVI", "pooled VI"}
    assert all(error < 0.2 for error in errors.values())
    assert result.figures == ("error.png",)
