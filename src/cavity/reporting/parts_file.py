"""The sections of a report as JSON, which a client receives from a server and checks before it uses them."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence

from cavity.errors import ProtocolError
from cavity.reporting.page import Figure, Paragraph, Part, Section
from cavity.reporting.tables import Table

LARGEST = 3_000_000  # bytes
NAME = re.compile(r"[a-z][a-z0-9-]{0,40}")  # of a table's file


def write(title: str, sections: Sequence[Section]) -> bytes:
    """Sections as JSON.

    Args:
        title: of the report.
        sections: from top to bottom.
    """
    found = [{"title": section.title, "parts": [_written(part) for part in section.parts]} for section in sections]
    return json.dumps({"title": title, "sections": found}, allow_nan=False).encode()


def _written(part: Part) -> dict[str, object]:
    match part:
        case Paragraph():
            return {"kind": "paragraph", "text": part.text, "important": part.important}
        case Figure():
            return {"kind": "figure", "svg": base64.b64encode(part.svg).decode(), "caption": part.caption}
        case Table():
            own = {"columns": part.columns, "rows": part.rows, "notes": part.notes, "num_text": part.num_text}
            return {"kind": "table", "title": part.title, "name": part.name, **own}


def read(content: bytes) -> tuple[str, tuple[Section, ...]]:
    """The title and the sections.

    Args:
        content: of the file.

    Raises:
        ProtocolError: the content is no report.
    """
    if len(content) > LARGEST:
        raise ProtocolError(f"its report has {len(content):,} bytes; at most {LARGEST:,} are accepted")
    try:
        found = json.loads(content)
        sections = tuple(
            Section(_text(own["title"]), tuple(_part(part) for part in own["parts"])) for own in found["sections"]
        )
        return _text(found["title"]), sections
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as error:
        raise ProtocolError(f"its report cannot be read: {type(error).__name__}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


def _texts(values: object, length: int | None = None) -> tuple[str, ...]:
    if not isinstance(values, list) or length not in (None, len(values)):
        raise TypeError("expected a list of texts")
    return tuple(map(_text, values))


def _part(own: dict[str, object]) -> Part:
    match own["kind"]:
        case "paragraph":
            return Paragraph(_text(own["text"]), own["important"] is True)
        case "figure":
            return Figure(base64.b64decode(_text(own["svg"]), validate=True), _text(own["caption"]))
        case "table":
            columns, rows, num_text = _texts(own["columns"]), own["rows"], own["num_text"]
            name = _text(own["name"])
            if not isinstance(rows, list) or not isinstance(num_text, int) or not (name == "" or NAME.fullmatch(name)):
                raise TypeError("expected rows")
            cells = tuple(_texts(row, len(columns)) for row in rows)
            return Table(_text(own["title"]), columns, cells, _texts(own["notes"]), name, num_text)
    raise ValueError("unknown part")
