"""Messages and files that an attacker has crafted: each is refused with a proper error, and in little memory."""

import io
import json
import struct
import sys
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

import cavity
from cavity.core.messages import Acknowledgement, ClientInput, Message
from cavity.distributions import Gamma
from cavity.errors import CheckpointError, ProtocolError
from cavity.io import serialization, type_table
from cavity.io.checkpoints import CHECKPOINT
from cavity.network import protocol
from cavity.network.protocol import Envelope, Identity, Kind, decode, encode
from cavity.network.session import Session, SessionConfig
from cavity.network.transport import Delivery
from tests import fuzzing
from tests.fuzzing import archive, npy
from tests.simulated_transport import SimulatedTransport

MOST = 64 * 2**20
NUMBERS = "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }"
ENVELOPE, MESSAGE, INPUT, ACKNOWLEDGEMENT, GAMMA = map(
    type_table.name_of, (Envelope, Message, ClientInput, Acknowledgement, Gamma)
)
TWO = struct.pack("<2d", 1.0, 2.0)
HEADERS = {"kind": "here", "study": "hash", "run": "run", "client": "leeds"}


PATH, IDENTIFIER = "cavity.core.messages:Acknowledgement", ACKNOWLEDGEMENT.partition("/")[0]
ACCEPTED = {"sequence": 1, "exponent": 1}


def envelope(body):
    """The tree of the manifest of an envelope with this body."""
    fields = {**HEADERS, "body": {"dict": [["settings", "{}"], ["x", body]]}}
    return {"type": ENVELOPE, "fields": fields}


def manifest(tree):
    text = tree if isinstance(tree, str) else json.dumps({"format": serialization.FORMAT, "tree": tree})
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(text.encode())},), }}"
    return (f"{serialization.MANIFEST}.npy", npy(header, text.encode()))


def body(node):
    return archive([manifest(envelope(node))])


def text(node):
    """A message whose body is this JSON, which `json.dumps` would not write."""
    return archive(
        [manifest(json.dumps({"format": serialization.FORMAT, "tree": envelope("HERE")}).replace('"HERE"', node))]
    )


def with_array(header, elements=TWO):
    return archive([("/x.npy", npy(header, elements)), manifest(envelope({"array": "/x"}))])


def header(**parts):
    kept = {"descr": "'<f8'", "fortran_order": "False", "shape": "(2,)"} | parts
    return "{" + "".join(f"'{key}': {value}, " for key, value in kept.items()) + "}"


