"""The study file: what the sites agree on, how a site's data are checked against it, and what is built from it.

A module is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.core.lazy_loading import lazy_exports

if TYPE_CHECKING:
    from cavity.study.building import client_data, study_algorithm, study_scaling, study_schedule, sums
    from cavity.study.families import Family, RegressionFamily, register_family
    from cavity.study.identity import differences, settings
    from cavity.study.reader import parse_study, read_study
    from cavity.study.scaling import Scaling, Sums
    from cavity.study.schema import Study
    from cavity.study.table import Table, as_table, read_csv

__all__ = [
    "Family",
    "RegressionFamily",
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
    "register_family",
    "settings",
    "study_algorithm",
    "study_scaling",
    "study_schedule",
    "sums",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "building": "client_data study_algorithm study_scaling study_schedule sums",
        "families": "Family RegressionFamily register_family",
        "identity": "differences settings",
        "reader": "parse_study read_study",
        "scaling": "Scaling Sums",
        "schema": "Study",
        "table": "Table as_table read_csv",
    },
)
