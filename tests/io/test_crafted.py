"""Messages and files that somebody has made with care: each is refused, with the error for it, and in little memory."""

import io
import json
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

import cavity
from cavity.errors import CheckpointError, ProtocolError
from cavity.io import serialization
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
TWO = struct.pack("<2d", 1.0, 2.0)
LETTER = {"kind": "here", "study": "hash", "run": "run", "client": "leeds"}


def envelope(body):
    """The manifest's tree of a letter with this body."""
    fields = {**LETTER, "body": {"dict": [["settings", "{}"], ["x", body]]}}
    return {"module": "cavity.network.protocol:Envelope", "fields": fields}


def manifest(tree):
    text = tree if isinstance(tree, str) else json.dumps({"format": serialization.FORMAT, "tree": tree})
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(text.encode())},), }}"
    return (f"{serialization.MANIFEST}.npy", npy(header, text.encode()))


def body(node):
    return archive([manifest(envelope(node))])


def text(node):
    """A body in JSON that `json.dumps` would not write."""
    return archive(
        [manifest(json.dumps({"format": serialization.FORMAT, "tree": envelope("HERE")}).replace('"HERE"', node))]
    )


def with_array(header, elements=TWO):
    return archive([("/x.npy", npy(header, elements)), manifest(envelope({"array": "/x"}))])


def header(**parts):
    kept = {"descr": "'<f8'", "fortran_order": "False", "shape": "(2,)"} | parts
    return "{" + "".join(f"'{key}': {value}, " for key, value in kept.items()) + "}"


def zipped(method, entry=None, flags=0):
    """As other programs write archives."""
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
    """An entry that says that it is compressed in this way."""
    content = bytearray(zipped(zipfile.ZIP_STORED, entry))
    for signature, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.index(signature) + place
        content[at : at + 2] = number.to_bytes(2, "little")
    return bytes(content)


def bomb(megabytes=1024):
    """A megabyte that becomes a gigabyte: one compressed megabyte of zeros, again and again."""
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
    "a size that is not there": lambda: archive([manifest(envelope(1))]).replace(
        b"\x01\x00\x10\x00", b"\x01\x00\x10\x01"
    ),
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
    "truth values that are neither": lambda: with_array(header(descr="'|b1'"), b"\x07\x09"),
    "text beyond Unicode": lambda: with_array(header(descr="'<U1'"), b"\xff" * 8),
    "fewer elements than it says": lambda: with_array(header(shape="(3,)")),
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
    "a tree that is nested too deep to walk": lambda: text(nested(330)),
    "a megabyte of empty objects": lambda: text('{"list": [' + "{}," * 330_000 + "1]}"),
    "more manifest than anybody writes": lambda: text('{"list": [' + "1," * 10**6 + "1]}"),
    "one array for all": lambda: archive(
        [("x.npy", npy(NUMBERS, TWO)), manifest(envelope({"list": [{"array": "x"}] * 9999}))]
    ),
    "more arrays than anybody sends": lambda: archive(
        [(f"{i}.npy", npy(NUMBERS, TWO)) for i in range(12_000)]
        + [manifest(envelope({"list": [{"array": str(i)} for i in range(12_000)]}))]
    ),
    "an array that nobody asks for": lambda: archive([("x.npy", npy(NUMBERS, TWO)), manifest(envelope(1))]),
    "the manifest as an array": lambda: body({"array": "manifest"}),
    "a manifest of floats": lambda: archive([(f"{serialization.MANIFEST}.npy", npy(NUMBERS, TWO))]),
    # classes
    "the command": lambda: body({"module": "cavity.cli.main:app", "fields": {}}),
    "an experiment": lambda: body({"module": "cavity_experiments.runner:Result", "fields": {}}),
    "a plain class": lambda: body({"module": "cavity.io.checkpoints:RunDirectory", "fields": {}}),
    "another name of a class": lambda: body({"module": "cavity.ledger:Settlement", "fields": {}}),
    "an abstract class": lambda: body({"module": "cavity.core.solver:Loss", "fields": {}}),
    "no class": lambda: body({"module": None, "fields": {}}),
    "fields in a list": lambda: body({"module": "cavity.core.messages:Settlement", "fields": []}),
    "a report for a number": lambda: body(
        {"module": "cavity.core.messages:Settlement", "fields": {"sequence": {"list": []}, "exponent": 1}}
    ),
    "a text for a brief": lambda: body(
        {
            "module": "cavity.core.messages:Message",
            "fields": {"client": "leeds", "version": 1, "sequence": 1, "settled": None, "inputs": "x"},
        }
    ),
    "a number for a name": lambda: archive(
        [manifest({"module": "cavity.network.protocol:Envelope", "fields": {**LETTER, "run": 3, "body": {"dict": []}}})]
    ),
    "a text for a distribution's array": lambda: body(
        {"module": "cavity.distributions.conjugate:Gamma", "fields": {"shape_less_one": "x", "rate": 1}}
    ),
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_message_is_refused(kind):
    """With the right signature, so that it is read."""
    with pytest.raises(ProtocolError, match="cannot be read"):
        decode(fuzzing.signed("leeds", serialization.seal(CRAFTED[kind]())), fuzzing.verify)


