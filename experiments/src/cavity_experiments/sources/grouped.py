"""Tables with groups of rows, for regressions by formula: seizures, immunisations, hospital stays."""

import numpy as np

from cavity_experiments.sources.reading import check, csv_file, local_file

Columns = dict[str, np.ndarray]

_EPIL = ("y", "trt", "base", "age", "V4", "subject", "period", "lbase", "lage")
_EPIL_ROWS, _EPIL_PATIENTS, _EPIL_SEIZURES = 236, 59, 1950
_GU_IMMUN = (
    *("kid", "mom", "comm", "immun", "kid2p", "mom25p", "ord", "ethn", "momEd", "husEd", "momWork", "rural", "pcInd81"),
)
_GU_IMMUN_ROWS, _GU_IMMUN_MOTHERS, _GU_IMMUN_COMMUNITIES, _GU_IMMUN_YES = 2159, 1595, 161, 964
_LOS = ("site", "age", "sex", "lab", "los")
_LOS_ROWS, _LOS_SITES = 1000, {"site1": 500, "site2": 400, "site3": 100}


def epilepsy() -> Columns:
    """Seizures of 59 patients in four periods each, in a trial of progabide (Thall and Vail, 1990).

    Returns:
        Columns of 236 rows: `y` (seizures), `trt`, `lbase` and `lage` (centred logarithms), `V4` (1 in the last
        period), `period` (1 to 4), `subject`.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("epilepsy", "multilevel/epil.csv.gz")
    raw = csv_file(path, _EPIL, _EPIL_ROWS, on_openml=False)
    seizures = raw["y"].astype(np.int64)
    check(path, "the number of patients", len(np.unique(raw["subject"])), _EPIL_PATIENTS)
    check(path, "the number of seizures", int(seizures.sum()), _EPIL_SEIZURES)
    numbers = {name: raw[name].astype(np.float64) for name in ("lbase", "lage", "V4", "period")}
    return {"y": seizures, "trt": raw["trt"], **numbers, "subject": raw["subject"]}


def guatemala() -> Columns:
    """Immunisation of 2,159 children of 1,595 mothers in 161 communities of Guatemala (Rodriguez and Goldman, 2001).

    Returns:
        Columns as in `guImmun` of the R package mlmRev, `immun` as a boolean, `pcInd81` as numbers.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("guatemala", "multilevel/guImmun.csv.gz")
    raw = csv_file(path, _GU_IMMUN, _GU_IMMUN_ROWS, on_openml=False)
    immune = raw["immun"] == "Y"
    check(path, "the number of mothers", len(np.unique(raw["mom"])), _GU_IMMUN_MOTHERS)
    check(path, "the number of communities", len(np.unique(raw["comm"])), _GU_IMMUN_COMMUNITIES)
    check(path, "the number of children with immunisation", int(immune.sum()), _GU_IMMUN_YES)
    return {**raw, "immun": immune, "pcInd81": raw["pcInd81"].astype(np.float64)}


def length_of_stay() -> Columns:
    """1,000 simulated stays at three sites: the data set `LOS` of the R package pda.

    Returns:
        Columns `site`, `age` (three levels), `sex`, `lab` and `los` (days).

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("length_of_stay", "multisite/los.csv.gz")
    raw = csv_file(path, _LOS, _LOS_ROWS, on_openml=False)
    sites = dict(zip(*(found.tolist() for found in np.unique(raw["site"], return_counts=True)), strict=True))
    check(path, "the number of stays by site", sites, _LOS_SITES)
    return {**raw, "lab": raw["lab"].astype(np.float64), "los": raw["los"].astype(np.float64)}