def zipped(method, entry=None, flags=0):
    """An archive as other programs write it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("x.npy", npy(NUMBERS, TWO) if entry is None else entry)
        file.writestr(*manifest(envelope({"array": "x"})))
    content = bytearray(buffer.getvalue())
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(signature) + place
        content[at : at + 2] = (int.from_bytes(content[at : at + 2], "little") | flags).to_bytes(2, "little")
    return bytes(content)


def with_method(number, entry=None):
    """An entry whose header states this compression method."""
    content = bytearray(zipped(zipfile.ZIP_STORED, entry))
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.index(signature) + place
        content[at : at + 2] = number.to_bytes(2, "little")
    return bytes(content)


def bomb(megabytes=1024):
    """A megabyte that becomes a gigabyte when it is decompressed: one compressed megabyte of zeros, repeated."""
    block = zlib.compressobj(9, wbits=-15)
    zeros = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    ending = zlib.compressobj(9, wbits=-15).flush()
    start = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({megabytes * 2**20},), }}", b"")
    first = zlib.compressobj(9, wbits=-15)
    packed = first.compress(start) + first.flush(zlib.Z_FULL_FLUSH) + zeros * megabytes + ending
    size, name = len(start) + megabytes * 2**20, b"x.npy"
    numbers = (20, 0, 8, 0, 33, 0, len(packed), size, len(name))
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", *numbers, 0) + name + packed
    central = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, *numbers, 0, 0, 0, 0, 0, 0) + name
    return local + central + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)


def nested(depth, inner="1"):
    return '{"list": [' * depth + inner + "]}" * depth


CRAFTED = {
    # the container
    "a megabyte that becomes a gigabyte": bomb,
    "deflated": lambda: zipped(zipfile.ZIP_DEFLATED),
    "bzip2": lambda: zipped(zipfile.ZIP_BZIP2),
    "lzma": lambda: zipped(zipfile.ZIP_LZMA),
    "encrypted": lambda: zipped(zipfile.ZIP_STORED, flags=1),
    "strongly encrypted": lambda: zipped(zipfile.ZIP_STORED, flags=0x41),
    "patched": lambda: zipped(zipfile.ZIP_STORED, flags=0x20),
    "sizes that follow later": lambda: zipped(zipfile.ZIP_STORED, flags=8),
    "an unknown compression": lambda: with_method(99),
    "deflated nonsense": lambda: with_method(8, b"\xff" * 40),
    "bzip2 nonsense": lambda: with_method(12, b"\xff" * 40),
    "lzma nonsense": lambda: with_method(14, b"\x09\x04\x05\x00" + b"\xff" * 40),
    "a size beyond the end": lambda: archive([manifest(envelope(1))]).replace(b"\x01\x00\x10\x00", b"\x01\x00\x10\x01"),
    "an entry beyond the end": lambda: archive([manifest(envelope(1))])[:60],
    "no entries": lambda: archive([]),
    "a name twice": lambda: archive([("x.npy", npy(NUMBERS, TWO))] * 2 + [manifest(envelope({"array": "x"}))]),
    "a name that is not text": lambda: archive([("x.npy", npy(NUMBERS, TWO))]).replace(b"x.npy", b"\xff.npy"),
    "an entry that is not an array": lambda: archive([("x.txt", b"text"), manifest(envelope(1))]),
    # the header of an array
    "a shape of terabytes": lambda: with_array(header(shape="(999999999999,)")),
    "a shape beyond 64 bits": lambda: with_array(header(shape="(99999999999999999999,)")),
    "a product beyond 64 bits": lambda: with_array(header(shape="(4294967296, 4294967296)"), b""),
    "a negative shape": lambda: with_array(header(shape="(-2,)")),
    "no elements of a large shape": lambda: with_array(header(shape="(0, 999999999999)"), b""),
    "ten thousand axes": lambda: with_array(header(shape="(" + "999999999, " * 5000 + "2)")),
    "forty axes": lambda: with_array(header(shape="(" + "1, " * 39 + "2)")),
    "a bracket that is not closed": lambda: with_array("{'descr': '<f8', 'shape': (2,"),
    "a string that is not closed": lambda: with_array("{'descr': '''<f8"),
    "brackets in brackets": lambda: with_array("(" * 2000 + ")" * 2000),
    "minus signs": lambda: with_array("{'descr': " + "-" * 9000 + "1}"),
    "a long integer": lambda: with_array(header(shape="(" + "9" * 8000 + ",)")),
    "null bytes": lambda: with_array("\x00" * 50),
    "a header beyond the end": lambda: archive([("x.npy", b"\x93NUMPY\x01\x00\xff\xff{")]),
    "another version of the header": lambda: archive([("x.npy", b"\x93NUMPY\x09\x00" + b"\xff" * 9)]),
    "objects": lambda: with_array(header(descr="'|O'")),
    "a structure": lambda: with_array(header(descr="[('a', '<f8')]")),
    "times": lambda: with_array(header(descr="'<M8[s]'")),
    "an item of gigabytes": lambda: with_array(header(descr="'<U99999999'")),
    "items without a size": lambda: with_array(header(descr="'<U0'", shape="(999999999,)"), b""),
    "booleans that are neither": lambda: with_array(header(descr="'|b1'"), b"\x07\x09"),
    "text beyond Unicode": lambda: with_array(header(descr="'<U1'"), b"\xff" * 8),
    "fewer elements than declared": lambda: with_array(header(shape="(3,)")),
    # the manifest
    "a float beyond all floats": lambda: body({"float": "0x1p+99999"}),
    "a float of a megabyte": lambda: body({"float": "0x" + "1" * 10**6}),
    "a float that is a list": lambda: body({"float": ["0x1p+0"]}),
    "an integer of 5000 digits": lambda: text("9" * 5000),
    "NaN": lambda: text("NaN"),
    "Infinity": lambda: text('{"list": [Infinity]}'),
    "a decimal fraction": lambda: text("1e400"),
    "a key twice": lambda: text('{"float": "0x1p+0", "float": "0x1p+1"}'),
    "an entry of a dict twice": lambda: body({"dict": [["a", 1], ["a", 2]]}),
    "a key that is a list": lambda: body({"dict": [[[], 1]]}),
    "half of a surrogate pair": lambda: text('"\\ud800"'),
    "half of a surrogate pair as a key": lambda: text('{"dict": [["\\ud800", 1]]}'),
    "not UTF-8": lambda: text('"hull"').replace(b"hull", b"\xff\xfe\xfd\xfc"),
    "lists in lists": lambda: text("[" * 100_000),
    "lists in lists that are closed": lambda: text(nested(150)),
    "a tree that is nested too deep": lambda: text(nested(330)),
    "a megabyte of empty objects": lambda: text('{"list": [' + "{}," * 330_000 + "1]}"),
    "a manifest beyond the limit": lambda: text('{"list": [' + "1," * 10**6 + "1]}"),
    "one array for all": lambda: archive(
        [("x.npy", npy(NUMBERS, TWO)), manifest(envelope({"list": [{"array": "x"}] * 9999}))]
    ),
    "arrays beyond the limit": lambda: archive(
        [(f"{i}.npy", npy(NUMBERS, TWO)) for i in range(12_000)]
        + [manifest(envelope({"list": [{"array": str(i)} for i in range(12_000)]}))]
    ),
    "an array that is not used": lambda: archive([("x.npy", npy(NUMBERS, TWO)), manifest(envelope(1))]),
    "the manifest as an array": lambda: body({"array": "manifest"}),
    "a manifest of floats": lambda: archive([(f"{serialization.MANIFEST}.npy", npy(NUMBERS, TWO))]),
    # classes
    "a path of the command": lambda: body({"type": "cavity.cli.main:app", "fields": {}}),
    "a path of an experiment": lambda: body({"type": "cavity_experiments.runner:Result", "fields": {}}),
    "a path of a plain class": lambda: body({"type": "cavity.io.checkpoints:RunDirectory", "fields": {}}),
    "a path of a function": lambda: body({"type": "os:system", "fields": {}}),
    "a path of a class in the table": lambda: body({"type": PATH, "fields": {"sequence": 1, "exponent": 1}}),
    "a path with a version": lambda: body({"type": f"{PATH}/1", "fields": {"sequence": 1, "exponent": 1}}),
    "a path as in format 2": lambda: body({"module": PATH, "fields": {"sequence": 1, "exponent": 1}}),
    "a dotted path": lambda: body({"type": "cavity.core.messages.Acknowledgement/1", "fields": ACCEPTED}),
    "a path behind the prefix of outside classes": lambda: body({"type": "user:os:system", "fields": {}}),
    "an outside class that was not passed": lambda: body({"type": "user:Anything", "fields": {}}),
    "an abstract class": lambda: body({"type": "core.loss/1", "fields": {}}),
    "an unknown identifier": lambda: body({"type": "core.nothing/1", "fields": {}}),
    "no version": lambda: body({"type": IDENTIFIER, "fields": ACCEPTED}),
    "a later version": lambda: body({"type": f"{IDENTIFIER}/99", "fields": ACCEPTED}),
    "version zero": lambda: body({"type": f"{IDENTIFIER}/0", "fields": ACCEPTED}),
    "a negative version": lambda: body({"type": f"{IDENTIFIER}/-1", "fields": ACCEPTED}),
    "a version with a zero before it": lambda: body({"type": f"{IDENTIFIER}/01", "fields": ACCEPTED}),
    "a version of a million digits": lambda: body({"type": f"{IDENTIFIER}/" + "1" * 900_000, "fields": ACCEPTED}),
    "a version in other digits": lambda: body({"type": f"{IDENTIFIER}/\u0661", "fields": ACCEPTED}),
    "no class": lambda: body({"type": None, "fields": {}}),
    "a class and something else": lambda: body({"type": ACKNOWLEDGEMENT, "fields": ACCEPTED, "x": 1}),
    "fields in a list": lambda: body({"type": ACKNOWLEDGEMENT, "fields": []}),
    "a field too many": lambda: body({"type": ACKNOWLEDGEMENT, "fields": {**ACCEPTED, "__class__": 1}}),
    "a field too few": lambda: body({"type": ACKNOWLEDGEMENT, "fields": {"sequence": 1}}),
    "a list for a number": lambda: body({"type": ACKNOWLEDGEMENT, "fields": {"sequence": {"list": []}, "exponent": 1}}),
    "a text for the inputs of a client": lambda: body(
        {
            "type": MESSAGE,
            "fields": {
                "client": "leeds",
                "version": 1,
                "sequence": 1,
                "settled": {"type": ACKNOWLEDGEMENT, "fields": ACCEPTED},
                "inputs": "x",
            },
        }
    ),
    "a number for a name": lambda: archive(
        [manifest({"type": ENVELOPE, "fields": {**HEADERS, "run": 3, "body": {"dict": []}}})]
    ),
    "a text for a distribution's array": lambda: body({"type": GAMMA, "fields": {"shape_less_one": "x", "rate": 1}}),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_message_is_refused(kind):
    """The signature is right, so the content is read."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(fuzzing.signed("leeds", serialization.seal(CRAFTED[kind]())), fuzzing.verify)


