"""Messages and files that a holder of the right key has changed inside, then sealed and signed again.

A change to the bytes in transit fails at the checksum, and so tests nothing else. Here the manifest, the arrays and the
container are changed before they are sealed and signed, so that all the code behind these checks is reached.
"""

import hashlib
import io
import json
import random
import struct
import zipfile
import zlib
from dataclasses import dataclass

from cavity.core.messages import Acknowledgement, Report, Roster
from cavity.io import serialization
from cavity.io.type_table import name_of, table
from cavity.network import protocol

WIDE = struct.Struct("<4s5H3I2HHHQQ")  # of an entry, as numpy writes it
LISTED = struct.Struct("<4s6H3I5H2I")  # in the directory
END = struct.Struct("<4s4H2IH")
_LARGE = 2**32 - 1
NUMBERS = ["0", "-1", "1", "2", "99", "4294967296", "-9223372036854775809", "9" * 40, "1" + "0" * 400, "true", "null"]
TOKENS = [
    *NUMBERS, '""', '"leeds"', '"work"', '"reply"', '"?"', "[]", "{}", "NaN", "Infinity", "-Infinity", "1e400", "1.5",
    '"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '{"list": []}', '{"tuple": []}', '{"dict": []}', '{"float": "nan"}',
    '{"float": "inf"}', '{"float": "-inf"}', '{"float": "0x1p+9999"}', '{"float": "0x1.8p+1000"}', '{"float": "one"}',
    '{"float": "-0x1.0p+0"}', '{"dict": [["a", 1], ["a", 2]]}', '{"dict": [["a", 1]]}', '{"tuple": ["x", "y"]}',
    '{"array": "manifest"}', '{"array": "nothing"}', '{"list": [{"list": [{"list": []}]}]}', '{"a": 1, "a": 2}',
    f'{{"type": "{name_of(Acknowledgement)}", "fields": {{"sequence": 1, "exponent": {{"float": "0x1p+0"}}}}}}',
    f'{{"type": "{name_of(Roster)}", "fields": {{"names": {{"tuple": []}}}}}}',
    f'{{"type": "{name_of(Report)}", "fields": {{}}}}', f'{{"type": "{name_of(Report)}0", "fields": {{}}}}',
    '{"type": "core.report", "fields": {}}',
    '{"type": "optax.empty_state/1", "fields": {}}', '{"type": "user:Anything", "fields": {}}',
    '{"type": "cavity.core.messages:Report", "fields": {}}', '{"type": "cavity.cli.main:app", "fields": {}}',
    '{"type": "os:system", "fields": {}}', '{"type": "cavity_experiments.runner:Result", "fields": {}}',
    '{"namedtuple": "core.report/1", "fields": {}}', '{"module": "cavity.core.messages:Report", "fields": {}}',
]  # fmt: skip
KEYS = ["type", "fields", "module", "array", "float", "list", "tuple", "dict", "format", "tree", "client", "x"]
DESCRIPTIONS = [
    "<f8", "<f4", "<f2", "<i8", "<i4", "|b1", "|u1", "<c16", "<U1", "<U0", "|S8", "|O", ">f8", "<f16", "<M8[s]", "|V8",
    "<f999999", "<U99999999", "[('a', '<f8')]",
]  # fmt: skip
SHAPES = [
    "", "0,", "1,", "2,", "3,", "2, 2", "4,", "1, 1", "0, 9", "-1,", "99999999999,", "1000000, 1000000",
    "0, 99999999999", "9" * 30 + ",", "1, " * 40 + "1", "2", "(", "0x2,", "True,", "4L,",
]  # fmt: skip
HEADERS = [
    "", "{", "{'descr': '<f8'", "{'descr': ('<f8',), 'fortran_order': False, 'shape': (), }", "[" * 200, "(" * 3000,
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': 1, }", "__import__('os')", "'''", "\x00", "0" * 5000,
]  # fmt: skip
TYPES = [f"{identifier}/{len(row.versions)}" for identifier, row in table().items()]
SPECIAL = [struct.pack("<d", value) for value in (float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0.5, 1e16)]
SPECIAL += [b"\xff" * 8, b"\x00" * 8]
SECRET = b"a key that both sides have"


def sign(content: bytes) -> bytes:
    """In place of a signature; a hundred times as fast."""
    return hashlib.blake2b(content, key=SECRET, digest_size=48).digest()


def verify(content: bytes, signature: bytes) -> bool:
    return signature == sign(content)


@dataclass
class Parts:
    """The parts of sealed content.

    Attributes:
        manifest: as text.
        arrays: name, header and elements of each array.
        container: the whole archive, before its seal.
    """

    manifest: str
    arrays: list[tuple[str, str, bytes]]
    container: bytes

    @classmethod
    def of(cls, content: bytes) -> "Parts":
        arrays, manifest = [], ""
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            for name in file.namelist():
                entry = file.read(name)
                length = int.from_bytes(entry[8:10], "little")
                header, elements = entry[10 : 10 + length].decode().rstrip(), entry[10 + length :]
                if name == f"{serialization.MANIFEST}.npy":
                    manifest = elements.decode()
                else:
                    arrays.append((name, header, elements))
        return cls(manifest, arrays, content[:-34] + b"\0\0")


def npy(header: str, elements: bytes) -> bytes:
    text = (header + "\n").encode("latin-1", "replace")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + elements


