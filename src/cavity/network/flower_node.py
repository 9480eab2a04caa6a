"""A client's side of Flower: its SuperNode beside this process, and this process as what Flower calls the ClientApp.

The SuperNode holds the connection, with TLS and the client's key. It runs in its `process` isolation, in which apps
live outside of it: this process takes each message's task, hands the bytes to the resident worker and passes its answer
back. Flower's own executor would start a new interpreter for every message, and run whatever code came with the run;
here no code that comes over the wire is ever looked at. The SuperNode's local port asks for a secret that only this
process has.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.network.flower import ACQUIRE, HEARTBEAT, LOOPBACK, QUIET, disclosed, enclosed
from cavity.network.processes import Child, free_port, listens, wait_for_port

logger = logging.getLogger("cavity")

POLL = 0.25  # seconds between two looks for a message
AGAIN = 5.0  # seconds before a SuperNode that has ended is started again
STARTING = 60.0
LOST = (httpx.HTTPError, RuntimeError, ObjectPullError, ObjectPushError)
FAREWELL = 4.0  # seconds that the SuperNode has to send the last answer


@dataclass(frozen=True)
class ClientSide:
    """How a client connects.

    Attributes:
        server: its address, host:port.
        folder: for logs and other files.
        key: file of the client's private key, in OpenSSH's format; None without TLS.
        authority: PEM file of the certificate that signed the server's.
    """

    server: str
    folder: Path
    key: Path | None = None
    authority: Path | None = None


Handler = Callable[[bytes], bytes]


class FlowerNode:
    """Answers messages until it is told to stop; the SuperNode is started again whenever it has ended."""

    def __init__(self, side: ClientSide, handle: Handler, say: Callable[[str], None] = lambda line: None):
        self._side, self._handle, self._say = side, handle, say
        self._node: Child | None = None
        self._port, self._told = 0, ""

    @property
    def pid(self) -> int | None:
        """Of the SuperNode."""
        return None if self._node is None else self._node.pid

    def serve(self, done: Callable[[], bool]) -> None:
        """Answer until `done`, or until interrupted."""
        log = self._side.folder / "supernode.log"
        try:
            while not done():
                host, _, port = self._side.server.rpartition(":")
                if not listens(host, int(port)):
                    self._tell(f"nobody answers at {self._side.server} yet")
                before = log.stat().st_size if log.exists() else 0
                try:
                    self._serve_one_node(done)
                except CavityError as error:
                    logger.warning("%s", error)
                if not done():
                    self._tell(f"{_why_it_ended(log, before)}; trying again")
                    _wait(AGAIN, done)
        finally:
            if self._node is not None:
                self._node.end()

    def _tell(self, line: str) -> None:
        """What the owner should know, once."""
        if line != self._told:
            self._told = line
            self._say(line)

    def _serve_one_node(self, done: Callable[[], bool]) -> None:
        side, secret = self._side, secrets.token_bytes(32)
        secret_file = side.folder / "secret"
        write_atomically(secret_file, secret)
        self._port = free_port()
        command = ["flower-supernode", "--superlink", side.server, "--isolation", "process"]
        command += ["--host", LOOPBACK, "--port", str(self._port), "--superexec-auth-secret-file", str(secret_file)]
        if side.key is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(side.authority), "--auth-supernode-private-key", str(side.key)]
        environment = QUIET | {"FLWR_HOME": str(side.folder)}
        self._node = Child(command, side.folder / "supernode.log", environment)
        wait_for_port(self._node, LOOPBACK, self._port, STARTING, "Flower's SuperNode")
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        with self._client(signed) as tasks:
            until = float("inf")
            while self._node.running and time.monotonic() < until:
                if done():  # the last answer is with the SuperNode, which looks for it twice a second
                    until = min(until, time.monotonic() + FAREWELL)
                try:
                    task = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                    if task.token:
                        self._told = ""
                        self._serve_one_message(task.token)
                        continue
                except LOST as error:  # the server will ask again
                    logger.warning("a message was lost: %s: %s", type(error).__name__, error)
                    if isinstance(error, httpx.TransportError):
                        break  # a SuperNode that has half of an answer waits for the other half for ever
                time.sleep(POLL)
        self._node.end()

    def _serve_one_message(self, token: str) -> None:
        with self._client(RuntimeTokenHttpInterceptor(token)) as client, _signs_of_life(client):
            message, context, _, _ = pull_task_input(client)
            reply = self._handle(disclosed(message) or b"")
            push_message(client, Message(enclosed(reply), reply_to=message), context)
            _finish(client, context)

    def _client(self, *interceptors: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="cavity")
        interceptors = (_NewConnection(), *interceptors)
        return RuntimeHttpClient.from_server_address(f"{LOOPBACK}:{self._port}", True, None, [version, *interceptors])


class _NewConnection:
    """Every request has a connection of its own: the SuperNode closes one that idles, perhaps as a request sets out."""

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["connection"] = "close"
        return call_next(context)


def _finish(client: RuntimeHttpClient, context: Context) -> None:
    push_task_output(client, context, SubStatus.COMPLETED, "")


@contextlib.contextmanager
def _signs_of_life(client: RuntimeHttpClient) -> Any:
    """A long solve is not a dead one."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(HEARTBEAT):
            with contextlib.suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


ENDS = {  # what Flower's log says -> what it means
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not from this study's authority: other keys are needed",
    "Failed to activate SuperNode": (
        "the server does not let this key in: it is not registered there, or another client has it now "
        "(one that was killed counts as gone after a minute)"
    ),
}


def _why_it_ended(log: Path, start: int) -> str:
    """From what the SuperNode has written since."""
    with open(log, "rb") as file:
        file.seek(start)
        written = file.read().decode(errors="replace")
    found = [meaning for words, meaning in ENDS.items() if words in written]
    return found[0] if found else f"the connection has ended (Flower's log is {log})"


def _wait(seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():
        time.sleep(0.1)