@pytest.mark.parametrize(
    "kind",
    [
        "a megabyte that becomes a gigabyte",
        "a megabyte of empty objects",
        "a manifest beyond the limit",
        "one array for all",
        "a shape of terabytes",
    ],
)
def test_a_crafted_message_takes_little_memory(kind):
    data = fuzzing.signed("leeds", serialization.seal(CRAFTED[kind]()))
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(data, fuzzing.verify)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST


FOR_MESSAGES_ONLY = {
    "a manifest beyond the limit",
    "arrays beyond the limit",
}  # a file may have a hundred thousand clients


@pytest.mark.parametrize("kind", [kind for kind in CRAFTED if kind not in FOR_MESSAGES_ONLY])
def test_a_crafted_file_is_refused(tmp_path, kind):
    (tmp_path / CHECKPOINT).write_bytes(serialization.seal(CRAFTED[kind]()))
    with pytest.raises(CheckpointError, match="restart the run"):
        cavity.load(tmp_path)


def test_the_parts_of_the_crafted_messages_are_accepted():
    """Otherwise the tests above would prove nothing."""
    inputs = {"type": INPUT, "fields": {"posterior": 1, "entry": 1, "shared": None}}
    acknowledgement = {"type": ACKNOWLEDGEMENT, "fields": ACCEPTED}
    message = {"client": "leeds", "version": 1, "sequence": 1, "settled": acknowledgement, "inputs": inputs}
    accepted = (
        with_array(header()),
        body({"float": "0x1p+0"}),
        body(acknowledgement),
        body({"type": MESSAGE, "fields": message}),
        body({"type": GAMMA, "fields": {"shape_less_one": 1, "rate": 1}}),
        text('"\\ud83d\\ude00"'),
        text(nested(40)),
    )
    for content in accepted:
        decode(fuzzing.signed("leeds", serialization.seal(content)), fuzzing.verify)


