"""Patients of several hospitals, the clients of a study as they are in life."""

from dataclasses import dataclass, field

import numpy as np

from cavity.data.sources.reading import DataUnavailable, Table, check, csv_file, data_directory

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


@dataclass(frozen=True, eq=False)
class HospitalTable(Table):
    """A table whose rows are patients, and where they were treated.

    Attributes:
        hospital: Name of each row's hospital, shape [n]; `partition.by_column` makes clients of them.
    """

    hospital: np.ndarray = field(kw_only=True)


def heart_disease() -> HospitalTable:
    """UCI Heart Disease at four hospitals: does a patient have the disease (`num` above zero)?

    All 920 patients: Cleveland 303, Hungarian (Budapest) 294, Switzerland 123, VA Long Beach 200. The 13
    features are raw, categorical ones as their codes. Missing values are NaN, for the caller to impute or
    drop; what is missing differs by hospital (`ca` was hardly measured outside Cleveland). So are zeros that
    the files have where nobody measured: the cholesterol (`chol`) of all Swiss and 49 Long Beach patients,
    and one resting blood pressure (`trestbps`).

    Returns:
        A table with x in float64, shape [920, 13], y = 1 where `num` is 1 to 4, and the hospitals, whose
        rows follow one another. OpenML does not have it as one set.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    directory = data_directory()
    if directory is None:
        raise DataUnavailable(
            "data set 'heart_disease': CAVITY_DATA is not set, and OpenML does not have the four hospitals as one "
            "set. Set the environment variable CAVITY_DATA to a folder that holds heart_disease/heart_disease.csv.gz"
        )
    path = directory / "heart_disease" / "heart_disease.csv.gz"
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
