"""Only the owner can read what a run, a server and a client write, whatever the umask."""

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
    """With a umask of 0, files that set no mode of their own are open to all users."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exposed(folder: Path) -> list[Path]:
    """What other users could enter, read or write."""
    return [path for path in (folder, *folder.rglob("*")) if mode(path) & 0o077]


@pytest.fixture
def own_logging():
    """Handlers that a test adds to the logger are removed after it."""
    logger = logging.getLogger("cavity")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    for handler in set(logger.handlers) - set(before[0]):
        handler.close()
        logger.removeHandler(handler)
    logger.setLevel(before[1])
    logger.propagate = before[2]


@pytest.mark.usefixtures("own_logging")
def test_everything_that_a_run_writes_is_private(tmp_path):
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
    assert child.wait(10.0) == 0
    assert mode(tmp_path / "made") == 0o600


def test_existing_folders_and_files_become_private(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(0o755)
    (folder / "checkpoint.npz").touch(0o644)
    (folder / "sent.jsonl").touch(0o644)
    RunDirectory(folder).write({"mean": np.zeros(2)}, [])
    SentLog(folder / "sent.jsonl").note("reply", b"content")
    assert exposed(folder) == []


def test_a_folder_that_all_users_can_write_to_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(0o777)
    with pytest.raises(CavityError, match="every user can write to this folder; use one of your own"):
        private_folder(shared)
    assert mode(shared) == 0o777


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)

    def refuse(self, mode):
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(CavityError, match="cannot change that because it is not yours"):
        private_folder(theirs)


def test_saving_a_file_does_not_change_the_mode_of_an_existing_folder(tmp_path):
    here = tmp_path / "notes"
    here.mkdir(0o755)
    RunDirectory(here).write_fit("fit.npz", {"mean": np.zeros(2)}, [])
    assert (mode(here), mode(here / "fit.npz")) == (0o755, 0o600)
