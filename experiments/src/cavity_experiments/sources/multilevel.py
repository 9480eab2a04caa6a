"""Rows in groups, for mixed models: Six Cities, radon in Minnesota, contraception in Bangladesh, toenail infections."""

from dataclasses import dataclass

import numpy as np

from cavity_experiments.sources.reading import check, csv_file, local_file

_SIX_CITIES_COLUMNS = ("resp", "id", "age", "smoke")
_SIX_CITIES_CHILDREN, _SIX_CITIES_SMOKERS = 537, 187
# Age less nine of each visit, and children who wheezed at it.
_SIX_CITIES_VISITS = {-2: 87, -1: 91, 0: 85, 1: 63}

_RADON_COLUMNS = ("county", "county_code", "floor", "Uppm", "activity", "log_radon", "idnum", "zip", "fips")
_RADON_ROWS, _RADON_COUNTIES, _RADON_FIRST_FLOOR = 919, 85, 153

_CONTRACEPTION_COLUMNS = ("woman", "district", "use", "livch", "age", "urban")
_CONTRACEPTION_ROWS, _CONTRACEPTION_DISTRICTS = 1934, 60
# Women who use contraception, women in towns, and women by their number of living children.
_CONTRACEPTION_USERS, _CONTRACEPTION_URBAN = 759, 562
_CONTRACEPTION_CHILDREN = {"0": 530, "1": 356, "2": 305, "3+": 743}

_TOENAIL_COLUMNS = ("patientID", "outcome", "treatment", "time", "visit")
_TOENAIL_ROWS, _TOENAIL_PATIENTS, _TOENAIL_INFECTED, _TOENAIL_TREATED = 1908, 294, 408, 971


@dataclass(frozen=True, eq=False)
class SixCities:
    """Children seen four times.

    Attributes:
        child: Label of each child, text, shape [537].
        smoke: 1 where the mother smoked in the first year of the study, float64, shape [537].
        age: Age in years less nine at each visit (-2, -1, 0, 1), float64, shape [537, 4].
        wheeze: 1 where the child wheezed, int64, shape [537, 4].
    """

    child: np.ndarray
    smoke: np.ndarray
    age: np.ndarray
    wheeze: np.ndarray


@dataclass(frozen=True, eq=False)
class Radon:
    """Houses in counties.

    Attributes:
        county: Name of each house's county, shape [919]; `partition.by_column` makes clients of them.
        floor: 0 where radon was measured in the basement, 1 on the first floor, float64, shape [919].
        log_radon: log(activity + 0.1), the activity in picocuries per litre, float64, shape [919].
        log_uranium: Logarithm of the uranium in the county's soil in parts per million, float64, shape [919].
    """

    county: np.ndarray
    floor: np.ndarray
    log_radon: np.ndarray
    log_uranium: np.ndarray


@dataclass(frozen=True, eq=False)
class Contraception:
    """Women in districts.

    Attributes:
        district: Number of each woman's district, as text, shape [1934]; `partition.by_column` makes clients
            of them.
        use: 1 where she used contraception at the time of the survey, int64, shape [1934].
        urban: 1 where she lived in a town, float64, shape [1934].
        age: Age in years, centred, float64, shape [1934].
        children: 0/1 columns for one, two, and three or more living children, float64, shape [1934, 3]. A row
            of zeros is a woman without.
    """

    district: np.ndarray
    use: np.ndarray
    urban: np.ndarray
    age: np.ndarray
    children: np.ndarray


@dataclass(frozen=True, eq=False)
class Toenail:
    """Visits of patients.

    Attributes:
        patient: Number of each visit's patient, int32, shape [1908].
        treated: 1 where the patient had terbinafine, 0 for itraconazole, float64, shape [1908].
        time: Months since the start, float64, shape [1908].
        infected: 1 where the infection was moderate or severe, int64, shape [1908].
    """

    patient: np.ndarray
    treated: np.ndarray
    time: np.ndarray
    infected: np.ndarray


