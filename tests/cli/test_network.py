"""The commands for a network, as far as they run without one."""

import logging
import os
import re
import shlex
import stat
from pathlib import Path

import jax
import numpy as np
import pytest
import typer

from cavity.cli.logs import terminal_and_log
from cavity.cli.main import app
from cavity.network.client import site_of
from cavity.network.guard import Guard
from cavity.network.keys import client_public_keys, client_signer, client_verifier, server_signer, server_verifier
from cavity.network.run_directory import LOCK, Requests, only_one, write_status
from cavity.study import read_study
from cavity.study.table import read_csv
from tests.studies import FEDERATED, hospitals, write_csv

pytestmark = pytest.mark.usefixtures("quick_to_compile")
COMMANDS = [["server"], ["client"], ["status"], ["stop"], ["withdraw"], ["leave"], ["study", "keys"]]


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with a study and its data; JAX has started, so that the command does not change its devices."""
    jax.devices()
    monkeypatch.chdir(tmp_path)
    for name, columns in hospitals().items():
        write_csv(tmp_path / f"{name}.csv", columns)
    (tmp_path / "study.toml").write_text(FEDERATED)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example(command, words):
    code, out, err = command(*words, "--help")
    assert (code, err) == (0, "")
    assert "Example: cavity" in out


def test_a_client_whose_rows_have_changed_does_not_start(command, tmp_path):
    """It has sent an update with all rows, and is restarted with half of them."""
    folder, study = tmp_path / "sites" / "trial-1" / "leeds", read_study(tmp_path / "study.toml")
    site = site_of(study, "leeds", read_csv(tmp_path / "leeds.csv"), folder, print)
    Guard(folder, study.hash, site.fingerprint).remember_rows()
    write_csv(tmp_path / "half.csv", {name: column[:60] for name, column in hospitals()["leeds"].items()})
    client = ("client", "study.toml", "--name", "leeds", "--data", "half.csv", "--insecure")
    code, _, err = command(*client)
    assert code == 2
    assert "the rows have changed since this client's first update" in " ".join(err.split())
    code, _, err = command(*client, "--rejoin")
    assert code == 2
    assert "has not left the study" in " ".join(err.split())


def test_keys(command, tmp_path):
    code, out, _ = command("study", "keys", "study.toml", "--host", "server.example.org")
    assert code == 0
    assert "keys/ca.key: private key of the certificate authority: keep offline" in out
    assert "keys/server: for the server" in out
    assert "keys/clients/leeds: for leeds" in out
    files = [path for path in (tmp_path / "keys").rglob("*") if path.is_file()]
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in files)
    folders = [tmp_path / "keys", *(path for path in (tmp_path / "keys").rglob("*") if path.is_dir())]
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o700 for path in folders)
    assert sorted(path.name for path in (tmp_path / "keys/clients/york").iterdir()) == [
        "ca.pem",
        "client.key",
        "server.pem",
    ]
    code, _, err = command("study", "keys", "study.toml", "--host", "server.example.org")
    assert code == 2
    assert "may contain keys in use" in err


def test_signatures(command, tmp_path):
    command("study", "keys", "study.toml", "--host", "server.example.org")
    keys, study = tmp_path / "keys", read_study(tmp_path / "study.toml")
    by_server, by_leeds = server_signer(keys / "server"), client_signer(keys / "clients" / "leeds")
    from_server = server_verifier(keys / "clients" / "york")
    public = client_public_keys(keys / "server", study)
    from_leeds, from_york = client_verifier(public["leeds"]), client_verifier(public["york"])
    assert from_server(b"words", by_server(b"words"))
    assert not from_server(b"other words", by_server(b"words"))
    assert not from_server(b"words", by_leeds(b"words"))
    assert from_leeds(b"words", by_leeds(b"words"))
    assert not from_york(b"words", by_leeds(b"words"))
    assert not from_leeds(b"words", b"")


def test_a_dry_run_shows_the_first_update_and_sends_nothing(command, tmp_path):
    code, out, _ = command("client", "study.toml", "--name", "leeds", "--data", "leeds.csv", "--dry-run")
    assert code == 0
    assert "  n = 120" in out
    assert "delta precision_mean, one number per parameter (6 significant digits):" in out
    lines = out.splitlines()
    header = lines.index("  delta precision, one row and one column per parameter (6 significant digits):") + 1
    names = ["intercept", "rx[T.low]", "rx[T.high]", "age", "sex[T.m]", "rx[T.low]:age", "rx[T.high]:age"]
    assert lines[header].split() == ["parameter", *names]
    rows = [line.split() for line in lines[header + 1 : header + 1 + len(names)]]
    assert [row[0] for row in rows] == names
    matrix = np.array([[float(cell) for cell in row[1:]] for row in rows])
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-5)
    assert not (tmp_path / "sites").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["server", "study.toml"], "server.pem not found"),
        (["server", "study.toml", "--insecure"], "0.0.0.0 is not"),
        (["client", "study.toml", "--name", "leeds", "--data", "leeds.csv"], "client.key not found"),
        (
            ["client", "study.toml", "--name", "leeds", "--data", "leeds.csv", "--insecure", "--server", "a.org:8000"],
            "a.org is not",
        ),
        (["client", "study.toml", "--name", "leed", "--data", "leeds.csv", "--dry-run"], "did you mean 'leeds'?"),
        (["status", "study.toml"], "no run found"),
        (["stop", "study.toml"], "no server is running"),
        (["withdraw", "hull", "study.toml"], "unknown client 'hull'"),
        (["leave", "study.toml", "--name", "leeds"], "no client has run in this folder"),
    ],
)
def test_user_errors(command, words, expected):
    code, _, err = command(*words)
    assert code == 2
    assert expected in err


def test_sfvi_suggests_the_method_for_networks(command, tmp_path):
    text = FEDERATED.replace(
        '[model]\nfamily = "logistic"\nformula = "died ~ rx * age + sex"', '[model]\nfunction = "m:f"'
    )
    (tmp_path / "study.toml").write_text(text.replace('scaling = "federated"\n', "") + '[algorithm]\nmethod = "sfvi"\n')
    code, _, err = command("server", "study.toml", "--allow-model", "m")
    assert code == 2
    assert "SFVI-Avg on a network" in err


def test_requests_and_status(command, tmp_path):
    run = tmp_path / "runs" / "trial-1"
    with only_one(run, "a server"):
        write_status(run, state="running", line="round 3", round=3, gap=2e-3, connected=["leeds"], study="trial-1")
        code, out, _ = command("status", "study.toml")
        assert code == 0
        assert out.startswith("trial-1: running\n")
        assert "connected: leeds" in out
        assert command("stop", "study.toml")[0] == 0
        assert command("withdraw", "york", "study.toml")[0] == 0
        assert Requests(run).pending() == ["stop", "withdraw-york"]
    _, out, _ = command("status", "study.toml")
    assert "not running; restart it to resume" in out
    assert (run / LOCK).exists()


def test_leaving(command, tmp_path):
    (tmp_path / "sites" / "trial-1" / "leeds").mkdir(parents=True)
    code, out, _ = command("leave", "study.toml", "--name", "leeds")
    assert code == 0
    assert "start `cavity client` to send the request" in out
    assert (tmp_path / "sites" / "trial-1" / "leeds" / "leave").exists()


GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "first-study.md").read_text()
COMMAND_LINES = [line for block in re.findall(r"```\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]


def test_the_guide_has_commands():
    assert len(COMMAND_LINES) >= 7
    assert all(line.startswith("cavity ") for line in COMMAND_LINES)


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_commands_of_the_guide_exist(line):
    """With these options; what they do is tested elsewhere."""
    words = shlex.split(line)[1:]
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known
    with command.make_context("cavity", words) as context:
        assert context.params


def test_text_of_others_cannot_control_the_terminal_or_the_log(tmp_path, capsys):
    """One line each, without control characters; a traceback keeps its lines."""
    logger = logging.getLogger("cavity")
    before = (logger.handlers[:], logger.level, logger.propagate)
    try:
        notify = terminal_and_log(tmp_path / "server.log")
        notify("york says \x1b[2J[red]no\n12:00:00 leeds is connected" + "x" * 10_000)
        try:
            raise ValueError("\x1b]0;title\x07")
        except ValueError:
            logger.exception("a fault \r of york")
    finally:
        logger.handlers[-1].close()
        logger.handlers[:], logger.level, logger.propagate = before
    lines = (tmp_path / "server.log").read_text().splitlines()
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert "\\x1b[2J[red]no\\n12:00:00" in shown[0]
    assert len(shown[0]) < 2200
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: \\x1b]0;title\\x07"
    assert all(line.isprintable() for line in [*lines, *shown])
