"""The server's side of Flower: messages over its grid, in a run of its SuperLink.

Flower's SuperLink carries the messages, with its TLS and its nodes' keys. What Flower calls the ServerApp is this
process: the SuperLink listens at a loopback address only, behind a proxy that lets nothing but its nodes' calls through
(`flower_proxy`). It runs in its `process` isolation, in which apps live outside of it, and this one takes the run's
task and talks to the grid by `push_messages` and `pull_messages`. So nothing that comes over the wire is executed: the
app bundle that Flower wants for a run holds a name and no code.

A run of Flower does not outlive its SuperLink. When that has ended, or somebody on this machine has unregistered a
client there, `FlowerPost` starts it again with another run; what was under way is lost, and the ledger asks again.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, Message, Metadata, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.network.flower_proxy import ProxySettings
from cavity.network.processes import Child, free_port, require_free_port, wait_for_port
from cavity.network.transport import Delivery, PostLost, Transport

logger = logging.getLogger("cavity")
for name in ("httpx", "flwr", "alembic"):  # each request is an INFO of httpx
    logging.getLogger(name).setLevel(logging.WARNING)

QUIET = {  # nothing is reported to Flower's makers, and nothing is installed while a study runs
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
RECORD, CONTENT = "cavity", "content"
LOOPBACK = "127.0.0.1"
STARTING = 60.0  # seconds that the SuperLink has to come up
ATTEMPTS, PAUSE = 5, 3.0  # to start it again, and seconds between them
HEARTBEAT = 10.0  # seconds between two signs of life of the run's task
CHECK = 5.0  # seconds between two looks whether all clients are still registered
BUNDLE = """\
[project]
name = "study"
version = "1.0.0"
description = "Nothing is executed: both sides are installed where they run."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "cavity"
[tool.flwr.app.components]
serverapp = "cavity.nothing:app"
clientapp = "cavity.nothing:app"
"""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"


@dataclass(frozen=True)
class ServerSide:
    """Where and how clients reach the server.

    Attributes:
        host: the address; loopback if there are no keys.
        port: for all clients.
        folder: for its log and its other files.
        certificate: PEM file of the server's certificate; None for a connection without TLS.
        key: PEM file of its key.
        authority: PEM file of the certificate that signed it.
        nodes: client -> public key in PEM, of those that may connect; None without TLS.
    """

    host: str
    port: int
    folder: Path
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    nodes: Mapping[str, bytes] | None = None

    @property
    def own_host(self) -> str:
        """Where this machine reaches it."""
        return {"0.0.0.0": LOOPBACK, "localhost": LOOPBACK, "::": "::1"}.get(self.host, self.host)


class FlowerPost(Transport):
    """Letters over Flower. An address is a node's number; with keys, the post knows whose key the node has."""

    def __init__(self, side: ServerSide):
        self._side = side
        self._link: Child | None = None
        self._proxy: Child | None = None
        self._port = 0  # of the SuperLink
        self._upstream = side.folder / "upstream"
        self._control: Any = None
        self._checked = 0.0
        self._grid: HttpGrid | None = None
        self._task: Any = None
        self._clients: list[Any] = []
        self._names: dict[int, str] = {}  # node -> client
        self._over = threading.Event()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Of the SuperLink."""
        return None if self._link is None else self._link.pid

    @property
    def proxy_pid(self) -> int | None:
        """Of the proxy."""
        return None if self._proxy is None else self._proxy.pid

    def reachable(self) -> dict[str, str | None]:
        if self._proxy is not None and not self._proxy.running:
            logger.warning("the proxy before the SuperLink has ended; starting it again")
            try:
                self._start_proxy()
            except CavityError as error:
                raise PostLost(str(error)) from error
        self._check_registered()
        nodes = self._ask(lambda grid: [node.node_id for node in grid.get_nodes()])
        return {str(node): self._names.get(node) for node in nodes if self._side.nodes is None or node in self._names}

    def send(self, envelopes: Mapping[str, bytes], seconds: float) -> dict[str, str]:
        if not envelopes:
            return {}
        messages = [self._message(int(node), content, seconds) for node, content in envelopes.items()]
        numbers = list(self._ask(lambda grid: grid.push_messages(messages)))
        return {node: number for node, number in zip(envelopes, numbers, strict=False) if number}

    def fetch(self, envelopes: Iterable[str]) -> list[Delivery]:
        envelopes = list(envelopes)
        return [] if not envelopes else [_delivery(m) for m in self._ask(lambda grid: grid.pull_messages(envelopes))]

    def _message(self, node: int, content: bytes, seconds: float) -> Message:
        # Flower would take run, node and task from a variable of the process, which both sides may share in a test
        metadata = Metadata(
            self._task.run.run_id,
            "",
            SUPERLINK_NODE_ID,
            node,
            "",
            "",
            time.time(),
            seconds,
            "query",
            self._task.task_id,
        )
        return Message(enclosed(content), metadata=metadata)  # pyright: ignore[reportCallIssue]

    def reopen(self) -> None:
        """After `PostLost`: end what is left, and start a new run."""
        for attempt in range(1, ATTEMPTS + 1):
            self._end_link()
            try:
                self._open()
                return
            except CavityError as error:
                if attempt == ATTEMPTS:
                    raise
                logger.warning("%s; trying again", error)
                time.sleep(PAUSE)

    def close(self) -> None:
        """End the run, the SuperLink and the proxy."""
        self._end_link()
        if self._proxy is not None:
            self._proxy.end()
            self._proxy = None

    def _end_link(self) -> None:
        self._upstream.unlink(missing_ok=True)  # from here on the proxy answers that the server is not ready
        self._over.set()
        for client in (self._grid, *self._clients):
            if client is not None:
                client.close()
        self._grid, self._control, self._clients = None, None, []
        if self._link is not None:
            self._link.end()
            self._link = None

    def _open(self) -> None:
        self._upstream.unlink(missing_ok=True)  # of a server that was killed
        try:
            if self._proxy is None or not self._proxy.running:
                self._start_proxy()
            self._start_link()
        except httpx.HTTPError as error:
            raise CavityError(f"Flower's SuperLink does not take the study ({error}); see its log") from error

    def _start_proxy(self) -> None:
        side, settings = self._side, self._side.folder / "proxy.json"
        require_free_port(side.host, side.port)
        files = [file and str(file.absolute()) for file in (side.certificate, side.key, side.authority)]
        clients = None if side.nodes is None else tuple(key.decode() for key in side.nodes.values())
        proxy = ProxySettings(side.host, side.port, str(self._upstream.absolute()), *files, clients=clients)
        write_atomically(settings, proxy.to_json().encode())
        command = [sys.executable, "-P", "-m", "cavity.network.flower_proxy", str(settings.absolute())]
        self._proxy = Child(command, side.folder / "proxy.log")
        wait_for_port(self._proxy, side.own_host, side.port, STARTING, "the proxy before Flower's SuperLink")

    def _start_link(self) -> None:
        side, folder = self._side, self._side.folder
        secret, self._port = secrets.token_bytes(32), free_port()
        secret_file = folder / "secret"
        write_atomically(secret_file, secret)
        command = ["flower-superlink", "--host", LOOPBACK, "--port", str(self._port), "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(secret_file), "--disable-runtime-dependency-installation"]
        if side.certificate is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-certfile", str(side.certificate), "--ssl-keyfile", str(side.key)]
            command += ["--ssl-ca-certfile", str(side.authority), "--enable-supernode-auth"]
        environment = QUIET | {"FLWR_HOME": str(folder)}
        self._link = Child(command, folder / "superlink.log", environment)
        wait_for_port(self._link, LOOPBACK, self._port, STARTING, "Flower's SuperLink")
        self._control = control = self._client(ControlHttpClient)
        self._names = {
            control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)).node_id: name
            for name, key in (side.nodes or {}).items()
        }
        bundle, _ = build_fab_from_files({"pyproject.toml": BUNDLE.encode()})
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", bundle, {}))))
        self._grid = self._take_run(secret)
        scheme = "http" if side.certificate is None else "https"
        write_atomically(self._upstream, f"{scheme}://{LOOPBACK}:{self._port}".encode())

    def _take_run(self, secret: bytes) -> HttpGrid:
        """Be the ServerApp of the run that was just started."""
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        runtime = self._client(RuntimeHttpClient, signed)
        deadline = time.monotonic() + STARTING
        while not (task := runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))).token:
            if time.monotonic() > deadline:
                raise CavityError("Flower's SuperLink did not begin the run; see its log")
            time.sleep(0.2)
        authority = None if self._side.authority is None else self._side.authority.read_bytes()
        grid = HttpGrid(f"{LOOPBACK}:{self._port}", authority is None, authority, token=task.token)
        grid._retry_invoker = None  # pyright: ignore[reportAttributeAccessIssue]  # it would end this process at a 401
        self._task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(self._task.run))
        self._over = threading.Event()
        threading.Thread(target=_stay_alive, args=(grid, self._over), daemon=True).start()
        return grid

    def _client(self, kind: Any, *interceptors: Any) -> Any:
        authority = None if self._side.authority is None else self._side.authority.read_bytes()
        version = RuntimeVersionHttpInterceptor(component_name="cavity")
        client = kind.from_server_address(
            f"{LOOPBACK}:{self._port}", authority is None, authority, [version, *interceptors]
        )
        self._clients.append(client)
        return client

    def _check_registered(self) -> None:
        """Raise PostLost if a client was unregistered: Flower takes no key twice, so it has to start again."""
        if not self._names or self._control is None or time.monotonic() - self._checked < CHECK:
            return
        self._checked = time.monotonic()
        listed = self._ask(lambda grid: self._control.ListNodes(ListNodesRequest()).nodes_info)
        known = {node.node_id for node in listed if node.status != NodeStatus.UNREGISTERED}
        if gone := [name for node, name in self._names.items() if node not in known]:
            raise PostLost(f"{', '.join(gone)} was unregistered at Flower's SuperLink")

    def _ask(self, question: Any) -> Any:
        """Ask the grid; again if the SuperLink is only busy, since a letter that is sent twice does no harm."""
        for attempt in range(1, ATTEMPTS + 1):
            if self._grid is None or self._link is None:
                raise PostLost("the run of Flower has not begun")
            try:
                return question(self._grid)
            except (httpx.TransportError, ObjectPushError) as error:
                if attempt == ATTEMPTS or not self._link.running:
                    raise PostLost(f"Flower's SuperLink does not answer ({type(error).__name__})") from error
            except (httpx.HTTPError, RunNotRunningException) as error:
                raise PostLost(f"Flower's SuperLink has ended the run ({type(error).__name__})") from error
            time.sleep(PAUSE)
        raise AssertionError


def _stay_alive(grid: HttpGrid, over: threading.Event) -> None:
    """Without signs of life the SuperLink would end the run."""
    while not over.wait(HEARTBEAT):
        try:
            grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RunNotRunningException):
            return  # the next question to the grid finds out too


def enclosed(content: bytes) -> RecordDict:
    """Bytes as Flower carries them: as an array, since it sends arrays in pieces and everything else at once."""
    return RecordDict({RECORD: ArrayRecord({CONTENT: Array("uint8", (len(content),), "bytes", content)})})


def disclosed(message: Message) -> bytes | None:
    """The bytes in a message; None where it has none."""
    record = message.content.get(RECORD) if message.has_content() else None
    return record[CONTENT].data if isinstance(record, ArrayRecord) and CONTENT in record else None


def _delivery(message: Message) -> Delivery:
    envelope = message.metadata.reply_to_message_id
    if message.has_error():
        return Delivery(envelope, None, f"{message.error.reason} (Flower's code {message.error.code})")
    return Delivery(envelope, disclosed(message), "an answer without content")