def test_a_message_imports_nothing(monkeypatch):
    import importlib

    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    monkeypatch.delitem(sys.modules, "cavity.models.topics", raising=False)
    type_table.clear_caches()
    for name in ("models.prod_lda/1", "cavity.models.topics:ProdLDA", "cavity.cli.main:app", "models.nothing/1"):
        with pytest.raises(ProtocolError, match="not a type that"):
            decode(fuzzing.signed("leeds", serialization.seal(body({"type": name, "fields": {}}))), fuzzing.verify)


def test_a_file_imports_only_what_the_table_names(monkeypatch):
    import importlib

    imported = []
    monkeypatch.setattr(importlib, "import_module", lambda name: imported.append(name))
    type_table.clear_caches()
    paths = ("cavity.cli.main", "cavity_experiments.runner", "cavity.network.flower", "cavity.network.keys", "os")
    for name in [*(f"{module}:Thing" for module in paths), *paths, *(f"{module}/1" for module in paths), "user:os"]:
        with pytest.raises(CheckpointError):
            serialization.from_bytes(serialization.seal(archive([manifest({"type": name, "fields": {}})])))
    assert imported == []
    with pytest.raises(CheckpointError):
        serialization.from_bytes(serialization.seal(archive([manifest({"type": "models.prod_lda/1", "fields": {}})])))
    assert imported == ["cavity.models.topics"]


