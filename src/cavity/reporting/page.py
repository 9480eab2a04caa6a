"""A report as one HTML page: no scripts, no outside resources; it adapts to narrow and dark screens, and prints."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cavity.reporting.plots.style import figure_of
from cavity.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = """
:root { color-scheme: light dark;
  --text: #1b1f24; --faint: #59636e; --line: #d1d9e0; --back: #ffffff; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --back: #0d1117; --band: #151b23; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 56rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
p { margin: .6rem 0; overflow-wrap: anywhere; }
.note, .lead { color: var(--faint); font-size: .9rem; }
.important { border-left: 4px solid #bf8700; background: var(--band); padding: .5rem .75rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .92rem; min-width: 40%; }
caption { text-align: left; color: var(--faint); padding-bottom: .3rem; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; }
figure img { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
figcaption { color: var(--faint); font-size: .9rem; }
@media print {
  :root { --text: #000; --faint: #444; --line: #bbb; --back: #fff; --band: #fff; }
  body { font-size: 10.5pt; max-width: none; padding: 0; }
  figure, table, tr, .important { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Paragraph:
    """Text.

    Attributes:
        text: plain, not HTML.
        important: drawn as a warning.
    """

    text: str
    important: bool = False

    def to_html(self) -> str:
        """The paragraph."""
        kind = ' class="important"' if self.important else ""
        return f"<p{kind}>{html.escape(self.text)}</p>"


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        svg: its source.
        caption: below it, and for those who do not see it.
    """

    svg: bytes
    caption: str

    def to_html(self) -> str:
        """The picture as an image, so that nothing in it is part of the page."""
        data, text = base64.b64encode(self.svg).decode(), html.escape(self.caption)
        return (
            f'<figure><img alt="{text}" src="data:image/svg+xml;base64,{data}"><figcaption>{text}</figcaption></figure>'
        )


Part = Paragraph | Figure | Table


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes:
        title: its heading.
        parts: from top to bottom.
    """

    title: str
    parts: tuple[Part, ...]

    def to_html(self) -> str:
        """The section."""
        return f"<section><h2>{html.escape(self.title)}</h2>{''.join(part.to_html() for part in self.parts)}</section>"


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: its heading.
        lead: a line below it.
        sections: from top to bottom.
    """
    text = html.escape(title)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text}</title><style>{STYLE}</style></head><body>"
        f'<h1>{text}</h1><p class="lead">{html.escape(lead)}</p>'
        + "\n".join(section.to_html() for section in sections)
        + "</body></html>\n"
    )


def picture(axes: Axes, caption: str) -> Figure:
    """The figure of these axes as SVG, the same bytes each time.

    Args:
        axes: of a matplotlib figure.
        caption: of the picture.
    """
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": caption, "svg.fonttype": "path"}):
        buffer = io.BytesIO()
        figure_of(axes).savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    return Figure(buffer.getvalue(), caption)
