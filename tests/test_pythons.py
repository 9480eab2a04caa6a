"""`make test-pythons` finds interpreters that work, and passes over shims that fail."""

import sys
from pathlib import Path

import pytest

from tools import pythons

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def script(folder: Path, line: str) -> Path:
    """An executable file with the name of this Python, which runs this line."""
    folder.mkdir(parents=True)
    file = folder / f"python{VERSION}"
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two folders on the PATH and one of pyenv, all without an interpreter."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def test_no_interpreter(places):
    assert pythons.find(VERSION) is None


def test_shims_that_fail_and_other_versions_are_passed_over(places):
    script(places / "first", "echo 'pyenv: command not found' >&2; exit 127")
    script(places / "second", "echo Python 3.1.4")
    assert pythons.find(VERSION) is None
    working = script(places / "pyenv" / "versions" / f"{VERSION}.4" / "bin", f'exec {sys.executable} "$@"')
    assert pythons.find(VERSION) == working


def test_the_path_comes_first(places):
    script(places / "pyenv" / "versions" / f"{VERSION}.4" / "bin", f'exec {sys.executable} "$@"')
    working = script(places / "second", f'exec {sys.executable} "$@"')
    assert pythons.find(VERSION) == working