class TestGreetings:
    """A greeting is read only if it is signed with the key of the client that it names."""

    def session(self, said):
        verify = {name: (lambda content, seal, name=name: seal == name.encode()) for name in ("leeds", "york")}
        config = SessionConfig(Identity("hash", "{}"), "run", ("leeds", "york"), verify=verify)
        return Session(SimulatedTransport({}), config, notify=said.append)

    def greeting(self, client="leeds", seal=b"leeds", **parts):
        made = Envelope(Kind.HERE.value, "hash", "run", client, {"settings": "{}"} | parts)
        return encode(made, lambda content: seal)

    def test_a_valid_greeting(self):
        session = self.session([])
        session.greeted("1", "leeds", Delivery("1", self.greeting()))
        assert session.addresses == {"leeds": "1"}

    @pytest.mark.parametrize("known", ["york", None])
    def test_nothing_is_read_without_a_valid_signature(self, monkeypatch, caplog, known):
        """Unsigned bytes from a holder of the key of another client."""
        monkeypatch.setattr(serialization, "from_bytes", lambda *args, **options: pytest.fail("it was read"))
        session = self.session([])
        for data in (self.greeting(seal=b""), self.greeting(seal=b"other"), b"\0" * 533, b"", protocol.MAGIC):
            session.greeted("1", known, Delivery("1", data))
        assert session.addresses == {}
        assert caplog.text.count("sent no valid greeting") == 5
        sent = {}
        monkeypatch.undo()
        monkeypatch.setattr(session.transport, "reachable", lambda: {"1": known})
        monkeypatch.setattr(session.transport, "send", lambda contents, seconds: sent.update(contents) or {})
        session.connected()
        # the next greeting says what was wrong with the last response
        assert decode(sent["1"], protocol.unverified).body["notice"] == "it is incomplete"

    def test_a_crafted_greeting_does_not_stop_the_server(self, caplog):
        session = self.session([])
        for content in (bomb(), zipped(zipfile.ZIP_STORED, flags=1), text(nested(330))):
            whole = b"\x05leeds" + serialization.seal(content)
            data = protocol.MAGIC + len(b"leeds").to_bytes(2, "big") + b"leeds" + whole
            session.greeted("1", "leeds", Delivery("1", data))
        assert session.addresses == {}
        assert caplog.text.count("cannot be read") == 3

    def test_another_clients_name(self):
        said = []
        session = self.session(said)
        session.greeted("1", "york", Delivery("1", self.greeting("leeds", b"york")))
        assert session.addresses == {}
        assert said == ["a client is refused: the key of 'york' was used by 'leeds'"]

    def test_the_name_in_the_header_must_be_the_name_in_the_content(self):
        content = serialization.to_bytes(Envelope(Kind.HERE.value, "hash", "run", "york", {}))
        with pytest.raises(ProtocolError, match="two clients"):
            decode(fuzzing.signed("leeds", content), fuzzing.verify)

    def test_too_large(self):
        data = self.greeting(x=np.zeros(10**5))
        decode(data, protocol.unverified)
        with pytest.raises(ProtocolError, match="800,.* bytes, and at most 500,000"):
            decode(data, protocol.unverified, largest=500_000)

    @pytest.mark.parametrize("place", range(8, 16))
    def test_a_name_that_is_changed(self, place):
        data = bytearray(fuzzing.signed("leeds", serialization.to_bytes(Envelope("here", "hash", "run", "leeds", {}))))
        data[8 + 2 + 48 + place - 8] ^= 1
        with pytest.raises(ProtocolError, match="signature|not text"):
            decode(bytes(data), fuzzing.verify)

    def test_control_characters_of_a_peer_are_escaped(self, caplog):
        said = []
        session = self.session(said)
        session.greeted("1", "leeds", Delivery("1", self.greeting("\x1b[2Jyork\n" + "x" * 240)))
        assert "\\x1b[2Jyork\\n" in said[0]
        settings = json.dumps({"\x1b[31m[red]\r" * 50: 1})
        made = Envelope(Kind.HERE.value, "other", "run", "leeds", {"settings": settings})
        session.greeted("1", "leeds", Delivery("1", encode(made, lambda content: b"leeds")))
        session.greeted("1", "leeds", Delivery("1", None, "\x1b[2J" + "y" * 10_000))
        for line in [*said, *(record.getMessage() for record in caplog.records)]:
            assert line.isprintable()
            assert len(line) < 400
