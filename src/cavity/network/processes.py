"""Child processes: programs that run beside this one, and end when it ends."""

from __future__ import annotations

import errno
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

PATIENCE = 5.0  # seconds that a program has to end after it was asked to
# A small program asks Linux to be killed with its parent (PR_SET_PDEATHSIG is 1, SIGKILL is 9), then replaces itself by
# the real one. A `preexec_fn` would do the same, but is not safe with the threads of JAX.
_ASK = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_LEASH = [sys.executable, "-c", _ASK] if sys.platform == "linux" else []


class Child:
    """A program whose output goes to a file.

    On Linux the kernel ends it when this process is killed, so that a node that is restarted does not conflict with its
    predecessor. On other systems it may survive a `kill -9` of this process, and has to be ended by hand.

    Args:
        command: the first word is a script of this Python's environment, or the path of a program.
        log: the file that its output is appended to.
        environment: variables in addition to those of this process.
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
                umask=0o077,  # its files are readable by their owner only
                start_new_session=True,  # Ctrl-C goes to the parent, which ends it
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the program is still running."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Wait for the program to end by itself.

        Args:
            seconds: how long at most.

        Returns:
            Its exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        return self._process.wait(seconds)

    def end(self) -> None:
        """Ask the program to end; kill it if it does not."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()


def _script(name: str) -> str:
    """The path of a script; the folder of this Python is searched first, so no environment has to be activated."""
    if Path(name).is_absolute():
        return name
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CavityError(f"the program {name!r} is not installed; install it with: pip install 'cavity[flower]'")
    return found


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def require_free_port(host: str, port: int) -> None:
    """Raise CavityError if this port cannot be used."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            problem = "port already in use" if error.errno == errno.EADDRINUSE else f"cannot listen ({error.strerror})"
            raise CavityError(f"{host}:{port}: {problem}; choose another --host or --port") from None


def listens(host: str, port: int) -> bool:
    """Whether a program accepts connections there."""
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1.0).close()
    except OSError:
        return False
    return True


def wait_for_port(child: Child, host: str, port: int, seconds: float, what: str) -> None:
    """Wait until a program accepts connections.

    Args:
        child: the program.
        host: its address.
        port: its port.
        seconds: the longest wait.
        what: names the program in the error.

    Raises:
        CavityError: the program has ended, or did not listen in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if listens(host, port) and child.running:
            return
        if not child.running:
            raise CavityError(f"{what} has ended; its log says why (is port {port} in use?)")
        time.sleep(0.2)
    raise CavityError(f"{what} did not listen on port {port} within {seconds:.0f} s; see its log")
