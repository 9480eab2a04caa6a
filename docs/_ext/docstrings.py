"""Docstrings of Cavity, which are plain text with code between backticks, as reStructuredText."""

import re

LITERAL = re.compile(r"(``?[^`]+``?)")


def _escaped(line: str) -> str:
    """A line whose stars, bars and trailing underscores are text, except between backticks."""
    parts = LITERAL.split(line)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(r"(?<!\\)([*|])", r"\\\1", parts[index])
        parts[index] = re.sub(r"(\w)_(?!\w)", r"\1\\_", parts[index])
    return "".join(re.sub(r"^`([^`]+)`$", r"``\1``", part) for part in parts)


def as_restructured_text(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Change the lines of a docstring in place: escape marks, and keep indented equations as they are."""
    if what in ("property", "attribute", "data"):
        _restore_first_line(lines)
    result: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("    ")
        if line.lstrip().startswith((">>>", "...")):
            result.append(line)
            continue
        if indented and not literal and result and not result[-1].strip() and _starts_equation(result):
            result[-1:] = ["", "::", ""]
            literal = True
        if line.strip() and not indented:
            literal = False
        result.append(line if literal or line.startswith((":", "..")) else _escaped(line))
    lines[:] = result


def _restore_first_line(lines: list[str]) -> None:
    """Undo what napoleon does to a property: it takes the words before the first colon for the type."""
    kinds = [line for line in lines if line.startswith(":type:")]
    for kind in kinds:
        lines.remove(kind)
        first = next((index for index, line in enumerate(lines) if line.strip()), None)
        if first is not None:
            lines[first] = f"{kind.removeprefix(':type:').strip()}: {lines[first].strip()}"


def _starts_equation(before: list[str]) -> bool:
    """Whether an indented block after these lines is an equation: it follows a paragraph, no field or directive."""
    previous = next((line for line in reversed(before) if line.strip()), "")
    return bool(previous) and not previous.startswith((" ", ":", "..", ">>>"))
