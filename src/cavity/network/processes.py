"""Programs that run beside this one, and end with it however it ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cavity.errors import CavityError
from cavity.io.private_files import private_file, private_folder

PATIENCE = 5.0  # seconds that a program has to end by itself
# The program becomes the one behind it after it has asked Linux to be killed with its parent (PR_SET_PDEATHSIG is 1,
# SIGKILL 9). A `preexec_fn` would do the same, but must not be used beside the threads of JAX.
_ASK = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_LEASH = [sys.executable, "-c", _ASK] if sys.platform == "linux" else []


class Child:
    """A program with its output in a file.

    On Linux the kernel ends it when this process is killed, so that a node that is started again does not meet its
    former self; elsewhere it may stay behind after a `kill -9`, and has to be ended by hand.

    Args:
        command: its first word is a script of this Python's environment, or the path of a program.
        log: where its output is added.
        environment: what it gets besides that of this process.
    """

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None):
        private_folder(log.parent)
        with open(log, "ab", opener=private_file) as output:
            self._process = subprocess.Popen(
                [*_LEASH, _script(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                umask=0o077,  # what it writes is for its owner
                start_new_session=True,  # a Ctrl-C is for its parent, which ends it in good order
            )

    @property
    def pid(self) -> int:
        """Of the program."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Ask it to end; if it does not, end it."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def _script(name: str) -> str:
    """Beside this Python first: a virtual environment need not be activated."""
    if Path(name).is_absolute():
        return name
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CavityError(f"the program {name!r} is not installed; install it with: pip install 'cavity[flower]'")
    return found


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def require_free_port(host: str, port: int) -> None:
    """Raise CavityError where somebody listens at this port already: it would be taken for what is started now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CavityError(f"{host}:{port} cannot be listened at: {error.strerror}; give another --port") from None


def listens(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1.0).close()
    except OSError:
        return False
    return True


def wait_for_port(child: Child, host: str, port: int, seconds: float, what: str) -> None:
    """Wait until somebody listens there.

    Raises:
        CavityError: the program has ended, or did not begin to listen in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if listens(host, port) and child.running:
            return
        if not child.running:
            raise CavityError(f"{what} has ended; its log says why (is port {port} taken?)")
        time.sleep(0.2)
    raise CavityError(f"{what} did not listen at port {port} within {seconds:.0f} s; see its log")
