"""The server's side of Flower: a transport over the grid of Flower's SuperLink.

Flower's SuperLink carries the messages, with TLS and the keys of its nodes. It listens on a loopback address only,
behind a proxy that forwards nothing but its nodes' calls (`flower_proxy`). It runs in its `process` isolation mode, in
which apps are separate processes. This process is the ServerApp: it takes the run's task and uses the grid by
`push_messages` and `pull_messages`. So nothing that is received is executed: the app bundle that Flower requires for a
run has a name and no code.

A run of Flower ends with its SuperLink. When the SuperLink has ended, or another process on this machine has
unregistered a client, `FlowerTransport` restarts it with a new run; messages under way are lost, and the ledger asks
again.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.app import Array, ArrayRecord, Message, Metadata, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PullTaskInputResponse,
    SendTaskHeartbeatRequest,
)
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
from cavity.network.transport import Delivery, Transport, TransportLost

logger = logging.getLogger("cavity")
for name in ("httpx", "flwr", "alembic"):  # httpx logs each request as INFO
    logging.getLogger(name).setLevel(logging.WARNING)

QUIET = {  # no telemetry to Flower, and no installation of packages while a study runs
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
RECORD, CONTENT = "cavity", "content"
LOOPBACK = "127.0.0.1"
STARTING = 60.0  # seconds that the SuperLink has to start
ATTEMPTS, PAUSE = 5, 3.0  # to restart it, and seconds between them
HEARTBEAT = 10.0  # seconds between two heartbeats of a task
CHECK = 5.0  # seconds between two checks that all clients are still registered
BUNDLE = """\
[project]
name = "study"
version = "1.0.0"
description = "Contains no code: both sides are installed where they run."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "cavity"
[tool.flwr.app.components]
serverapp = "cavity.nothing:app"
clientapp = "cavity.nothing:app"
"""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
T = TypeVar("T")
Client = TypeVar("Client", ControlHttpClient, RuntimeHttpClient)


@dataclass(frozen=True)
class ServerSide:
    """Where and how clients reach the server.

    Attributes:
        host: the address; loopback if there are no keys.
        port: for all clients.
        folder: for logs and other files.
        certificate: PEM file of the server's certificate; None for a connection without TLS.
        key: PEM file of its key.
        authority: PEM file of the certificate that signed it.
        nodes: client -> public key in PEM, for those that may connect; None without TLS.
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
        """The address of the server within this machine."""
        return {"0.0.0.0": LOOPBACK, "localhost": LOOPBACK, "::": "::1"}.get(self.host, self.host)


