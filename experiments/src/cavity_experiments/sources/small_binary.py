"""Small classics of two classes, on which papers on Bayesian classification compare. All features are raw numbers."""

import numpy as np

from cavity_experiments.sources.reading import Table, check, csv_file, local_file

_PIMA_NEVER_ZERO = ("glucose", "pressure", "triceps", "insulin", "mass")


def banana() -> Table:
    """Two bent clouds in the plane: 5,300 points, 2,376 of class 1. Of the benchmark of Raetsch, pooled."""
    return _small("banana", ("x1", "x2"), "class", "1.0", 5_300, 2_376)


def titanic() -> Table:
    """Did a passenger of the Titanic survive? 2,201 passengers, 711 survivors; class, age and sex as three codes."""
    return _small("titanic", ("class_code", "age_code", "sex_code"), "survived", "1.0", 2_201, 711)


def twonorm() -> Table:
    """Two Gaussian clouds in 20 dimensions (Breiman): 7,400 points, 3,697 of class 1."""
    return _small("twonorm", tuple(f"x{j}" for j in range(1, 21)), "class", "1", 7_400, 3_697)


def magic() -> Table:
    """Is a shower of light in the MAGIC telescope from a gamma ray? 19,020 showers, 12,332 of them from one."""
    features = ("fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha", "fDist")
    return _small("magic", features, "class", "g", 19_020, 12_332)


def pima() -> Table:
    """Does a woman of the Pima have diabetes? 768 women, 268 with it.

    Zeros that stand for missing measurements (glucose, pressure, triceps, insulin, mass) are NaN, for the caller to
    impute (`imputed`) or drop.
    """
    features = ("pregnant", "glucose", "pressure", "triceps", "insulin", "mass", "pedigree", "age")
    table = _small("pima", features, "diabetes", "pos", 768, 268)
    for column in _PIMA_NEVER_ZERO:
        values = table.x[:, features.index(column)]
        values[values == 0] = np.nan
    return table


def australian() -> Table:
    """Is a credit approved (Statlog)? 690 applications, 307 approved; categories as codes, and nothing is missing."""
    return _small("australian", tuple(f"A{j}" for j in range(1, 15)), "class", "1", 690, 307)


def _small(name: str, features: tuple[str, ...], target: str, positive: str, num_rows: int, num_positive: int) -> Table:
    path = local_file(name, f"small_binary/{name}.csv.gz")
    raw = csv_file(path, (*features, target), num_rows, on_openml=False)
    y = (raw[target] == positive).astype(np.int64)
    check(path, "the number of rows of class 1", int(y.sum()), num_positive)
    x = np.column_stack([raw[column].astype(np.float64) for column in features])
    return Table(name=name, x=x, y=y, columns=features)
