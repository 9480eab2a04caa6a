"""What the readers of checkpoints say about other files, such as a `posterior.npz`."""

import io

import numpy as np
import pytest

import cavity
from cavity.distributions import FullGaussian, Gamma
from cavity.errors import CheckpointError
from cavity.io import serialization
from cavity.io.checkpoints import CHECKPOINT, RunDirectory, read_tree
from cavity.study import parse_study
from cavity.study.run import POSTERIOR, run_study, write_results
from tests.fuzz_targets import STUDY, tables
from tests.marks import thorough


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@thorough
def test_the_posterior_of_a_study_is_recognised(tmp_path):
    """`cavity.load` on the wrong one of the files that a study writes says which is the right one."""
    fit = run_study(parse_study(STUDY), tables(), directory=tmp_path / "run")
    write_results(fit, tmp_path / "run")
    with pytest.raises(CheckpointError) as caught:
        cavity.load(tmp_path / "run" / POSTERIOR)
    message = str(caught.value)
    assert "this file holds the posterior of a" in message
    assert "numpy.load" in message
    assert f"cavity.load({str(tmp_path / 'run')!r})" in message
    with pytest.raises(CheckpointError, match=r"posterior of a regression as arrays \(names, mean, covariance\)"):
        read_tree(tmp_path / "run" / POSTERIOR)
    loaded = cavity.load(tmp_path / "run")
    assert np.array_equal(loaded.posterior.precision, fit.posterior.precision)


def test_a_posterior_of_another_model_is_recognised(tmp_path):
    (tmp_path / POSTERIOR).write_bytes(serialization.to_bytes(Gamma(np.ones(1), np.ones(1))))
    with pytest.raises(CheckpointError, match=r"holds a posterior \(a Gamma\) and not a fit.*folder of its run"):
        RunDirectory(tmp_path).read(name=POSTERIOR)
    (tmp_path / POSTERIOR).write_bytes(serialization.to_bytes(FullGaussian(np.ones(2), np.eye(2))))
    with pytest.raises(CheckpointError, match="a FullGaussian"):
        RunDirectory(tmp_path).read(name=POSTERIOR)


@pytest.mark.parametrize(
    "content",
    [
        npz(names=np.array(["a"]), mean=np.zeros(1)),
        npz(names=np.array(["a"]), mean=np.zeros(1), covariance=np.eye(1), more=np.zeros(1)),
        npz(names=np.array(["a"]), mean=np.zeros(1), covariance=np.eye(1))[:300],
        b"",
    ],
    ids=["an array too few", "an array too many", "cut off", "empty"],
)
def test_other_arrays_are_not_called_a_posterior(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged, was cut off, or was not written by Cavity"):
        read_tree(tmp_path / "x.npz")


def test_a_tree_that_is_not_a_checkpoint(tmp_path):
    for tree in ([1], {"state": 1}, {"state": 1, "history": {}}, {"state": 1, "history": [1]}):
        (tmp_path / CHECKPOINT).write_bytes(serialization.to_bytes(tree))
        with pytest.raises(CheckpointError, match="not a checkpoint of a run"):
            RunDirectory(tmp_path).read()
    with_more = {"state": 1, "history": [], "more": 1}
    (tmp_path / CHECKPOINT).write_bytes(serialization.to_bytes(with_more))
    with pytest.raises(CheckpointError, match="not a checkpoint of a run"):
        RunDirectory(tmp_path).read()


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint\.npz: file not found; check the path"):
        RunDirectory(tmp_path).read()
