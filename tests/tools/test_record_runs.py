"""The record of small runs: it finds differences, says how large they are, and misses no run and no array."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.marks import exhaustive

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from run_differences import MEAN, SD, by_run, compare, run_difference  # noqa: E402


def numbers(**changes):
    recorded = {
        "posterior/0": np.array([1.0, -400.0]),
        "history/gap": np.array([np.inf, np.nan, 2.0]),
        MEAN: np.array([3.0, 100.0]),
        SD: np.array([0.5, 10.0]),
    }
    return recorded | changes


def test_equal_runs_do_not_differ():
    found = run_difference(numbers(), numbers())
    assert (found.relative, found.absolute, found.in_sds) == (0.0, 0.0, 0.0)


def test_the_largest_difference_and_its_array():
    """Relative to the largest number of the array, 400."""
    found = run_difference(numbers(**{"posterior/0": np.array([1.0 + 4e-8, -400.0])}), numbers())
    assert found.where == "posterior/0"
    np.testing.assert_allclose([found.absolute, found.relative], [4e-8, 1e-10], rtol=1e-6)
    assert found.in_sds == 0.0


def test_a_mean_in_posterior_sds():
    """0.02 of sd 0.5 is more than 0.1 of sd 10."""
    found = run_difference(numbers(**{MEAN: np.array([3.02, 100.1])}), numbers())
    np.testing.assert_allclose(found.in_sds, 0.04, rtol=1e-12)


@pytest.mark.parametrize(
    "later",
    [
        [np.inf, 1.0, 2.0],
        [np.inf, np.nan, np.nan],
        [-np.inf, np.nan, 2.0],
        [9.0, np.nan, 2.0],
        [np.inf, np.nan, np.inf],
        [np.inf, np.nan],
    ],
)
def test_other_shapes_nans_and_infinities_are_infinitely_far(later):
    found = run_difference(numbers(**{"history/gap": np.array(later)}), numbers())
    assert (found.where, found.relative) == ("history/gap", np.inf)


def test_a_missing_array_differs():
    lacking = numbers()
    del lacking["history/gap"]
    assert run_difference(lacking, numbers()).relative == np.inf
    assert run_difference(numbers(), lacking).relative == np.inf


def test_a_run_without_a_record_and_a_record_without_a_run(capsys):
    assert compare([("pvi", numbers())], {"pvi": numbers()})
    assert not compare([("pvi", numbers()), ("new", numbers())], {"pvi": numbers()})
    assert not compare([("pvi", numbers())], {"pvi": numbers(), "old": numbers()})
    assert "was not run again" in capsys.readouterr().out


def record_runs(*arguments):
    return subprocess.run(
        [sys.executable, str(TOOLS / "record_runs.py"), *map(str, arguments)], capture_output=True, text=True
    )


@exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("only", ["family linear, noise known", "network pvi, sequential"])
def test_a_run_is_recorded_and_compared(tmp_path, only):
    """A second run agrees; a record with one changed number does not."""
    pytest.importorskip("flwr")
    file, changed = tmp_path / "runs.npz", tmp_path / "changed.npz"
    assert record_runs("record", file, "--only", only).returncode == 0
    (recorded,) = by_run(dict(np.load(file))).values()
    assert {"posterior/0", "history/gap", MEAN, SD, "mean", "sd"} <= recorded.keys()
    assert len(recorded["history/gap"]) == 3
    again = record_runs("compare", file, "--only", only)
    assert again.returncode == 0, again.stdout + again.stderr
    arrays = dict(np.load(file))
    np.savez(changed, **(arrays | {f"{only}|mean": arrays[f"{only}|mean"] * (1 + 1e-11)}))
    told = record_runs("compare", file, changed)
    assert told.returncode == 1
    assert "mean   differs" in told.stdout
