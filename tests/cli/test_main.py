"""The command: help, exit codes, errors in one line, and JSON output."""

import json
import os
import subprocess
import sys

import jax
import pytest

import cavity
from cavity.errors import CavityError
from cavity_experiments.cli import registry


def holds(journal, size, seed):
    journal.settings(num_clients=3)
    journal.say("at work")
    journal.row("runs", seed=seed, kl=0.5, free_energy=float("nan"))
    journal.check("toy-1 kl", 0.5, "< 1", holds=True)
    journal.check("toy-2 speed", None, "< 2", holds=None)


def fails(journal, size, seed):
    journal.check("toy-1 kl", 2.0, "< 1", holds=False)


def mistaken(journal, size, seed):
    raise CavityError("client 'leeds': two\nlines; fix them")


def faulty(journal, size, seed):
    raise RuntimeError("a fault")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """An empty folder, toy experiments, and a started JAX, so that the command does not change its devices."""
    jax.devices()
    monkeypatch.chdir(tmp_path)
    for toy in (holds, fails, mistaken, faulty):
        monkeypatch.setitem(registry.REPRODUCE, toy.__name__, f"{__name__}:{toy.__name__}")
        monkeypatch.setitem(registry.BENCH, toy.__name__, f"{__name__}:{toy.__name__}")


@pytest.mark.parametrize("words", [[], ["--help"], ["demo", "--help"], ["reproduce", "--help"], ["bench", "-h"]])
def test_help_has_an_example(command, words):
    code, out, err = command(*words)
    assert (code, err) == (0, "")
    assert "Usage: cavity" in out
    assert "Example: cavity" in out


def test_help_lists_the_names(command):
    assert "pvi-adult" in command("reproduce", "--help")[1]
    assert "core" in command("bench", "--help")[1]


def test_version(command):
    assert command("--version") == (0, f"cavity {cavity.__version__}\n", "")


def test_help_imports_no_large_packages():
    program = (
        "import sys\nfrom cavity.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'formulaic', 'matplotlib', 'pandas', 'sklearn', 'cavity.study'}\n"
        "experiments = {name for name in sys.modules if name.startswith('cavity_experiments')}\n"
        "print(sorted(heavy & set(sys.modules) | experiments))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.splitlines()[-1] == "[]"


def test_the_command_computes_in_double_precision_on_one_device_per_core():
    program = (
        "from cavity.cli.session import start_jax\nstart_jax()\n"
        "import jax\nprint(jax.local_device_count(), jax.numpy.ones(1).dtype)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.split() == [str(os.cpu_count()), "float64"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["demoo"], "demo"),
        (["bnch"], "bench"),
        (
            ["demo", "--level", "95"],
            "level must be a probability between 0 and 1, such as 0.95, not 95.0",
        ),
        (["demo", "--level", "0"], "not 0.0"),
        (["demo", "--level", "1"], "not 1.0"),
        (["demo", "--level", "a"], "--level"),
        (["run", "study.toml", "--data", ".", "--level", "95"], "for 95 % give 0.95"),
        (["server", "study.toml", "--level", "-1"], "level must be a probability"),
        (["demo", "--sed", "3"], "--seed"),
        (["demo", "--seed", "three"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
        (["reproduce"], "NAME"),
        (["reproduce", "pvi-adlt"], "there is: pvi-adult"),
        (["bench", "cor"], "there is: core"),
        (["reproduce", "holds", "--quick", "--full"], "exclude each other"),
        (["reproduce", "mistaken"], "client 'leeds': two lines; fix them"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(command, words, expected):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith("cavity: ")
    assert err.count("\n") == 1
    assert expected in err


def test_debug_shows_the_traceback_at_any_position(command):
    for words in (["--debug", "reproduce", "mistaken"], ["reproduce", "mistaken", "--debug"]):
        code, _, err = command(*words)
        assert code == 2
        assert "Traceback" in err
        assert "raise CavityError" in err
        assert err.splitlines()[-1] == "cavity: client 'leeds': two lines; fix them"


def test_a_bug_shows_its_traceback_and_has_its_own_exit_code(command):
    code, _, err = command("reproduce", "faulty")
    assert code == 70
    assert "Traceback" in err
    assert "RuntimeError: a fault" in err


@pytest.mark.parametrize("subcommand", ["reproduce", "bench"])
def test_json_is_one_object_with_exactly_its_keys(command, tmp_path, subcommand):
    code, out, err = command(subcommand, "holds", "--json", "--seed", "7", "--output", "found")
    assert code == 0
    assert "at work" in err
    report = json.loads(out)
    assert set(report) == {"settings", "results", "checks"}
    assert report["settings"] == {"experiment": "holds", "size": "default", "seed": 7, "num_clients": 3}
    assert report["results"] == {"runs": [{"seed": 7, "kl": 0.5, "free_energy": None}]}
    assert [set(check) for check in report["checks"]] == [{"name", "value", "bar", "holds"}] * 2
    assert [check["holds"] for check in report["checks"]] == [True, None]
    written = json.loads((tmp_path / "found" / "result.json").read_text())
    assert written["complete"]
    assert {entry: written[entry] for entry in report} == report


def test_without_json_the_output_is_a_table(command, tmp_path):
    code, out, _ = command("reproduce", "holds", "--quick")
    assert code == 0
    assert "size quick" in out
    for words in ("toy-1 kl", "< 1", "holds", "toy-2 speed", "not judged"):
        assert words in out
    assert (tmp_path / "results" / "holds" / "result.json").exists()


@pytest.mark.parametrize("words", [["reproduce", "fails"], ["bench", "fails"], ["reproduce", "fails", "--json"]])
def test_a_failed_check_is_exit_code_1(command, words):
    code, out, _ = command(*words)
    assert code == 1
    assert "FAILS" in out or json.loads(out)["checks"][0]["holds"] is False


def test_missing_files_in_the_data_folder_are_one_line(command, monkeypatch, tmp_path):
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    code, out, err = command("reproduce", "pvi-adult", "--json")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "adult_train.csv.gz is missing" in err


def test_unavailable_data_are_one_line(command, monkeypatch):
    monkeypatch.delenv("CAVITY_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    code, out, err = command("reproduce", "pvi-adult")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "CAVITY_DATA is not set" in err


def test_a_file_that_is_not_the_data_set_is_one_line(command, monkeypatch, tmp_path):
    (tmp_path / "adult").mkdir()
    for part in ("train", "test"):
        (tmp_path / "adult" / f"adult_{part}.csv.gz").write_bytes(b"not gzip")
    monkeypatch.setenv("CAVITY_DATA", str(tmp_path))
    code, _, err = command("reproduce", "pvi-adult")
    assert code == 2
    assert err.count("\n") == 1
    assert "not a complete gzip file" in err


def test_a_missing_package_is_one_line_with_the_remedy(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = command("demo")
    assert (code, out) == (2, "")
    assert err == "cavity: matplotlib is not installed; install it with: pip install 'cavity[plots]'\n"


@pytest.mark.parametrize("words", [["demo", "--output", "taken"], ["reproduce", "holds", "--output", "taken"]])
def test_a_folder_that_cannot_be_created_is_one_line_before_any_work(command, tmp_path, words):
    (tmp_path / "taken").write_text("a file")
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "taken" in err