class FlowerTransport(Transport):
    """A transport over Flower. An address is the id of a node; with keys, the client of each node is known.

    Args:
        side: where and how clients reach the server.
    """

    def __init__(self, side: ServerSide):
        self._side = side
        self._link: Child | None = None
        self._proxy: Child | None = None
        self._port = 0  # of the SuperLink
        self._upstream = side.folder / "upstream"
        self._control: ControlHttpClient | None = None
        self._checked = 0.0
        self._grid: HttpGrid | None = None
        self._task: PullTaskInputResponse | None = None
        self._clients: list[ControlHttpClient | RuntimeHttpClient] = []
        self._names: dict[int, str] = {}  # node -> client
        self._over = threading.Event()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The process id of the SuperLink."""
        return None if self._link is None else self._link.pid

    @property
    def superlink_port(self) -> int:
        """The port of the SuperLink on this machine; clients use that of the proxy."""
        return self._port

    @property
    def nodes(self) -> dict[int, str]:
        """The registered nodes: id -> client."""
        return dict(self._names)

    @property
    def proxy_pid(self) -> int | None:
        """The process id of the proxy."""
        return None if self._proxy is None else self._proxy.pid

    def reachable(self) -> dict[str, str | None]:
        if self._proxy is not None and not self._proxy.running:
            logger.warning("the proxy in front of the SuperLink has ended; restarting it")
            try:
                self._start_proxy()
            except CavityError as error:
                raise TransportLost(str(error)) from error
        self._check_registered()
        nodes = self._ask(lambda grid: [node.node_id for node in grid.get_nodes()])
        return {str(node): self._names.get(node) for node in nodes if self._side.nodes is None or node in self._names}

    def send(self, messages: Mapping[str, bytes], seconds: float) -> dict[str, str]:
        if not messages:
            return {}
        packed = [self._message(int(node), content, seconds) for node, content in messages.items()]
        numbers = list(self._ask(lambda grid: grid.push_messages(packed)))
        return {node: number for node, number in zip(messages, numbers, strict=False) if number}

    def fetch(self, numbers: Iterable[str]) -> list[Delivery]:
        numbers = list(numbers)
        return [] if not numbers else [_delivery(m) for m in self._ask(lambda grid: grid.pull_messages(numbers))]

    def _message(self, node: int, content: bytes, seconds: float) -> Message:
        # Flower reads run, node and task from a global variable, which both sides share in a test
        if self._task is None:
            raise TransportLost("the run of Flower has not started")
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
        return Message(record_of(content), metadata=metadata)  # pyright: ignore[reportCallIssue]

    def reopen(self) -> None:
        """End what is left after `TransportLost`, and start a new run."""
        for attempt in range(1, ATTEMPTS + 1):
            self._end_link()
            try:
                self._open()
                return
            except CavityError as error:
                if attempt == ATTEMPTS:
                    raise
                logger.warning("%s; retrying", error)
                time.sleep(PAUSE)

    def close(self) -> None:
        """End the run, the SuperLink and the proxy."""
        self._end_link()
        if self._proxy is not None:
            self._proxy.end()
            self._proxy = None

    def _end_link(self) -> None:
        self._upstream.unlink(missing_ok=True)  # from now on the proxy responds that the server is not ready
        self._over.set()
        for client in (self._grid, *self._clients):
            if client is not None:
                client.close()
        self._grid, self._control, self._clients = None, None, []
        if self._link is not None:
            self._link.end()
            self._link = None

    def _open(self) -> None:
        self._upstream.unlink(missing_ok=True)  # left by a server that was killed
        try:
            if self._proxy is None or not self._proxy.running:
                self._start_proxy()
            self._start_link()
        except httpx.HTTPError as error:
            raise CavityError(f"Flower's SuperLink could not start the run ({error}); see its log") from error

    def _start_proxy(self) -> None:
        side, settings = self._side, self._side.folder / "proxy.json"
        require_free_port(side.host, side.port)
        files = [file and str(file.absolute()) for file in (side.certificate, side.key, side.authority)]
        clients = None if side.nodes is None else tuple(key.decode() for key in side.nodes.values())
        proxy = ProxySettings(side.host, side.port, str(self._upstream.absolute()), *files, clients=clients)
        write_atomically(settings, proxy.to_json().encode())
        command = [sys.executable, "-P", "-m", "cavity.network.flower_proxy", str(settings.absolute())]
        self._proxy = Child(command, side.folder / "proxy.log")
        wait_for_port(self._proxy, side.own_host, side.port, STARTING, "the proxy in front of Flower's SuperLink")

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
        """Become the ServerApp of the run that was just started."""
        signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})
        runtime = self._client(RuntimeHttpClient, signed)
        deadline = time.monotonic() + STARTING
        while not (task := runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))).token:
            if time.monotonic() > deadline:
                raise CavityError("Flower's SuperLink did not start the run; see its log")
            time.sleep(0.2)
        authority = None if self._side.authority is None else self._side.authority.read_bytes()
        grid = HttpGrid(f"{LOOPBACK}:{self._port}", authority is None, authority, token=task.token)
        grid._retry_invoker = None  # pyright: ignore[reportAttributeAccessIssue]  # it would end this process after a 401
        self._task = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(self._task.run))
        self._over = threading.Event()
        threading.Thread(target=_send_heartbeats, args=(grid, self._over), daemon=True).start()
        return grid

    def _client(self, kind: type[Client], *interceptors: SuperExecAuthHttpInterceptor) -> Client:
        authority = None if self._side.authority is None else self._side.authority.read_bytes()
        version = RuntimeVersionHttpInterceptor(component_name="cavity")
        client = kind.from_server_address(
            f"{LOOPBACK}:{self._port}", authority is None, authority, [version, *interceptors]
        )
        self._clients.append(client)
        return client

    def _check_registered(self) -> None:
        """Raise TransportLost if a client was unregistered: Flower registers no key twice, so it must restart."""
        control = self._control
        if not self._names or control is None or time.monotonic() - self._checked < CHECK:
            return
        self._checked = time.monotonic()
        listed = self._ask(lambda grid: control.ListNodes(ListNodesRequest()).nodes_info)
        known = {node.node_id for node in listed if node.status != NodeStatus.UNREGISTERED}
        if gone := [name for node, name in self._names.items() if node not in known]:
            raise TransportLost(f"{', '.join(gone)} was unregistered at Flower's SuperLink")

    def _ask(self, question: Callable[[HttpGrid], T]) -> T:
        """Call the grid, and retry while the SuperLink is busy: a message that is sent twice does no harm."""
        for attempt in range(1, ATTEMPTS + 1):
            if self._grid is None or self._link is None:
                raise TransportLost("the run of Flower has not started")
            try:
                return question(self._grid)
            except (httpx.TransportError, ObjectPushError) as error:
                if attempt == ATTEMPTS or not self._link.running:
                    raise TransportLost(f"Flower's SuperLink does not respond ({type(error).__name__})") from error
            except (httpx.HTTPError, RunNotRunningException) as error:
                raise TransportLost(f"Flower's SuperLink has ended the run ({type(error).__name__})") from error
            time.sleep(PAUSE)
        raise AssertionError


def _send_heartbeats(grid: HttpGrid, over: threading.Event) -> None:
    """Send heartbeats until `over`; without them the SuperLink would end the run."""
    while not over.wait(HEARTBEAT):
        try:
            grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except (httpx.HTTPError, RunNotRunningException):
            return  # the next call to the grid fails too, and is handled there


def record_of(content: bytes) -> RecordDict:
    """Bytes in the form that Flower carries: an array, since Flower sends arrays in pieces, and others at once."""
    return RecordDict({RECORD: ArrayRecord({CONTENT: Array("uint8", (len(content),), "bytes", content)})})


def content_of(message: Message) -> bytes | None:
    """The bytes in a message; None if it has none."""
    record = message.content.array_records.get(RECORD) if message.has_content() else None
    return None if record is None or CONTENT not in record else record[CONTENT].data


def _delivery(message: Message) -> Delivery:
    number = message.metadata.reply_to_message_id
    if message.has_error():
        return Delivery(number, None, f"{message.error.reason} (Flower's code {message.error.code})")
    return Delivery(number, content_of(message), "a response without content")
