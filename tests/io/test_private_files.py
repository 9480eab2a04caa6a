"""What a run, a server and a client write is for their owner alone, whatever the umask."""

import logging
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from cavity.cli.logs import terminal_and_log
from cavity.errors import CavityError
from cavity.io.checkpoints import RunDirectory, write_atomically
from cavity.io.private_files import private_folder
from cavity.network.client_state import SentLog
from cavity.network.processes import Child
from cavity.network.run_directory import Requests, only_one, write_status


@pytest.fixture(autouse=True)
def open_umask():
    """Without a umask every file would be everybody's."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exposed(folder: Path) -> list[Path]:
    """What others could enter, read or write."""
    return [path for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


@pytest.fixture
def own_logging():
    """A log file of Cavity's logger ends with the test."""
    logger = logging.getLogger("cavity")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in set(logger.handlers) - set(before[0]):
        handler.close()
        logger.removeHandler(handler)
    logger.setLevel(before[1])
    logger.propagate = before[2]


@pytest.mark.usefixtures("own_logging")
def test_all_that_is_written_in_a_run(tmp_path):
    folder = tmp_path / "runs" / "trial"
    with only_one(folder, "a server"):
        say = terminal_and_log(folder / "server.log")
        say("round 1")
        write_status(folder, state="running")
        Requests(folder).put("stop")
        RunDirectory(folder).write({"mean": np.zeros(2)}, [{"round": 1}])
        write_atomically(folder / "results" / "posterior.npz", b"content")
        SentLog(folder / "sent.jsonl").note("reply", b"content")
        child = Child(["cavity", "--version"], folder / "flower" / "child.log")
        child.end()
    assert len(list(folder.rglob("*"))) >= 11
    assert exposed(folder) == []
    assert {mode(path) for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert {mode(path) for path in (folder, *folder.rglob("*")) if path.is_dir()} == {0o700}


def test_a_child_creates_private_files(tmp_path):
    child = Child(["/bin/sh", "-c", f"touch '{tmp_path}/made'"], tmp_path / "log")
    child._process.wait(10)
    assert mode(tmp_path / "made") == 0o600


def test_an_older_looser_folder_and_file_are_closed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(0o755)
    (folder / "checkpoint.npz").touch(0o644)
    (folder / "sent.jsonl").touch(0o644)
    RunDirectory(folder).write({"mean": np.zeros(2)}, [])
    SentLog(folder / "sent.jsonl").note("reply", b"content")
    assert exposed(folder) == []


def test_a_folder_of_all_users_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(0o777)
    with pytest.raises(CavityError, match="every user can write to this folder; give one of your own"):
        private_folder(shared)
    assert mode(shared) == 0o777


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)

    def refuse(self, mode):
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(CavityError, match="cannot be closed to them"):
        private_folder(theirs)


def test_saving_a_file_leaves_the_folder_around_it_as_it_is(tmp_path):
    here = tmp_path / "notes"
    here.mkdir(0o755)
    RunDirectory(here).write_fit("fit.npz", {"mean": np.zeros(2)}, [])
    assert (mode(here), mode(here / "fit.npz")) == (0o755, 0o600)
