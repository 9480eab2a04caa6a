"""Mistakes on the command line and in a network study: one line that names the option or file, and the remedy."""

import socket

import jax
import pytest

from tests.mistakes.messages import check_command
from tests.studies import FEDERATED, hospitals, write_csv

CLIENT = ("client", "study.toml", "--name", "leeds", "--data", "leeds.csv")
NEW = ("study", "new", "leeds.csv", "--output", "new.toml")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    """A folder with a study of two hospitals and their files; some words below name other files in it."""
    jax.devices()
    monkeypatch.chdir(tmp_path)
    for name, columns in hospitals().items():
        write_csv(f"{name}.csv", columns)
    (tmp_path / "study.toml").write_text(FEDERATED)
    (tmp_path / "taken").write_text("a file")
    (tmp_path / "keys").mkdir()
    few = {name: cells[:4] for name, cells in hospitals()["leeds"].items()}
    write_csv("few.csv", few)
    write_csv("names.csv", hospitals()["york"] | {"age": [1950 + i for i in range(80)], "arm": ["a"] * 80})


WORDS = {
    "misspelt command": (["rum", "study.toml"], ("No such command 'rum'", "Did you mean 'run'?", "cavity --help")),
    "misspelt subcommand": (["study", "nwe"], ("No such command 'nwe'", "Did you mean 'new'?", "cavity study --help")),
    "misspelt option": (
        ["run", "study.toml", "--dat", "."],
        ("No such option", "Did you mean '--data'?", "cavity run --help"),
    ),
    "no folder of data": (["run", "study.toml"], ("Missing option '--data'", "cavity run --help")),
    "no study": (["run", "--data", "."], ("Missing argument 'STUDY'", "cavity run --help")),
    "no name of a client": (["client", "study.toml", "--data", "leeds.csv"], ("Missing option '--name'",)),
    "one word too many": (
        ["run", "study.toml", "leeds.csv", "--data", "."],
        ("unexpected extra argument", "leeds.csv"),
    ),
    "level in percent": (["run", "study.toml", "--data", ".", "--level", "95"], ("level", "for 95 % give 0.95")),
    "level in words": (["run", "study.toml", "--data", ".", "--level", "high"], ("'--level'", "'high' is not a valid")),
    "seed in words": (["demo", "--seed", "one"], ("'--seed'", "'one' is not a valid integer", "cavity demo --help")),
    "file for a folder": (["demo", "--output", "taken"], ("taken: this is a file", "give a folder")),
    "study and data exchanged": (
        ["study", "check", "leeds.csv", "--data", "study.toml"],
        ("leeds.csv: this is a data file",),
    ),
    "no such study": (["run", "trial.toml", "--data", "."], ("trial.toml: file not found", "check the path")),
    "no such folder": (["run", "study.toml", "--data", "hospitals"], ("hospitals: folder not found", "check the path")),
    "nothing to resume": (
        ["run", "study.toml", "--data", ".", "--resume"],
        ("no checkpoint to resume from", "leave out --resume"),
    ),
    "draft over another file": (
        ["study", "new", "leeds.csv", "--output", "taken"],
        ("taken: the file exists already", "--output"),
    ),
    "draft of no file": (
        ["study", "new", "hull.csv", "--output", "new.toml"],
        ("hull.csv: file not found", "check the path"),
    ),
    "draft of a spreadsheet": (
        ["study", "new", "leeds.xlsx", "--output", "new.toml"],
        ("leeds.xlsx: a spreadsheet", "save it as CSV"),
    ),
    "draft without the outcome": ([*NEW, "--outcome", "dead"], ("column 'dead' not found", "the header has died, rx")),
    "draft, outcome in upper case": ([*NEW, "--outcome", "DIED"], ("column 'DIED' not found", "did you mean 'died'?")),
    "draft, family of another program": (
        [*NEW, "--family", "coxph"],
        ("unknown family 'coxph'", "did you mean 'cox'?"),
    ),
    "draft, outcome of whole numbers": (
        ["study", "new", "names.csv", "--outcome", "age", "--output", "new.toml"],
        ("column 'age' holds whole numbers", "choose with --family", "gaussian for measurements"),
    ),
    "draft, outcome of one value": (
        ["study", "new", "names.csv", "--outcome", "arm", "--output", "new.toml"],
        ("column 'arm' has one value only", "choose another outcome"),
    ),
    "draft, client with a space": (
        [*NEW, "--outcome", "died", "--client", "New York"],
        ("--client 'New York'", "letters"),
    ),
    "server without keys": (["server", "study.toml"], ("keys/server: server.pem not found", "`cavity study keys`")),
    "server open to all": (["server", "study.toml", "--insecure"], ("0.0.0.0 is not one", "use 127.0.0.1")),
    "port out of range": (["server", "study.toml", "--port", "80000"], ("'--port'", "80000 is not in the range")),
    "keys twice": (
        ["study", "keys", "study.toml", "--host", "a.org"],
        ("keys: already exists", "choose another --output"),
    ),
    "keys without a host": (["study", "keys", "study.toml"], ("Missing option '--host'", "cavity study keys --help")),
    "client without keys": ([*CLIENT], ("keys/clients/leeds: client.key not found", "--keys")),
    "client of no study": (
        ["client", "study.toml", "--name", "hull", "--data", "leeds.csv", "--dry-run"],
        ("unknown client 'hull'", "leeds, york"),
    ),
    "client in upper case": (
        ["client", "study.toml", "--name", "Leeds", "--data", "leeds.csv", "--dry-run"],
        ("did you mean 'leeds'?",),
    ),
    "address without a port": (
        [*CLIENT, "--server", "a.org"],
        ("--server a.org", "expected host:port, for example a.org:8000"),
    ),
    "address as a URL": (
        [*CLIENT, "--server", "https://a.org:8000"],
        ("--server https://a.org:8000", "for example a.org:8000"),
    ),
    "insecure over the internet": (
        [*CLIENT, "--server", "a.org:8000", "--insecure"],
        ("a.org is not one", "`cavity study keys`"),
    ),
    "client with few rows": (
        ["client", "study.toml", "--name", "leeds", "--data", "few.csv", "--dry-run"],
        ("4 rows can be used", "at least 10"),
    ),
    "status of no run": (["status", "study.toml"], ("no run found", "--output")),
    "stop of no run": (["stop", "study.toml"], ("no server is running",)),
    "withdrawal of an unknown client": (["withdraw", "hull", "study.toml"], ("unknown client 'hull'", "leeds, york")),
    "withdrawal, words exchanged": (["withdraw", "study.toml", "leeds"], ("leeds: file not found", "check the path")),
    "leaving without a run": (
        ["leave", "study.toml", "--name", "leeds"],
        ("sites/trial-1/leeds: no client has run", "--output"),
    ),
}


@pytest.mark.parametrize(("words", "expected"), WORDS.values(), ids=WORDS.keys())
def test_words(command, words, expected):
    check_command(command, words, "cavity: " if words[1] != "check" else "error: ", *expected)


def test_the_hint_is_given_once(command):
    assert command("study", "nwe")[2].count("Did you mean") == 1
    assert command("rum")[2].count("Did you mean") == 1


def test_a_port_that_is_taken(command):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        words = ("server", "study.toml", "--insecure", "--host", "127.0.0.1", "--port", port)
        check_command(command, words, f"127.0.0.1:{port}", "in use", "--port")
