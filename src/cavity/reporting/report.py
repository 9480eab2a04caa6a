"""The report of a fit: one self-contained HTML file, and its tables as CSV, Markdown and LaTeX.

A section is one file in `sections`, with a function from `Facts` to a `Section`, or None where it has nothing to say.
A server sends its sections as data (`parts_file`), and each client makes its own page of them: no page that another
machine wrote is ever stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cavity.core.intervals import DEFAULT_LEVEL
from cavity.errors import CavityError
from cavity.io.checkpoints import write_atomically
from cavity.reporting import parts_file
from cavity.reporting.facts import Facts, facts_of
from cavity.reporting.page import Section, page
from cavity.reporting.sections import SECTIONS
from cavity.reporting.tables import Table

if TYPE_CHECKING:
    from cavity.fit.fit import Fit

REPORT = "report.html"


def write_report(fit: Fit, path: str | os.PathLike[str], *, level: float = DEFAULT_LEVEL) -> None:
    """Write the report of a fit in Python.

    Args:
        fit: the fit.
        path: the file; it is replaced if it exists.
        level: the probability that each interval has.
    """
    path = Path(path)
    if path.is_dir():
        raise CavityError(f"{path} is a folder; give the name of a file in it, such as {path / REPORT}")
    write_atomically(path, Report(facts_of(fit, level)).to_html().encode())


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        facts: what it is made from.
    """

    facts: Facts

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """The sections that have something to say."""
        if not self.facts.fit.history:
            raise CavityError("the fit has no rounds yet, so there is nothing to report; run it first")
        return tuple(found for section in SECTIONS if (found := section(self.facts)) is not None)

    @property
    def title(self) -> str:
        """The heading."""
        return self.facts.title or "Report"

    def to_html(self) -> str:
        """The report as one page."""
        return page(
            self.title, lead(self.facts.versions.get("cavity", ""), over_network=self.facts.over_network), self.sections
        )

    def files(self) -> dict[str, bytes]:
        """The page and its tables, by the names of their files."""
        return {REPORT: self.to_html().encode(), **table_files(self.sections)}

    def to_json(self) -> bytes:
        """The sections as data, for a client that makes its own page."""
        return parts_file.write(self.title, self.sections)


def lead(version: str, client: str = "", *, over_network: bool = False) -> str:
    """The line below the heading.

    Args:
        version: of Cavity.
        client: whose copy it is; empty for the one of all.
        over_network: whether the data stayed at separate clients.
    """
    where = "data that stayed at their sites" if over_network else "the data of several clients in one process"
    own = f"; the copy of {client}, with results that were not sent" if client else ""
    return f"Bayesian analysis of {where}, by Cavity {version}, {time.strftime('%Y-%m-%d')}{own}"


def table_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """The tables of a report in three formats, by the names of their files.

    Args:
        sections: of the report.
    """
    files = {}
    for table in [part for section in sections for part in section.parts if isinstance(part, Table) and part.name]:
        files[f"tables/{table.name}.csv"] = table.to_csv().encode()
        files[f"tables/{table.name}.md"] = table.to_markdown().encode()
        files[f"tables/{table.name}.tex"] = table.to_latex().encode()
    return files