def archive(entries: list[tuple[str, bytes]]) -> bytes:
    """A zip archive as numpy writes it; other programs can read it too."""
    pieces, directory, at = [], [], 0
    for name, entry in entries:
        encoded, size, check = name.encode(), len(entry), zlib.crc32(entry)
        numbers = (45, 0, 0, 0, 33, check, _LARGE, _LARGE, len(encoded), 20)
        head = WIDE.pack(b"PK\x03\x04", *numbers, 1, 16, size, size)
        pieces += [head[:30], encoded, head[30:], entry]
        numbers = (45, 45, 0, 0, 0, 33, check, size, size, len(encoded), 0, 0, 0, 0, 0, at)
        directory += [LISTED.pack(b"PK\x01\x02", *numbers), encoded]
        at += len(head) + len(encoded) + size
    listed, count = b"".join(directory), min(len(entries), 2**16 - 1)
    return b"".join([*pieces, listed, END.pack(b"PK\x05\x06", 0, 0, count, count, len(listed), at, 0)])


def assemble(manifest: str, arrays: list[tuple[str, str, bytes]]) -> bytes:
    elements = manifest.encode("utf-8", "surrogatepass")
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(elements)},), }}"
    entries = [(name, npy(head, data)) for name, head, data in arrays]
    return serialization.seal(archive([*entries, (f"{serialization.MANIFEST}.npy", npy(header, elements))]))


def changed(parts: Parts, rng: random.Random) -> bytes:
    """The same content with one to three changes, sealed."""
    if rng.random() < 0.15:
        return serialization.seal(changed_bytes(parts.container, rng))
    manifest, arrays = parts.manifest, list(parts.arrays)
    for _ in range(rng.choice((1, 1, 2, 3))):
        way = rng.random()
        if way < 0.35:
            manifest = changed_text(manifest, rng)
        elif way < 0.6:
            manifest = changed_tree(manifest, rng)
        elif arrays:
            changed_array(arrays, rng)
    return assemble(manifest, arrays)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    way = rng.randrange(4)
    if way == 0:
        return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    if way == 1:
        return content[:place]
    if way == 2:
        return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:]
    return content[:place] + content[place + rng.randrange(1, 99) :]


def changed_text(text: str, rng: random.Random) -> str:
    """A piece of the manifest replaced, doubled or removed, without regard to its meaning."""
    place = rng.randrange(len(text) + 1)
    length = rng.choice((0, 0, 1, 2, 5, 20, 100))
    way = rng.random()
    if way < 0.1:
        return text[:place] + "[" * rng.choice((5, 200, 5000)) + text[place:]
    if way < 0.4:
        new = text[place : place + rng.randrange(60)]
    else:
        new = rng.choice(TOKENS) if way < 0.8 else chr(rng.choice((0, 34, 44, 58, 91, 93, 123, 125, 0x7F, 0x2028)))
    return text[:place] + new + text[place + length :]


def changed_tree(text: str, rng: random.Random) -> str:
    """A node of the manifest replaced by another, by a copy of another, or removed; the result is valid JSON."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(root, (dict, list)):
        return text
    places: list = []
    unseen = [root]
    while unseen:
        node = unseen.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                unseen.append(node[key])
    if not places:
        return text
    node, key = rng.choice(places)
    way = rng.random()
    if key == "type" and way < 0.5:
        node[key] = rng.choice(TYPES)
    elif way < 0.45:
        node[key] = "\x00"
        return json.dumps(root).replace('"\\u0000"', rng.choice(TOKENS), 1)
    if way < 0.65:
        other, at = rng.choice(places)
        try:
            node[key] = other[at]
        except (KeyError, IndexError):
            return text
    elif way < 0.8:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(KEYS)] = node.pop(key)
    else:
        node.insert(key, node[key])
    try:
        return json.dumps(root)
    except (ValueError, RecursionError):  # a node that contains itself
        return text


def changed_array(arrays: list[tuple[str, str, bytes]], rng: random.Random) -> None:
    place = rng.randrange(len(arrays))
    name, header, elements = arrays[place]
    way = rng.random()
    if way < 0.3 and elements:
        at = 8 * rng.randrange(max(len(elements) // 8, 1))
        elements = elements[:at] + rng.choice(SPECIAL)[: len(elements) - at] + elements[at + 8 :]
    elif way < 0.45:
        start, end = header.find("'descr': '") + 10, header.find("', 'fortran")
        header = header[:start] + rng.choice(DESCRIPTIONS) + header[end:]
    elif way < 0.6:
        start, end = header.find("(") + 1, header.find(")")
        header = header[:start] + rng.choice(SHAPES) + header[end:]
    elif way < 0.7:
        header = rng.choice(HEADERS)
    elif way < 0.8:
        elements = elements[: rng.randrange(len(elements) + 1)] if rng.random() < 0.5 else elements + elements
    elif way < 0.88:
        _, header, elements = rng.choice(arrays)
    elif way < 0.94:
        del arrays[place]
        return
    else:
        name = rng.choice((f"{serialization.MANIFEST}.npy", "x", ".npy", rng.choice(arrays)[0]))
    arrays[place] = (name, header, elements)


def signed(name: str, content: bytes) -> bytes:
    """Sealed content as a signed message with the name of a client."""
    plain = name.encode()
    whole = bytes([len(plain)]) + plain + content
    signature = sign(whole)
    return protocol.MAGIC + len(signature).to_bytes(2, "big") + signature + whole
