"""A small table of text, written as HTML, CSV, Markdown or LaTeX."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }
)
_MARKDOWN = str.maketrans({"|": r"\|", "\n": " ", "<": "&lt;", ">": "&gt;"})
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a cell that begins with one of these


@dataclass(frozen=True)
class Table:
    """Cells as text, which may come from a file of others: every format escapes them.

    Attributes:
        title: a caption.
        columns: the header.
        rows: one tuple of cells each.
        notes: sentences below the table.
        name: of its file, without an ending; empty for a table that is not written to one.
        num_text: how many columns, from the left, are text; the others are aligned to the right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    name: str = ""
    num_text: int = 1

    def to_html(self) -> str:
        """The table as HTML; wide ones scroll."""
        head = _html_row("th", self.columns, self.num_text)
        body = "".join(_html_row("td", row, self.num_text) for row in self.rows)
        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in self.notes)
        return f'<div class="wide"><table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table></div>{notes}'

    def to_csv(self) -> str:
        """The table as CSV. Text that a spreadsheet would compute is preceded by an apostrophe."""
        page = io.StringIO()
        writer = csv.writer(page, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([*(_inert(cell) for cell in row[: self.num_text]), *row[self.num_text :]])
        return page.getvalue()

    def to_markdown(self) -> str:
        """The table as GitHub's Markdown."""
        rules = ["---" if i < self.num_text else "---:" for i in range(len(self.columns))]
        rows = [self.columns, tuple(rules), *self.rows]
        lines = ["| " + " | ".join(cell.translate(_MARKDOWN) for cell in row) + " |" for row in rows]
        return "\n".join([*lines, *(f"\n{note.translate(_MARKDOWN)}" for note in self.notes)]) + "\n"

    def to_latex(self) -> str:
        """The table as LaTeX, with the rules of the package booktabs."""
        layout = "l" * self.num_text + "r" * (len(self.columns) - self.num_text)
        lines = [f"\\begin{{tabular}}{{{layout}}}", r"\toprule", _latex_row(self.columns), r"\midrule"]
        lines += [*map(_latex_row, self.rows), r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, *(f"% {note}" for note in self.notes)]) + "\n"


def _html_row(tag: str, cells: Sequence[str], num_text: int) -> str:
    kinds = ["text" if i < num_text else "number" for i in range(len(cells))]
    inside = (f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for kind, cell in zip(kinds, cells, strict=True))
    return f"<tr>{''.join(inside)}</tr>"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cell.translate(_LATEX) for cell in cells) + r" \\"


def _inert(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
