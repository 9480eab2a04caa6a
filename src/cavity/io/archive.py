"""Named arrays from the bytes of an `.npz` file that an attacker may have written.

`numpy.savez` writes a zip archive of uncompressed entries, each a `.npy` file with a header in one fixed form. This
reader accepts that form and no other. It decompresses nothing and evaluates nothing. It allocates memory for an array
only after the declared type and shape agree with the number of bytes present. The entries are read one after the other
by their own headers; the directory at the end of the archive is for other programs.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass

import numpy as np

from cavity.errors import CheckpointError

MAX_EXTENT = 2**31  # product of the axes of an array without elements
_ENTRY = struct.Struct("<4s5H3I2H")  # signature, version, flags, method, time, date, crc, 2 sizes, 2 lengths
_WIDE_SIZES = struct.Struct("<HHQQ")  # the field with sizes in 64 bits: its number, its length, two sizes
_LARGE = 2**32 - 1  # stands for a size that is given in 64 bits
_UTF8 = 0x800
_AFTER_ENTRIES = (b"PK\x01\x02", b"PK\x05\x06")  # the directory, or its end where there are no entries
_PREFIX = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|][biufcUS])([0-9]{1,8})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:[0-9]{1,15},)?|[0-9]{1,15}(?:, [0-9]{1,15}){1,31})\), \} *\n"  # at most 32 axes
)
_ITEM_SIZES = {
    b"|b": {1}, b"|i": {1}, b"|u": {1}, b"<i": {2, 4, 8}, b"<u": {2, 4, 8}, b"<f": {2, 4, 8}, b"<c": {8, 16}
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """An array that is not allocated yet. Its type and shape agree with the number of its bytes.

    Attributes:
        dtype: type of the elements.
        shape: lengths of the axes.
        order: "C" or "F", the order of the elements.
        data: the elements.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    order: str
    data: memoryview

    def array(self) -> np.ndarray:
        """The array, as a copy."""
        flat = np.frombuffer(self.data, self.dtype) if self.data else np.zeros(math.prod(self.shape), self.dtype)
        kind = self.dtype.kind
        if kind == "b" and (flat.view(np.uint8) > 1).any():
            raise CheckpointError("an array of booleans has a value that is neither true nor false")
        if kind == "U" and self.data and (np.frombuffer(self.data, "<u4") > 0x10FFFF).any():
            raise CheckpointError("an array of text has a character that is not Unicode")
        return np.array(flat.reshape(self.shape, order="F" if self.order == "F" else "C"))


def entries(content: bytes | memoryview, most: int | None = None) -> dict[str, Entry]:
    """The arrays of an `.npz` file by name.

    Args:
        content: of the file.
        most: largest number of arrays; None for no limit.

    Raises:
        CheckpointError: it is not a file as `numpy.savez` writes it.
    """
    view, found, at = memoryview(content), {}, 0
    while bytes(view[at : at + 4]) not in _AFTER_ENTRIES:
        name, start, end = _entry_at(view, at)
        if len(found) == most:
            raise CheckpointError(f"it holds more than {most:,} arrays")
        if name in found:
            raise CheckpointError("it is not an archive of arrays (a name appears twice)")
        found[name] = _npy(view[start:end])
        at = end
    return found


def _entry_at(view: memoryview, at: int) -> tuple[str, int, int]:
    """Name, start and end of the entry whose header starts at `at`."""
    if len(view) - at < _ENTRY.size:
        raise CheckpointError("it is not an archive of arrays (it is cut off)")
    signature, _, flags, method, _, _, _, packed, size, name_length, extra_length = _ENTRY.unpack_from(view, at)
    if signature != b"PK\x03\x04":
        raise CheckpointError("it is not an archive of arrays")
    if method != 0 or flags & ~_UTF8:
        raise CheckpointError("it is not an archive of arrays (an entry is compressed or encrypted)")
    name_start = at + _ENTRY.size
    extra_start = name_start + name_length
    start = extra_start + extra_length
    if start > len(view):
        raise CheckpointError("it is not an archive of arrays (it is cut off)")
    if extra_length:
        if extra_length != _WIDE_SIZES.size or packed != _LARGE or size != _LARGE:
            raise CheckpointError("it is not an archive of arrays (the header of an entry has an unknown form)")
        number, length, size, packed = _WIDE_SIZES.unpack_from(view, extra_start)
        if (number, length) != (1, 16):
            raise CheckpointError("it is not an archive of arrays (the header of an entry has an unknown form)")
    if packed != size or size > len(view) - start:
        raise CheckpointError("it is not an archive of arrays (the size of an entry differs from its header)")
    try:
        name = bytes(view[name_start:extra_start]).decode()
    except UnicodeDecodeError:
        name = ""
    if not name.endswith(".npy"):
        raise CheckpointError("it is not an archive of arrays (the name of an entry does not end with .npy)")
    return name.removesuffix(".npy"), start, start + size


def _npy(view: memoryview) -> Entry:
    """The array in a `.npy` file."""
    start = len(_PREFIX) + 2
    if bytes(view[: len(_PREFIX)]) != _PREFIX or len(view) < start:
        raise CheckpointError("it is not an archive of arrays (an entry is not an array)")
    data_start = start + int.from_bytes(view[len(_PREFIX) : start], "little")
    header = _HEADER.fullmatch(view[start:data_start])
    if data_start > len(view) or header is None:
        raise CheckpointError("it is not an archive of arrays (an array is not of numbers or text)")
    kind, digits, fortran, axes = header.groups()
    size = int(digits)
    shape = tuple(int(axis) for axis in axes.split(b",") if axis)
    if kind[1:] not in (b"U", b"S") and size not in _ITEM_SIZES.get(kind, ()):
        raise CheckpointError("it is not an archive of arrays (an array is not of numbers or text)")
    num_bytes = size * (4 if kind[1:] == b"U" else 1)
    data = view[data_start:]
    extent = math.prod(max(axis, 1) for axis in shape)
    fits = math.prod(shape) * num_bytes == len(data) and (data or extent <= MAX_EXTENT)
    if not fits or (num_bytes == 0 and extent > 1):
        raise CheckpointError("it is not an archive of arrays (the size of an array differs from its header)")
    return Entry(np.dtype(f"{kind.decode()}{size}"), shape, "F" if fortran == b"True" else "C", data)
