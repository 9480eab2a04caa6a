"""What a report knows beside the fit: the study, its clients and their rows, versions, and what was sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cavity.core.intervals import DEFAULT_LEVEL
from cavity.io.versions import versions

if TYPE_CHECKING:
    from cavity.fit.fit import Fit

SMALLEST_COUNT = 5  # smaller counts of rows, other than 0, are not shown


@dataclass(frozen=True)
class ClientRows:
    """Rows of a client.

    Attributes:
        used: in the fit; None if this process does not know it.
        dropped: because of missing values; None if this process does not know it.
    """

    used: int | None = None
    dropped: int | None = None


@dataclass(frozen=True)
class Sent:
    """Messages of one kind.

    Attributes:
        what: in words.
        count: of messages.
        num_bytes: of all of them.
    """

    what: str
    count: int
    num_bytes: int


@dataclass(frozen=True)
class Facts:
    """What a report is made from.

    Attributes:
        fit: the result.
        level: the probability that each interval has.
        title: of the study.
        model: in words, with its formula.
        study_hash: identifies the agreed study; empty for a fit in Python.
        rows: by client.
        versions: of the software.
        client: the client whose copy of the report this is; empty for that of all.
        contents: what each message of a client contains.
        sent: what was sent, by kind; empty takes the totals of the fit's history.
        over_network: whether the clients were separate processes that exchanged messages.
    """

    fit: Fit
    level: float = DEFAULT_LEVEL
    title: str = ""
    model: str = ""
    study_hash: str = ""
    rows: Mapping[str, ClientRows] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    client: str = ""
    contents: tuple[str, ...] = ()
    sent: tuple[Sent, ...] = ()
    over_network: bool = False


def encoding_of(fit: Fit) -> object:
    """How the tables of a fit became numbers; None where it has no formula.

    Args:
        fit: the fit.
    """
    model = fit.algorithm.model
    inner = getattr(model, "latent", None) or getattr(model, "rows", None)
    return getattr(model, "encoding", None) or getattr(inner, "encoding", None)


def readable(fit: Fit, name: str) -> str:
    """The name of a parameter for people: `rx[T.drug]` as `rx: drug (vs placebo)`, `age` as `age (years)`.

    Args:
        fit: knows the columns.
        name: of the parameter.
    """
    columns = {column.name: column for column in getattr(encoding_of(fit), "columns", ())}

    def level(match: re.Match[str]) -> str:
        levels = getattr(columns.get(match[1]), "level_names", ())
        against = f" (vs {levels[0]})" if levels else ""
        return f"{match[1]}: {match[2]}{against}"

    unit = getattr(columns.get(name), "unit", None)
    return f"{name} ({unit})" if unit else re.sub(r"([^:\[\]]+)\[T\.([^\[\]]*)\]", level, name)


def facts_of(fit: Fit, level: float = DEFAULT_LEVEL) -> Facts:
    """What is known of a fit in Python.

    Args:
        fit: the fit.
        level: the probability that each interval has.
    """
    model = fit.algorithm.model
    formula = getattr(encoding_of(fit), "formula", "")
    rows = {}
    if fit.clients is not None and (data := fit.population("count rows").data) is not None:
        rows = {name: ClientRows(used=len(data[name].weight)) for name in fit.client_names}
    return Facts(fit, level, title=formula or type(model).__name__, model=formula, rows=rows)


def shown_count(count: int | None) -> str:
    """A count as a report shows it: small ones, which may identify people, are not shown.

    Args:
        count: of rows; None is not known.

    Returns:
        The text of a cell.
    """
    if count is None:
        return "not known here"
    return f"fewer than {SMALLEST_COUNT}" if 0 < count < SMALLEST_COUNT else f"{count:,}"


def shown_total(counts: list[int | None]) -> str:
    """The total of counts, where it does not reveal one that is not shown.

    Args:
        counts: of all clients.

    Returns:
        The text of a cell.
    """
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return "not known here"
    return "not shown" if any(0 < count < SMALLEST_COUNT for count in known) else f"{sum(known):,}"