def six_cities() -> SixCities:
    """Six Cities study, the children of Steubenville, Ohio: does a child wheeze?

    537 children at four yearly visits, from age seven to ten, none of them missed; 187 mothers smoked. Children
    wheezed at 326 of the 2,148 visits. The set is `ohio` of the R package geepack (Fitzmaurice and Laird 1993).

    Returns:
        Arrays with a row for each child and a column for each visit, in the order of the file.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("six_cities", "six_cities_ohio/ohio.csv.gz")
    shape = (_SIX_CITIES_CHILDREN, len(_SIX_CITIES_VISITS))
    raw = csv_file(path, _SIX_CITIES_COLUMNS, shape[0] * shape[1], on_openml=False)
    child, smoke, age, wheeze = (raw[column].reshape(shape) for column in ("id", "smoke", "age", "resp"))
    smoke, age, wheeze = smoke.astype(np.float64), age.astype(np.float64), wheeze.astype(np.int64)
    # Children follow one another, each with its four visits in order.
    check(path, "the number of children", len(np.unique(child)), _SIX_CITIES_CHILDREN)
    for what, values in (("child", child), ("mother's smoking", smoke)):
        check(path, f"whether four rows in turn share the {what}", bool(np.all(values == values[:, :1])), True)
    check(path, "whether visits are in order", bool(np.all(age == list(_SIX_CITIES_VISITS))), True)
    check(path, "the number of mothers who smoked", int(smoke[:, 0].sum()), _SIX_CITIES_SMOKERS)
    visits = dict(zip(_SIX_CITIES_VISITS, wheeze.sum(axis=0).tolist(), strict=True))
    check(path, "the number of children who wheezed by visit", visits, _SIX_CITIES_VISITS)
    return SixCities(child=child[:, 0], smoke=smoke[:, 0], age=age, wheeze=wheeze)


def radon() -> Radon:
    """Radon in the houses of Minnesota, by county.

    919 houses in 85 counties, from the survey of the US Environmental Protection Agency, as in the book of
    Gelman and Hill (2007). Counties have from 1 house to 116. The target is log(activity + 0.1), finite where
    the activity is 0; the book takes log(activity), and log(0.1) for a zero.

    Returns:
        Arrays with an entry for each house, in the order of the file, where a county's houses follow one
        another. Uranium is the county's, repeated for its houses.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("radon", "radon/radon_mn.csv.gz")
    raw = csv_file(path, _RADON_COLUMNS, _RADON_ROWS, on_openml=False)
    county = raw["county"]
    floor, log_radon, uranium = (raw[column].astype(np.float64) for column in ("floor", "log_radon", "Uppm"))
    check(path, "the number of counties", len(np.unique(county)), _RADON_COUNTIES)
    check(path, "the number of measurements on the first floor", int(floor.sum()), _RADON_FIRST_FLOOR)
    pairs = len(set(zip(county.tolist(), uranium.tolist(), strict=True)))
    check(path, "the number of counties and values of uranium in them", pairs, _RADON_COUNTIES)
    return Radon(county=county, floor=floor, log_radon=log_radon, log_uranium=np.log(uranium))


def contraception() -> Contraception:
    """Fertility survey of Bangladesh, 1988: does a woman use contraception?

    1,934 women in 60 districts of 2 to 118 women, numbered from 1 to 61 without 54; 759 women used
    contraception. The set is `Contraception` of the R package mlmRev.

    Returns:
        Arrays with an entry, or a row, for each woman, in the order of the file.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("contraception", "multilevel/Contraception.csv.gz")
    raw = csv_file(path, _CONTRACEPTION_COLUMNS, _CONTRACEPTION_ROWS, on_openml=False)
    district, use, urban = raw["district"], raw["use"] == "Y", raw["urban"] == "Y"
    check(path, "the number of districts", len(np.unique(district)), _CONTRACEPTION_DISTRICTS)
    check(path, "the number of women who use contraception", int(use.sum()), _CONTRACEPTION_USERS)
    check(path, "the number of women in towns", int(urban.sum()), _CONTRACEPTION_URBAN)
    levels, counts = np.unique(raw["livch"], return_counts=True)
    living = dict(zip(levels.tolist(), counts.tolist(), strict=True))
    check(path, "the number of women by living children", living, _CONTRACEPTION_CHILDREN)
    return Contraception(
        district=district,
        use=use.astype(np.int64),
        urban=urban.astype(np.float64),
        age=raw["age"].astype(np.float64),
        children=np.column_stack([raw["livch"] == level for level in ("1", "2", "3+")]).astype(np.float64),
    )


def toenail() -> Toenail:
    """Trial of two treatments of toenail infection (De Backer and others, 1998): is it moderate or severe at a visit?

    1,908 visits of 294 patients, up to seven each; 408 visits with a moderate or severe infection. Patients differ
    much: the sd of a random intercept is about 4. The set is `toenail` of the R package lme4.

    Returns:
        Arrays with an entry for each visit, in the order of the file.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("toenail", "multilevel/toenail.csv.gz")
    raw = csv_file(path, _TOENAIL_COLUMNS, _TOENAIL_ROWS, on_openml=False)
    infected, treated = raw["outcome"] == "moderate or severe", raw["treatment"] == "terbinafine"
    check(path, "the number of patients", len(np.unique(raw["patientID"])), _TOENAIL_PATIENTS)
    check(path, "the number of visits with an infection", int(infected.sum()), _TOENAIL_INFECTED)
    check(path, "the number of visits under terbinafine", int(treated.sum()), _TOENAIL_TREATED)
    return Toenail(
        patient=raw["patientID"].astype(np.int32),
        treated=treated.astype(np.float64),
        time=raw["time"].astype(np.float64),
        infected=infected.astype(np.int64),
    )
