"""What all experiments use: a file that is complete at every moment, checks, figures, JSON."""

import json
import platform
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from cavity.errors import CavityError
from cavity_experiments import bench_core, runner
from cavity_experiments.runner import Journal, Size, plain


def read(directory):
    return json.loads((directory / runner.RESULT).read_text())


def test_results_are_written_as_they_come(tmp_path):
    directory = tmp_path / "not" / "yet"
    journal = Journal("toy", directory, size=Size.QUICK, seed=3)
    assert read(directory)["settings"] == {"experiment": "toy", "size": "quick", "seed": 3}
    journal.settings(rounds=4)
    journal.row("runs", kl=1.0)
    assert read(directory)["results"] == {"runs": [{"kl": 1.0}]}
    journal.row("runs", kl=np.float32(0.5))
    journal.put("rows", np.arange(3))
    journal.check("toy-1", jnp.asarray(0.5), "< 1", jnp.asarray(True))
    found = read(directory)
    assert found["results"] == {"runs": [{"kl": 1.0}, {"kl": 0.5}], "rows": [0, 1, 2]}
    assert found["checks"] == [{"name": "toy-1", "value": 0.5, "bar": "< 1", "holds": True}]
    assert not found["complete"]
    assert journal.close().complete
    assert read(directory)["complete"]
    assert [path.name for path in directory.iterdir()] == [runner.RESULT]  # no temporary file is left


def test_an_interrupted_run_keeps_what_it_found(tmp_path):
    def broken(journal, size, seed):
        journal.row("runs", kl=1.0)
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        runner.run("toy", broken, directory=tmp_path)
    assert read(tmp_path)["results"] == {"runs": [{"kl": 1.0}]}
    assert not read(tmp_path)["complete"]


def test_size_and_seed_reach_the_experiment_and_progress_its_listener(tmp_path):
    def toy(journal, size, seed):
        journal.say(f"{size.value} {seed}")

    said = []
    result = runner.run("toy", toy, directory=tmp_path, size=Size.FULL, seed=11, say=said.append)
    assert said == ["full 11"]
    assert result.seconds >= 0


def test_only_a_check_that_was_judged_can_fail(tmp_path):
    journal = Journal("toy", tmp_path)
    journal.check("toy-1", 1.0, "< 2", True)
    journal.check("toy-2", None, "< 2", None)
    journal.check("toy-3", float("nan"), "< 2", float("nan") < 2)
    result = journal.close()
    assert [check.name for check in result.failed] == ["toy-3"]
    assert result.report()["checks"][2] == {"name": "toy-3", "value": None, "bar": "< 2", "holds": False}
    with pytest.raises(CavityError, match="twice"):
        journal.check("toy-1", 1.0, "< 2", True)


def test_the_file_has_versions_but_no_paths(tmp_path):
    result = Journal("toy", tmp_path).close()
    assert set(result.versions) == {"python", "cavity", "jax", "jaxlib", "equinox", "numpy", "machine"}
    text = (tmp_path / runner.RESULT).read_text()
    assert str(tmp_path) not in text
    assert len(platform.node()) < 3 or platform.node() not in text


def test_figures_are_saved_beside_the_result(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    journal = Journal("toy", tmp_path)
    journal.figure("curve", lambda: figure)
    assert journal.close().figures == ("curve.png",)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_continues_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    def draw():
        import matplotlib

        return matplotlib

    said = []
    journal = Journal("toy", tmp_path, said.append)
    journal.figure("curve", draw)
    assert journal.close().figures == ()
    assert "pip install 'cavity[plots]'" in said[0]


def test_plain_has_no_way_to_hide_a_number():
    assert plain({"a": (np.int64(1), float("inf"), -0.0)}) == {"a": [1, None, 0.0]}
    assert plain(np.array([[1.0, np.nan]])) == [[1.0, None]]
    assert plain([True, None, "x", Size.QUICK]) == [True, None, "x", "quick"]
    with pytest.raises(TypeError, match="set cannot be written"):
        plain({1, 2})


@pytest.mark.slow
def test_the_benchmark_of_the_core_in_small(tmp_path):
    result = runner.run("core", bench_core.bench_core, directory=tmp_path, size=Size.QUICK)
    imported, *speeds = result.checks
    assert imported.name.startswith("core-import")
    assert imported.holds == (imported.value <= 1.3)
    assert [check.name.split()[0] for check in speeds] == [f"speed-1{letter}" for letter in "abcdef"]
    assert all(check.value > 0 and check.holds is None for check in speeds)
    assert max(row["relative_error"] for row in result.results["memory"]) < 1e-5
