"""A Sphinx extension: pages whose text is made when the site is built.

- A page with the comment `<!-- file: SECURITY.md -->` shows that file of the repository.
- `<!-- commands -->` becomes the reference of the command `cavity`.
- `<!-- api: cavity.models -->` becomes the reference of every public name of that package.

Links between files of the repository become links between pages.
"""

import os
import re
from pathlib import Path

import docstrings
from api import api_reference
from commands import command_reference
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# files of the repository that a page shows
SHOWN = {
    "SECURITY.md": "project/security.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "experiments/README.md": "project/experiments.md",
    "README.md": "index.md",
}


def relinked(text: str, file: Path, page: Path) -> str:
    """The text of a file with its relative links as seen from a page."""

    def link(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        target = Path(os.path.normpath(file.parent / path))
        if not path or "://" in path or path.startswith("mailto:") or not target.is_relative_to(ROOT):
            return match[0]
        shown = SHOWN.get(target.relative_to(ROOT).as_posix())
        target = DOCS / shown if shown else target
        return f"]({Path(os.path.relpath(target, page.parent)).as_posix()}{mark}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", link, text)


def make_text(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replace the comments of a page by what they ask for."""
    page = Path(app.env.doc2path(docname))
    text = source[0]
    named = re.search(r"<!-- file: (.+?) -->", text)
    file = ROOT / named[1] if named else page
    if named:
        text = file.read_text(encoding="utf-8")
        app.env.note_dependency(str(file))
    text = relinked(text, file, page)
    if "<!-- commands -->" in text or "<!-- api: " in text:
        app.env.note_reread()  # what they show is in the program, whose files Sphinx does not watch
    text = re.sub(r"<!-- commands -->", lambda _: command_reference(), text)
    source[0] = re.sub(r"<!-- api: (.+?) -->", lambda match: api_reference(match[1]), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("source-read", make_text)
    app.connect("autodoc-process-docstring", docstrings.as_restructured_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
