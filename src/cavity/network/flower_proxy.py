"""The proxy at the study's address: it forwards the calls of Flower's SuperNodes to the SuperLink, and nothing else.

A SuperLink serves three interfaces on one port: Fleet for its nodes, Control and Runtime for its owner. Control needs
no key: any program that reaches the port can list runs and unregister nodes. So the SuperLink listens on a loopback
address, and this program on the study's address, in a process of its own:

- A request must be a POST to one of `ROUTES`, compared byte by byte, so that no other spelling of a path can match.
- It must be signed by the key of one of the study's clients before its body is read. Flower signs the time, and neither
  the path nor the body; the SuperLink checks signature, time and node again.
- Header, body, time and number of connections are limited. Each request is rewritten for the SuperLink, with the
  headers of `FORWARDED` only.

While the SuperLink is not ready the response is 503, after which a SuperNode retries; after a 401 it would end.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import h11
import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

logger = logging.getLogger("cavity.proxy")

KIB, MIB = 1 << 10, 1 << 20
ROUTES = {  # path -> limit of the body in bytes; Flower sends arrays in pieces of 5 MiB
    b"/v1/fleet/activate-node": 64 * KIB,
    b"/v1/fleet/deactivate-node": 64 * KIB,
    b"/v1/fleet/send-node-heartbeat": 64 * KIB,
    b"/v1/fleet/pull-messages": 64 * KIB,
    b"/v1/fleet/push-messages": MIB,
    b"/v1/fleet/get-run": 64 * KIB,
    b"/v1/fleet/get-fab": 64 * KIB,
    b"/v1/fleet/push-object": 6 * MIB,
    b"/v1/fleet/pull-object": 64 * KIB,
    b"/v1/fleet/confirm-message-received": 64 * KIB,
}
UNKEYED = {b"/v1/fleet/register-node": 64 * KIB, b"/v1/fleet/unregister-node": 64 * KIB}  # only without keys
PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
VERSIONS = (b"flwr-package-name", b"flwr-package-version", b"flwr-component-name")
FORWARDED = (b"content-type", b"accept", PUBLIC_KEY, SIGNATURE, TIMESTAMP, *VERSIONS)
RETURNED = ("content-type", "flwr-version-incompatibility-message")
REFUSED_HEADERS = {b"transfer-encoding", b"upgrade", b"expect"}

MAX_HEAD = 16 * KIB
MAX_CONNECTIONS, MAX_PER_CLIENT = 512, 16
HEAD_SECONDS = 10.0  # for the handshake, and for the head of a connection's first request
IDLE_SECONDS = 60.0  # between two requests of a client
BODY_SECONDS, SLOWEST = 30.0, 8 * KIB  # time for a body or a response, plus one second per so many bytes
UPSTREAM_SECONDS = 30.0
LINGER_SECONDS = 2.0  # after a refusal, so that the sender can read it
PIECE = 64 * KIB


@dataclass(frozen=True)
class ProxySettings:
    """Where the proxy listens, and where it forwards to.

    Attributes:
        host: the address to listen on.
        port: the port.
        upstream: file with the SuperLink's URL; it exists while the SuperLink is ready.
        certificate: PEM file of the server's certificate; None without TLS.
        key: PEM file of its key.
        authority: PEM file of the certificate that signed the SuperLink's.
        clients: the clients' public keys in PEM; None without TLS.
    """

    host: str
    port: int
    upstream: str
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    clients: tuple[str, ...] | None = None

    def to_json(self) -> str:
        """The settings in JSON, as `main` reads them."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Reply:
    """The response to a request; `last` closes the connection."""

    status: int
    content: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    last: bool = False


def refused(status: int, reason: str) -> Reply:
    """A refusal, with Flower's code (2004) and text for a node that may not connect."""
    content = json.dumps({"code": 2004, "detail": f"Failed to activate SuperNode: {reason}"}).encode()
    return Reply(status, content, (("content-type", "application/json"),), last=True)


class Gate:
    """Decides which requests are forwarded, from their heads alone."""

    def __init__(self, clients: tuple[str, ...] | None):
        self._routes = ROUTES if clients is not None else ROUTES | UNKEYED
        self._keys = None if clients is None else {pem.encode(): _public_key(pem) for pem in clients}

    def refusal(self, request: h11.Request) -> Reply | None:
        """Why a request is not forwarded; None if it is."""
        headers = list(request.headers)
        names = [name for name, _ in headers]
        limit = self._routes.get(request.target) if request.method == b"POST" else None
        if limit is None:
            return refused(404, "not found")
        if sum(len(name) + len(value) for name, value in headers) > MAX_HEAD:
            return refused(431, "the headers are too long")
        if request.http_version != b"1.1" or REFUSED_HEADERS & set(names):
            return refused(400, "requests of this form are not forwarded")
        lengths = [value for name, value in headers if name == b"content-length"]
        if len(lengths) != 1 or any(names.count(name) > 1 for name in FORWARDED):
            return refused(400, "one content-length and at most one of each header is allowed")
        if int(lengths[0]) > limit:
            return refused(413, f"the body is limited to {limit} bytes")
        if self._keys is not None and not self._signed(dict(headers)):
            return refused(412, "its key does not belong to this study")  # Flower shows no text of a 401 or 403
        return None

    def _signed(self, headers: Mapping[bytes, bytes]) -> bool:
        assert self._keys is not None
        try:
            key = self._keys[base64.b64decode(headers[PUBLIC_KEY], validate=True)]
            signature = base64.b64decode(headers[SIGNATURE], validate=True)
            key.verify(signature, headers[TIMESTAMP], ec.ECDSA(hashes.SHA256()))
        except (KeyError, binascii.Error, InvalidSignature):
            return False
        return True


