"""The documentation as text and code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    """The text of a page, by its path from the root of the repository."""
    return (ROOT / name).read_text()


def blocks(name: str, language: str = "python") -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


def run_blocks(name: str) -> dict[str, object]:
    """Run the Python blocks of a page in order, in one namespace, and return that namespace."""
    namespace = {}
    for block in blocks(name):
        exec(compile(block, name, "exec"), namespace)
    return namespace
