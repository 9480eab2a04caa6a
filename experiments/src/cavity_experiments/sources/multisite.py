"""Small medical data sets with a column of sites, which other packages for federated inference use as examples."""

from __future__ import annotations

import numpy as np

from cavity_experiments.sources.reading import check, csv_file, local_file

Sites = dict[str, dict[str, np.ndarray]]  # site -> its columns


def _sites(name: str, site: str, columns: tuple[str, ...], sizes: dict[str, int]) -> Sites:
    """The numeric columns of every site, in the order of the file."""
    path = local_file(name, f"multisite/{name}.csv.gz")
    raw = csv_file(path, (site, *columns), sum(sizes.values()), on_openml=False)
    labels = raw[site]
    found = {each: int((labels == each).sum()) for each in sorted(set(labels.tolist()))}
    check(path, "the number of rows of each site", found, sizes)
    return {each: {column: raw[column][labels == each].astype(np.float64) for column in columns} for each in sizes}


def trauma() -> Sites:
    """Deaths after an injury: 371 patients of three hospitals, the data set `trauma` of the R package BFI.

    Returns:
        Hospital -> sex, age, ISS (severity of the injury), GCS (depth of coma, 3 to 15) and mortality (0 or 1).

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    found = _sites("trauma", "hospital", ("sex", "age", "ISS", "GCS", "mortality"), {"1": 49, "2": 106, "3": 216})
    return {f"hospital {name}": columns for name, columns in found.items()}


def crabs() -> Sites:
    """Male crabs around nesting females: 173 nests, many without; the data set `cs` of the R package pda.

    Returns:
        Site -> satellites (a count), width (cm) and weight (kg) of the female.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    return _sites("crabs", "site", ("satellites", "width", "weight"), {"site1": 85, "site2": 88})


def long_covid() -> Sites:
    """Symptoms after Covid-19: 900 simulated people of three sites, the data set `long_covid` of the R package pda.

    Returns:
        Site -> PASC_features (1 to 5), covid_vaccination (0 or 1), and the covariates X1 to X5.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    columns = ("PASC_features", "covid_vaccination", *(f"X{j}" for j in range(1, 6)))
    return _sites("long_covid", "site", columns, {"site1": 300, "site2": 300, "site3": 300})