def _public_key(pem: str) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(pem.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


class Proxy:
    """Serves connections.

    If there are too many, the oldest one without a client's key is closed. A connection with a client's key is closed
    only if that client opens too many itself.

    Args:
        settings: where the proxy listens, and where it forwards to.
    """

    def __init__(self, settings: ProxySettings):
        self._settings, self._gate = settings, Gate(settings.clients)
        trusted = settings.authority is None or ssl.create_default_context(cafile=settings.authority)
        limits = httpx.Limits(max_connections=64, keepalive_expiry=2.0)  # the SuperLink closes them after 5 seconds
        self._client = httpx.AsyncClient(verify=trusted, timeout=UPSTREAM_SECONDS, limits=limits, trust_env=False)
        self._connections: dict[
            asyncio.Task[None], bytes
        ] = {}  # -> the client's key, or b"" if none was shown; oldest first
        self._omitted, self._logged = 0, -1.0

    async def serve(self) -> None:
        """Listen until cancelled."""
        settings, context = self._settings, None
        if settings.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(settings.certificate, settings.key)
        waits = {} if context is None else {"ssl_handshake_timeout": HEAD_SECONDS, "ssl_shutdown_timeout": 2.0}
        server = await asyncio.start_server(
            self._accept, settings.host, settings.port, limit=PIECE, ssl=context, **waits
        )
        async with server, self._client:
            await server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._connections) < MAX_CONNECTIONS or self._close_oldest(b""):
                self._connections[task] = b""
                await self._converse(task, reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            logger.debug("a connection ended: %s", type(error).__name__)
        finally:
            self._connections.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # the peer does not read
            writer.close()

    def _close_oldest(self, key: bytes) -> bool:
        """Close the oldest connection with this key; False if there is none."""
        oldest = next((task for task, shown in self._connections.items() if shown == key), None)
        if oldest is None:
            return False
        del self._connections[oldest]
        oldest.cancel()
        return True

    def _trust(self, task: asyncio.Task[None], request: h11.Request) -> None:
        key = dict(request.headers).get(PUBLIC_KEY, b"?")
        if self._connections.get(task) != key:
            if list(self._connections.values()).count(key) >= MAX_PER_CLIENT:
                self._close_oldest(key)
            self._connections[task] = key

    async def _converse(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS if self._connections.get(task) else HEAD_SECONDS):
                    request = await _next_event(http, reader)
                if not isinstance(request, h11.Request):
                    return
                reply = self._gate.refusal(request)
                if reply is None:
                    self._trust(task, request)
                    reply = await self._forward(request, await _body(http, reader, request))
            except h11.RemoteProtocolError as error:
                request, reply = None, refused(error.error_status_hint, "not HTTP")
            if reply.last:
                peer = (writer.get_extra_info("peername") or ("?",))[0]
                what = "no request" if request is None else repr((request.method + b" " + request.target)[:100])
                self._log(f"{reply.status}: refused {what} from {peer}")
            async with asyncio.timeout(BODY_SECONDS + len(reply.content) / SLOWEST):
                await _write(http, writer, reply)
            if reply.last:
                await _linger(reader)
            if reply.last or http.our_state is not h11.DONE:
                return
            http.start_next_cycle()

    async def _forward(self, request: h11.Request, body: bytes) -> Reply:
        headers = [(name, value) for name, value in request.headers if name in FORWARDED]
        try:
            url = Path(self._settings.upstream).read_text()
            response = await self._client.post(url + request.target.decode("ascii"), content=body, headers=headers)
        except (OSError, httpx.RequestError) as error:
            self._log(f"503: the SuperLink is not ready ({type(error).__name__})")
            return Reply(503)
        kept = tuple((name, response.headers[name]) for name in RETURNED if name in response.headers)
        return Reply(response.status_code, response.content, kept)

    def _log(self, line: str) -> None:
        """Log at most one line per second, so that strangers cannot fill the disk."""
        if time.monotonic() - self._logged < 1.0:
            self._omitted += 1
            return
        logger.warning("%s%s", line, f" ({self._omitted} lines omitted before)" if self._omitted else "")
        self._omitted, self._logged = 0, time.monotonic()


async def _next_event(http: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(PIECE))
    return event


async def _body(http: h11.Connection, reader: asyncio.StreamReader, request: h11.Request) -> bytes:
    length = int(dict(request.headers)[b"content-length"])
    parts = []
    async with asyncio.timeout(BODY_SECONDS + length / SLOWEST):
        while isinstance(event := await _next_event(http, reader), h11.Data):
            parts.append(bytes(event.data))
    return b"".join(parts)


async def _write(http: h11.Connection, writer: asyncio.StreamWriter, reply: Reply) -> None:
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [*reply.headers, ("content-length", str(len(reply.content)))]
    if reply.last:
        headers.append(("connection", "close"))
    for event in (
        h11.Response(status_code=reply.status, headers=headers),
        h11.Data(data=reply.content),
        h11.EndOfMessage(),
    ):
        writer.write(http.send(event) or b"")
    await writer.drain()


async def _linger(reader: asyncio.StreamReader) -> None:
    """Read a little of what a refused sender still sends: closing at once would reset connection and response."""
    left = PIECE
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)
    except TimeoutError:
        pass


def main() -> None:
    """Run the proxy with the settings in the file given on the command line."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings = json.loads(Path(sys.argv[1]).read_text())
    if settings["clients"] is not None:
        settings["clients"] = tuple(settings["clients"])
    asyncio.run(Proxy(ProxySettings(**settings)).serve())


if __name__ == "__main__":
    main()
