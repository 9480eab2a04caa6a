"""The study file: what the parties agree on, how a site's data are checked against it, and what is built from it.

As in the package above, a part is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cavity.study.building import client_data, study_algorithm, study_scaling, study_schedule, sums
    from cavity.study.identity import differences, settings
    from cavity.study.reading import parse_study, read_study
    from cavity.study.scaling import Scaling, Sums
    from cavity.study.schema import Study
    from cavity.study.table import Table, as_table, read_csv

__all__ = [
    "Scaling",
    "Study",
    "Sums",
    "Table",
    "as_table",
    "client_data",
    "differences",
    "parse_study",
    "read_csv",
    "read_study",
    "settings",
    "study_algorithm",
    "study_scaling",
    "study_schedule",
    "sums",
]

_ROOMS = {
    "building": ("client_data", "study_algorithm", "study_scaling", "study_schedule", "sums"),
    "identity": ("differences", "settings"),
    "reading": ("parse_study", "read_study"),
    "scaling": ("Scaling", "Sums"),
    "schema": ("Study",),
    "table": ("Table", "as_table", "read_csv"),
}
_HOME = {name: f"{__name__}.{room}" for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
