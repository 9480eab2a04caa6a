"""Patients of several hospitals, which are natural clients: heart disease, intensive care."""

from dataclasses import dataclass, field

import numpy as np

from cavity_experiments.sources.reading import Table, check, csv_file, local_file, npz_file

# Patients, and patients with the disease.
_HEART_HOSPITALS = {
    "cleveland": (303, 139),
    "hungarian": (294, 106),
    "switzerland": (123, 115),
    "va_long_beach": (200, 149),
}
# Missing values of each feature, the impossible zeros among them.
_HEART_MISSING = {
    "age": 0,
    "sex": 0,
    "cp": 0,
    "trestbps": 60,
    "chol": 202,
    "fbs": 90,
    "restecg": 2,
    "thalach": 55,
    "exang": 55,
    "oldpeak": 62,
    "slope": 309,
    "ca": 611,
    "thal": 486,
}
_HEART_NEVER_ZERO = ("trestbps", "chol")

_EICU_STAYS, _EICU_FEATURES, _EICU_HOSPITALS, _EICU_DEATHS = 2_179, 35, 186, 196
_EICU_MISSING = 15_133


@dataclass(frozen=True, eq=False)
class HospitalTable(Table):
    """A table whose rows are patients, and where they were treated.

    Attributes:
        hospital: Name of each row's hospital, shape [n]; `partition.by_column` makes clients of them.
        patient: Number of each row's patient, where one may have several rows; else None.
    """

    hospital: np.ndarray = field(kw_only=True)
    patient: np.ndarray | None = field(kw_only=True, default=None)


def heart_disease() -> HospitalTable:
    """UCI Heart Disease at four hospitals: does a patient have the disease (`num` above zero)?

    All 920 patients: Cleveland 303, Hungarian (Budapest) 294, Switzerland 123, VA Long Beach 200. The 13
    features are raw, categorical ones as their codes. Missing values are NaN, for the caller to impute or
    drop; what is missing differs by hospital (`ca` was hardly measured outside Cleveland). So are zeros in the files
    that stand for missing measurements: the cholesterol (`chol`) of all Swiss and 49 Long Beach patients,
    and one resting blood pressure (`trestbps`).

    Returns:
        A table with x in float64, shape [920, 13], y = 1 where `num` is 1 to 4, and the hospitals, whose
        rows follow one another. OpenML does not have it as one set.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("heart_disease", "heart_disease/heart_disease.csv.gz")
    num_rows = sum(patients for patients, _ in _HEART_HOSPITALS.values())
    raw = csv_file(path, ("site", *_HEART_MISSING, "num"), num_rows, on_openml=False)
    hospital, y = raw["site"], (raw["num"].astype(np.int64) > 0).astype(np.int64)
    counts = {
        str(name): (int(np.sum(hospital == name)), int(y[hospital == name].sum())) for name in np.unique(hospital)
    }
    check(path, "the number of patients and of diseased ones by hospital", counts, _HEART_HOSPITALS)

    features = {column: np.where(raw[column] == "", "nan", raw[column]).astype(np.float64) for column in _HEART_MISSING}
    for column in _HEART_NEVER_ZERO:
        features[column][features[column] == 0] = np.nan
    missing = {column: int(np.isnan(values).sum()) for column, values in features.items()}
    check(path, "the number of missing values by column", missing, _HEART_MISSING)
    return HospitalTable(
        name="heart_disease",
        x=np.column_stack(list(features.values())),
        y=y,
        columns=tuple(features),
        hospital=hospital,
    )


def eicu_demo() -> HospitalTable:
    """Intensive care, the eICU demo 2.0.1: does a patient in intensive care die in hospital?

    2,179 stays at 186 hospitals of the United States, of 2 to 23 stays, 196 of them fatal: those with both APACHE
    tables and a known outcome. The 35 features of the first day are raw. What was not measured is NaN, for the caller
    to impute (`imputed`) or drop: blood gases are missing for most. Ages above 89 are 90. A patient may have several
    stays, so split by `patient`, not by row.

    Returns:
        A table with x in float64, shape [2179, 35], y = 1 for a death in hospital, hospitals and patients.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("eicu_demo", "eicu_demo/eicu_demo_apache.npz")
    n, p = _EICU_STAYS, _EICU_FEATURES
    shapes = {"X": (n, p), "y_hospital_death": (n,), "hospitalid": (n,), "patient": (n,), "feature_names": (p,)}
    raw = npz_file(path, shapes, on_openml=False)
    check(path, "the number of deaths", int(raw["y_hospital_death"].sum()), _EICU_DEATHS)
    check(path, "the number of hospitals", len(np.unique(raw["hospitalid"])), _EICU_HOSPITALS)
    check(path, "the number of missing values", int(np.isnan(raw["X"]).sum()), _EICU_MISSING)
    return HospitalTable(
        name="eicu_demo",
        x=raw["X"].astype(np.float64),
        y=raw["y_hospital_death"].astype(np.int64),
        columns=tuple(raw["feature_names"].tolist()),
        hospital=raw["hospitalid"].astype(str),
        patient=raw["patient"].astype(np.int64),
    )