@pytest.mark.parametrize(
    "kind",
    [
        "a megabyte that becomes a gigabyte",
        "a megabyte of empty objects",
        "more manifest than anybody writes",
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
    "more manifest than anybody writes",
    "more arrays than anybody sends",
}  # a file may be of a hundred thousand clients


@pytest.mark.parametrize("kind", [kind for kind in CRAFTED if kind not in FOR_MESSAGES_ONLY])
def test_a_crafted_file_is_refused(tmp_path, kind):
    (tmp_path / CHECKPOINT).write_bytes(serialization.seal(CRAFTED[kind]()))
    with pytest.raises(CheckpointError, match="start the run anew"):
        cavity.load(tmp_path)


def test_what_the_crafted_ones_are_made_of_is_accepted():
    """Or the tests above would prove nothing."""
    for content in (with_array(header()), body({"float": "0x1p+0"}), text('"\\ud83d\\ude00"'), text(nested(40))):
        decode(fuzzing.signed("leeds", serialization.seal(content)), fuzzing.verify)


def test_a_message_imports_nothing(monkeypatch):
    import importlib

    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imported {name}"))
    for module in ("cavity.models.topics", "cavity.cli.main", "cavity.models.nothing"):
        content = body({"module": f"{module}:Thing", "fields": {}})
        with pytest.raises(ProtocolError, match="not a component"):
            decode(fuzzing.signed("leeds", serialization.seal(content)), fuzzing.verify)


def test_a_file_imports_parts_only(monkeypatch):
    import importlib

    imported = []
    monkeypatch.setattr(importlib, "import_module", lambda name: imported.append(name))
    for module in (
        "cavity.cli.main",
        "cavity_experiments.runner",
        "cavity.network.flower",
        "cavity.network.keys",
        "os",
    ):
        with pytest.raises(CheckpointError):
            serialization.from_bytes(serialization.seal(body({"module": f"{module}:Thing", "fields": {}})))
    assert imported == []


class TestGreetings:
    """A holder of some client's key reaches the server; what it says is read only if the key is the right one."""

    def session(self, said):
        verify = {name: (lambda content, seal, name=name: seal == name.encode()) for name in ("leeds", "york")}
        config = SessionConfig(Identity("hash", "{}"), "run", ("leeds", "york"), verify=verify)
        return Session(SimulatedTransport({}), config, notify=said.append)

    def greeting(self, client="leeds", seal=b"leeds", **parts):
        made = Envelope(Kind.HERE.value, "hash", "run", client, {"settings": "{}"} | parts)
        return encode(made, lambda content: seal)

    def test_an_honest_one(self):
        session = self.session([])
        session.greeted("1", "leeds", Delivery("1", self.greeting()))
        assert session.addresses == {"leeds": "1"}

    @pytest.mark.parametrize("known", ["york", None])
    def test_nothing_is_read_without_the_right_signature(self, monkeypatch, caplog, known):
        """Half a thousand bytes, not signed, from a holder of another client's key."""
        monkeypatch.setattr(serialization, "from_bytes", lambda *args, **options: pytest.fail("it was read"))
        session = self.session([])
        for data in (self.greeting(seal=b""), self.greeting(seal=b"other"), b"\0" * 533, b"", protocol.MAGIC):
            session.greeted("1", known, Delivery("1", data))
        assert session.addresses == {}
        assert caplog.text.count("sent no valid greeting") == 5
        assert session._notices["1"]  # the next greeting says why

    def test_a_crafted_one_does_not_end_the_server(self, caplog):
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

    def test_the_name_in_plain_text_is_the_name_inside(self):
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

    def test_what_a_peer_writes_is_shown_without_its_control_characters(self, caplog):
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
