"""The proxy in front of Flower's SuperLink: what it forwards, and attacks by strangers."""

import asyncio
import base64
import contextlib
import http.client
import http.server
import socket
import threading
import time

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi.routing import iter_route_contexts
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore import constant
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.empty_pb2 import Empty

from cavity.network import flower_proxy
from cavity.network.flower_proxy import FORWARDED, MIB, ROUTES, UNKEYED, Proxy, ProxySettings
from cavity.network.processes import free_port, listens

HOST = "127.0.0.1"
KEY, FOREIGN = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
PULL = "/v1/fleet/pull-messages"


def signed(key=KEY, stamp="2026-01-01T00:00:00+00:00", signs=None):
    """The headers of a node with this key."""
    signature = (signs or key).sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    return {
        "flwr-public-key": base64.b64encode(public_key_to_bytes(key.public_key())).decode(),
        "flwr-signature": base64.b64encode(signature).decode(),
        "flwr-timestamp": stamp,
        "content-type": "application/x-protobuf",
    }


class Upstream(http.server.BaseHTTPRequestHandler):
    """Takes the place of the SuperLink: records requests, and returns their bodies."""

    protocol_version = "HTTP/1.1"
    got: list = []  # noqa: RUF012

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-inside", "not for others")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Served:
    """A proxy in a thread, with an upstream behind it."""

    def __init__(self, folder, clients):
        self.file, self.got = folder / "upstream", []
        self._upstream = http.server.ThreadingHTTPServer((HOST, 0), type("Own", (Upstream,), {"got": self.got}))
        self._upstream.daemon_threads = True
        self.port = free_port()  # chosen after the upstream has its own
        self.open()
        settings = ProxySettings(HOST, self.port, str(self.file), clients=clients)
        self._connections = []
        threading.Thread(target=self._upstream.serve_forever, args=(0.05,), daemon=True).start()
        self._thread = threading.Thread(target=self._serve, args=(settings,), daemon=True)
        self._thread.start()
        while not listens(HOST, self.port):
            time.sleep(0.01)

    def open(self):
        self.file.write_text(f"http://{HOST}:{self._upstream.server_address[1]}")

    def _serve(self, settings):
        async def run():
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await Proxy(settings).serve()

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(run())

    def close(self):
        for connection in self._connections:
            connection.close()
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(5)
        self._upstream.shutdown()
        self._upstream.server_close()

    def post(self, path=PULL, body=b"", headers=None, connection=None):
        connection = connection or self.connect()
        connection.request("POST", path, body, headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()

    def connect(self):
        self._connections.append(http.client.HTTPConnection(HOST, self.port, timeout=10))
        return self._connections[-1]

    def raw(self, content, wait=5.0):
        """The first line of the response to these bytes; empty if the connection is closed without one."""
        with socket.create_connection((HOST, self.port), timeout=wait) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(content)
            response = b""
            with contextlib.suppress(ConnectionError):
                while b"\r\n" not in response and (piece := connection.recv(4096)):
                    response += piece
            return response.split(b"\r\n")[0].decode()


@pytest.fixture
def served(tmp_path):
    found = Served(tmp_path, (public_key_to_bytes(KEY.public_key()).decode(),))
    yield found
    found.close()


@pytest.fixture
def unkeyed(tmp_path):
    found = Served(tmp_path, None)
    yield found
    found.close()


def superlink_routes():
    """Every (method, path) of the installed Flower's SuperLink."""
    app = create_app()
    return {
        (method, context.route.path) for context in iter_route_contexts(app.routes) for method in context.route.methods
    }


class Recorder:
    """An interceptor of Flower that records the path of a request, and sends nothing."""

    def __init__(self):
        self.paths = set()

    def intercept(self, context, call_next):
        self.paths.add(context.request.url.raw_path)
        return httpx.Response(200, headers={"content-type": "application/x-protobuf"}, request=context.request)


def test_the_routes_are_those_that_supernodes_call():
    """With the installed Flower; also the names of its headers."""
    recorder = Recorder()
    with FleetHttpClient.from_server_address(f"{HOST}:1", True, None, [recorder]) as client:
        for name in vars(FleetHttpClient):
            if name[0].isupper():
                getattr(client, name)(Empty())
    assert recorder.paths == set(ROUTES) | set(UNKEYED)
    names = {constant.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER}
    names |= {constant.FLWR_PACKAGE_NAME_METADATA_KEY, constant.FLWR_PACKAGE_VERSION_METADATA_KEY}
    names |= {constant.FLWR_COMPONENT_NAME_METADATA_KEY, "content-type", "accept"}
    assert {name.decode() for name in FORWARDED} == names


def test_no_other_route_of_a_superlink_is_forwarded(served):
    """With and without a client's key: Control, Runtime, health and documentation."""
    routes = {(method, path) for method, path in superlink_routes() if path.encode() not in ROUTES}
    assert len([path for _, path in routes if path.startswith(("/v1/control/", "/v1/runtime/"))]) > 40
    for method, path in sorted(routes):
        for headers in ({}, signed()):
            connection = served.connect()
            connection.request(method, path, b"", headers)
            assert connection.getresponse().status == 404, path
    assert served.got == []


HEAD = "".join(f"{name}: {value}\r\n" for name, value in signed().items())
CRAFTED = {
    "climbing": (f"POST /v1/fleet/../control/list-nodes HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "climbing, encoded": (f"POST /v1/fleet/%2e%2e/control/list-nodes HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "an encoded slash": (f"POST /v1%2ffleet/pull-messages HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "two slashes": (f"POST //v1/fleet/pull-messages HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "a slash behind": (f"POST {PULL}/ HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "a query": (f"POST {PULL}?a=/v1/control HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "a fragment": (f"POST {PULL}#a HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "capitals": (f"POST {PULL.upper()} HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "a whole address": (f"POST http://127.0.0.1{PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "another address": (f"POST http://127.0.0.1/v1/control/list-runs HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "a tunnel": (f"CONNECT 127.0.0.1:9 HTTP/1.1\r\n{HEAD}", "404"),
    "another method": (f"GET {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\n", "404"),
    "pieces": (f"POST {PULL} HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\n", "400"),
    "pieces and a length": (
        f"POST {PULL} HTTP/1.1\r\n{HEAD}transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "400",
    ),
    "odd pieces": (f"POST {PULL} HTTP/1.1\r\n{HEAD}transfer-encoding: xchunked\r\ncontent-length: 0\r\n", "501"),
    "two lengths": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\ncontent-length: 9\r\n", "400"),
    "a signed length": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: +0\r\n", "400"),
    "a huge length": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: {'9' * 5000}\r\n", "400"),
    "no length": (f"POST {PULL} HTTP/1.1\r\n{HEAD}", "400"),
    "a space before the colon": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length : 0\r\n", "400"),
    "a folded header": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\n transfer-encoding: chunked\r\n", "400"),
    "two keys": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\nflwr-public-key: eA==\r\n", "400"),
    "a websocket": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\nupgrade: websocket\r\n", "400"),
    "an expectation": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\nexpect: 100-continue\r\n", "400"),
    "an old version": (f"POST {PULL} HTTP/1.0\r\n{HEAD}content-length: 0\r\n", "400"),
    "a large body": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: {64 * 1024 + 1}\r\n", "413"),
    "a large head": (f"POST {PULL} HTTP/1.1\r\n{HEAD}content-length: 0\r\nx: {'x' * 20_000}\r\n", "431"),
    "HTTP/2": ("PRI * HTTP/2.0\r\n", "404"),
    "something else": ("\x16\x03\x01\x02\r\n", "400"),
}


@pytest.mark.parametrize("case", CRAFTED)
def test_crafted_requests_are_refused(served, monkeypatch, case):
    monkeypatch.setattr(flower_proxy, "LINGER_SECONDS", 0.05)
    head, status = CRAFTED[case]
    hosted = head.replace("\r\n", "\r\nhost: a\r\n", 1)
    assert served.raw(hosted.encode("latin-1") + b"\r\n").startswith(f"HTTP/1.1 {status}")
    assert served.got == []


def test_a_second_request_within_a_body_stays_a_body(served):
    """A forwarded request is rewritten, with the length that was read."""
    inner = b"POST /v1/control/list-nodes HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    assert served.post(body=inner, headers=signed())[0] == 200
    assert [(path, body) for path, _, body in served.got] == [(PULL, inner)]


def test_a_clients_request_arrives_with_its_body_and_nothing_else(served):
    body = bytes(range(256)) * 20_000  # 5 MB
    headers = signed() | {"x-forwarded-for": "a", "authorization": "b", "flwr-task-token": "c", "cookie": "d"}
    status, answered, content = served.post("/v1/fleet/push-object", body, headers)
    assert (status, content) == (200, body)
    assert "x-inside" not in {name.lower() for name in answered}
    ((path, arrived, received),) = served.got
    assert (path, received) == ("/v1/fleet/push-object", body)
    assert not {"x-forwarded-for", "authorization", "flwr-task-token", "cookie"} & set(arrived)
    assert {name: arrived[name] for name in signed()}.keys() == signed().keys()
    assert arrived["flwr-public-key"] == signed()["flwr-public-key"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed(FOREIGN),
        signed(KEY, signs=FOREIGN),
        signed() | {"flwr-timestamp": "2027-01-01T00:00:00+00:00"},
        signed() | {"flwr-signature": "not base64"},
    ],
    ids=["none", "a foreign key", "a foreign signature", "another time", "garbage"],
)
def test_without_a_clients_signature_no_body_is_read(served, headers):
    """The request announces 5 MB, and is refused before they are sent."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    response = served.raw(
        f"POST /v1/fleet/push-object HTTP/1.1\r\nhost: a\r\n{lines}content-length: {5 * MIB}\r\n\r\n".encode()
    )
    assert response.startswith("HTTP/1.1 412")
    assert served.got == []


def test_nodes_register_themselves_only_without_keys(served, unkeyed):
    for path in (route.decode() for route in UNKEYED):
        assert served.post(path, headers=signed())[0] == 404
        assert unkeyed.post(path)[0] == 200


def test_503_while_the_superlink_is_not_ready(served):
    """On one connection: 503 at first, then it is served."""
    connection = served.connect()
    served.file.rename(served.file.with_name("away"))
    assert served.post(headers=signed(), connection=connection)[0] == 503
    served.file.write_text(f"http://{HOST}:{free_port()}")  # the SuperLink has ended without removing the file
    assert served.post(headers=signed(), connection=connection)[0] == 503
    served.open()
    assert served.post(headers=signed(), connection=connection)[0] == 200


def test_slow_senders_are_disconnected(served, monkeypatch):
    """Otherwise `raw` would time out."""
    monkeypatch.setattr(flower_proxy, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(flower_proxy, "BODY_SECONDS", 0.1)
    assert served.raw(b"POST /v1/fleet") == ""
    head = f"POST {PULL} HTTP/1.1\r\nhost: a\r\n{HEAD}content-length: 9\r\n\r\nhalf"
    assert served.raw(head.encode()) == ""


def test_strangers_cannot_use_up_the_connections(served, monkeypatch):
    """They can neither keep a client from connecting nor end its connection."""
    monkeypatch.setattr(flower_proxy, "MAX_CONNECTIONS", 4)
    own = served.connect()
    assert served.post(headers=signed(), connection=own)[0] == 200
    held = own.sock
    strangers = [socket.create_connection((HOST, served.port)) for _ in range(20)]
    assert served.post(headers=signed())[0] == 200
    assert served.post(headers=signed(), connection=own)[0] == 200
    assert own.sock is held
    for stranger in strangers:
        stranger.close()


def test_one_client_cannot_use_up_the_connections(served, monkeypatch):
    monkeypatch.setattr(flower_proxy, "MAX_PER_CLIENT", 3)
    connections = [served.connect() for _ in range(6)]
    for connection in connections:
        assert served.post(headers=signed(), connection=connection)[0] == 200
    for connection in connections[:3]:
        connection.sock.settimeout(5)
        assert connection.sock.recv(1) == b""
    assert served.post(headers=signed(), connection=connections[-1])[0] == 200
