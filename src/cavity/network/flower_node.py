"""The client's side of Flower: a SuperNode beside this process, which is the ClientApp itself.

The SuperNode keeps the connection, with TLS and the client's key. It runs in its `process` isolation mode, in which
apps are separate processes: this process takes the task of each message, passes the bytes to the worker and returns its
response. Flower's own executor would start a new interpreter for every message, and run the code that came with the
run; here no received code is ever read. The SuperNode's local port requires a secret that only this process has.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.network.flower import ACQUIRE, HEARTBEAT, LOOPBACK, QUIET, content_of, record_of
from cavity.network.processes import Child, free_port, listens, wait_for_port

logger = logging.getLogger("cavity")

POLL_SECONDS = 0.25  # between two checks for a message
RETRY_SECONDS = 5.0  # before a SuperNode that has ended is restarted
STARTING_SECONDS = 60.0  # that it has to start
LOST = (httpx.HTTPError, RuntimeError, ObjectPullError, ObjectPushError)  # of a message
LAST_SECONDS = 4.0  # that the SuperNode has to send the last response


@dataclass(frozen=True)
class ClientSide:
    """How a client connects.

    Attributes:
        server: the server's address, host:port.
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
    """Responds to messages until it is stopped; the SuperNode is restarted whenever it has ended.

    Args:
        side: how the client connects.
        handle: from a message to its response.
        notify: called with lines about the connection.
    """

    def __init__(self, side: ClientSide, handle: Handler, notify: Callable[[str], None] = lambda line: None):
        self._side, self._handle, self._notify = side, handle, notify
        self._node: Child | None = None
        self._port, self._last_notice = 0, ""

    @property
    def pid(self) -> int | None:
        """The process id of the SuperNode."""
        return None if self._node is None else self._node.pid

    @property
    def port(self) -> int:
        """The port of the SuperNode on this machine."""
        return self._port

    def serve(self, done: Callable[[], bool]) -> None:
        """Respond to messages until `done`, or until interrupted."""
        log = self._side.folder / "supernode.log"
        try:
            while not done():
                host, _, port = self._side.server.rpartition(":")
                if not listens(host, int(port)):
                    self._notify_once(f"no server at {self._side.server} yet")
                before = log.stat().st_size if log.exists() else 0
                try:
                    self._serve_one_node(done)
                except CavityError as error:
                    logger.warning("%s", error)
                if not done():
                    self._notify_once(f"{_why_it_ended(log, before)}; retrying")
                    _wait(RETRY_SECONDS, done)
        finally:
            if self._node is not None:
                self._node.end()

    def _notify_once(self, line: str) -> None:
        """Show a line to the owner, unless it was the last one."""
        if line != self._last_notice:
            self._last_notice = line
            self._notify(line)

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
        wait_for_port(self._node, LOOPBACK, self._port, STARTING_SECONDS, "Flower's SuperNode")
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        with self._client(signed) as tasks:
            until = float("inf")
            while self._node.running and time.monotonic() < until:
                if done():  # the SuperNode checks for the last response twice a second
                    until = min(until, time.monotonic() + LAST_SECONDS)
                try:
                    task = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                    if task.token:
                        self._last_notice = ""
                        self._serve_one_message(task.token)
                        continue
                except httpx.TransportError as error:
                    _log_lost(error)
                    break  # a SuperNode with half of a response waits forever for the other half
                except LOST as error:  # the server will ask again
                    _log_lost(error)
                time.sleep(POLL_SECONDS)
        self._node.end()

    def _serve_one_message(self, token: str) -> None:
        with self._client(RuntimeTokenHttpInterceptor(token)) as client, _heartbeats(client):
            message, context, _, _ = pull_task_input(client)
            reply = self._handle(content_of(message) or b"")
            push_message(client, Message(record_of(reply), reply_to=message), context)
            _finish(client, context)

    def _client(self, interceptor: SuperExecAuthHttpInterceptor | RuntimeTokenHttpInterceptor) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="cavity")
        interceptors = [version, _NewConnection(), interceptor]
        return RuntimeHttpClient.from_server_address(f"{LOOPBACK}:{self._port}", True, None, interceptors)


class _NewConnection:
    """A new connection for every request: the SuperNode closes idle ones, perhaps just as a request is sent."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["connection"] = "close"
        return call_next(context)


def _log_lost(error: Exception) -> None:
    logger.warning("a message was lost: %s: %s", type(error).__name__, error)


def _finish(client: RuntimeHttpClient, context: Context) -> None:
    push_task_output(client, context, SubStatus.COMPLETED, "")


@contextlib.contextmanager
def _heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Send heartbeats during a long computation, so that the task is not considered lost."""
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


ENDS = {  # text in Flower's log -> what it means
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not signed by this study's authority: check --keys",
    "Failed to activate SuperNode": (
        "the server refuses this key: it is not registered, or another client is connected with it "
        "(a client that was killed counts as disconnected after a minute)"
    ),
}


def _why_it_ended(log: Path, start: int) -> str:
    """Why the SuperNode has ended, from what it has written to its log since `start`."""
    with open(log, "rb") as file:
        file.seek(start)
        written = file.read().decode(errors="replace")
    found = [meaning for text, meaning in ENDS.items() if text in written]
    return found[0] if found else f"the connection has ended (Flower's log is {log})"


def _wait(seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():
        time.sleep(0.1)
