"""What cannot be fitted is refused before a run starts, in Python and in studies, with the remedy."""

import numpy as np
import pytest

import cavity
from cavity.errors import CavityError, StudyError
from cavity.study import as_table, parse_study
from cavity.study.building import study_scaling, sums
from cavity.study.checks import check
from cavity.study.disclosure import disclosures
from cavity.study.run import run_study

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUM_ROWS = 24
AGE = np.linspace(40.0, 80.0, NUM_ROWS)
HALF = np.arange(NUM_ROWS) % 2
PAIN = np.resize(["none", "mild", "none", "severe"], NUM_ROWS)
ORDER = ["none", "mild", "moderate", "severe"]
HOLED = [None, *AGE[1:]]


def two_clients(**columns):
    """Every column in two halves of different values."""
    return {
        name: {key: np.asarray(value, object)[part].tolist() for key, value in (columns | {"age": AGE}).items()}
        for name, part in (("leeds", slice(0, 12)), ("york", slice(12, 24)))
    }


# formula, family, columns, further arguments, message with the remedy
CASES = {
    "a level that no client has": (
        "pain ~ age",
        "ordinal",
        {"pain": PAIN},
        {"levels": {"pain": ORDER}},
        r"no client has a row with the level pain\[moderate\].*remove the level, or join it",
    ),
    "texts without an order": ("pain ~ age", "ordinal", {"pain": PAIN}, {}, "give the levels from low to high"),
    "two levels": ("y ~ age", "ordinal", {"y": HALF}, {}, "use the family bernoulli"),
    "many levels": ("y ~ age", "ordinal", {"y": AGE}, {}, "Use the family gaussian"),
    "an ordinal outcome without an intercept": (
        "y ~ 0 + age",
        "ordinal",
        {"y": np.arange(NUM_ROWS) % 3},
        {},
        "has thresholds for intercepts; remove `0 \\+`",
    ),
    "trials below successes": (
        "deaths | trials(patients) ~ age",
        "binomial",
        {"deaths": 3 + HALF, "patients": np.full(NUM_ROWS, 3)},
        {},
        "client 'leeds': 6 of 12 rows have more successes than trials; check which column has the trials",
    ),
    "successes without trials": (
        "deaths ~ age",
        "binomial",
        {"deaths": HALF},
        {},
        r"write `deaths \| trials\(patients\) ~ ...`; for outcomes 0 and 1 use bernoulli",
    ),
    "fractional trials": (
        "deaths | trials(patients) ~ age",
        "binomial",
        {"deaths": HALF, "patients": np.full(NUM_ROWS, 2.5)},
        {},
        "not a whole number",
    ),
    "an offset with missing values": (
        "falls ~ offset(log(years))",
        "poisson",
        {"falls": HALF, "years": HOLED},
        {},
        "column 'years': 1 missing value: row 0; impute them, or drop these rows with missing=\"drop\"",
    ),
    "an offset that is not finite": (
        "falls ~ offset(log(years))",
        "poisson",
        {"falls": HALF, "years": np.zeros(NUM_ROWS)},
        {},
        r"client 'leeds': offset\(log\(years\)\) is not a finite number",
    ),
    "an outcome coded 1 and 2": (
        "died ~ age",
        "bernoulli",
        {"died": 1 + HALF},
        {},
        r'code it as 0 and 1, or give its levels.*levels=\{"died": \["1", "2"\]\}',
    ),
    "negative counts": ("y ~ age", "poisson", {"y": HALF - 1}, {}, "outside the agreed range 0 to inf"),
    "negative counts of a negative binomial": (
        "y ~ age",
        "negative-binomial",
        {"y": HALF - 1},
        {},
        "outside the agreed range 0 to inf",
    ),
    "an amount of 0": ("y ~ age", "gamma", {"y": HALF}, {}, "must be positive; 6 of 12 values.*Leave these rows out"),
    "a negative amount": ("y ~ age", "gamma", {"y": HALF - 0.5}, {}, "outside the agreed range 0 to inf"),
    "a negative weight": (
        "y ~ age",
        "poisson",
        {"y": HALF, "w": HALF - 1},
        {"weights": "w"},
        "client 'leeds': column 'w': outside the agreed range 0 to inf",
    ),
    "weights in the formula": ("y ~ age", "poisson", {"y": HALF}, {"weights": "age"}, "remove it there"),
    "no such weights": ("y ~ age", "poisson", {"y": HALF}, {"weights": "w"}, "column 'w' not found"),
    "a link of another family": (
        "y ~ age",
        "poisson",
        {"y": HALF},
        {"link": "probit"},
        "has no setting 'link'; it is for bernoulli, binomial, ordinal",
    ),
    "another left side": ("y | trials ~ age", "binomial", {"y": HALF}, {}, "as in `deaths | trials"),
}


@pytest.mark.parametrize(("formula", "family", "columns", "more", "message"), CASES.values(), ids=CASES.keys())
def test_refused_in_python(formula, family, columns, more, message):
    with pytest.raises(CavityError, match=message):
        cavity.regression(formula, two_clients(**columns), family=family, **more)


HEAD = """
name = "s"
id = "s"
clients = ["leeds", "york"]
[model]
family = "{family}"
formula = "{formula}"
[columns]
age = {{ type = "number" }}
{columns}
"""
# family, formula, columns of the study, data, message with the remedy
STUDIES = {
    "a level that no client has": (
        "ordinal",
        "pain ~ age",
        'pain = { type = "category", levels = ["none", "mild", "moderate", "severe"] }',
        {"pain": PAIN},
        r"no client has a row with the level pain\[moderate\].*remove the level",
    ),
    "an order that begins elsewhere": (
        "ordinal",
        "pain ~ age",
        'pain = { type = "category", levels = ["none", "mild", "severe"], reference = "mild" }',
        {"pain": PAIN},
        "the reference of an ordinal outcome is its lowest level",
    ),
    "numbers as an ordinal outcome": (
        "ordinal",
        "pain ~ age",
        'pain = { type = "integer" }',
        {"pain": HALF},
        "is a category, with its levels in order",
    ),
    "trials below successes": (
        "binomial",
        "deaths | trials(patients) ~ age",
        'deaths = { type = "integer", range = [0, inf] }\npatients = { type = "integer", range = [0, inf] }',
        {"deaths": 3 + HALF, "patients": np.full(NUM_ROWS, 3)},
        "client 'leeds': 6 of 12 rows have more successes than trials",
    ),
    "trials that may be negative": (
        "binomial",
        "deaths | trials(patients) ~ age",
        'deaths = { type = "integer", range = [0, inf] }\npatients = { type = "integer" }',
        {"deaths": HALF, "patients": 1 + HALF},
        "integers with a range from 0, such as .0, inf.; see 'patients'",
    ),
    "an offset with missing values": (
        "poisson",
        "falls ~ age + offset(log(years))",
        'falls = { type = "integer", range = [0, inf] }\nyears = { type = "number" }',
        {"falls": HALF, "years": HOLED},
        "column 'years': 1 missing value",
    ),
    "a declared outcome coded 1 and 2": (
        "bernoulli",
        "died ~ age",
        'died = { type = "integer", range = [1, 2] }',
        {"died": 1 + HALF},
        "a column that is coded 1 and 2 is a category with levels = .1, 2.",
    ),
    "an outcome coded 1 and 2": (
        "bernoulli",
        "died ~ age",
        'died = { type = "boolean" }',
        {"died": 1 + HALF},
        "a column that is coded 1 and 2 is a category with levels = .1, 2.",
    ),
    "negative counts": (
        "negative-binomial",
        "y ~ age",
        'y = { type = "integer", range = [0, inf] }',
        {"y": HALF - 1},
        "outside the agreed range 0 to inf",
    ),
    "an amount of 0": (
        "gamma",
        "y ~ age",
        'y = { type = "number" }',
        {"y": HALF},
        "client 'leeds': the outcome must be positive",
    ),
}


@pytest.mark.parametrize(("family", "formula", "columns", "data", "message"), STUDIES.values(), ids=STUDIES.keys())
def test_refused_in_a_study(family, formula, columns, data, message):
    text, frames = HEAD.format(family=family, formula=formula, columns=columns), two_clients(**data)
    with pytest.raises(CavityError, match=message):
        run_study(parse_study(text), {name: as_table(frame) for name, frame in frames.items()})


def test_a_level_may_be_at_another_client():
    family, formula, columns, _, _ = STUDIES["a level that no client has"]
    study = parse_study(HEAD.format(family=family, formula=formula, columns=columns))
    elsewhere = np.where(np.arange(NUM_ROWS) == 20, "moderate", PAIN)
    clients = two_clients(pain=elsewhere)
    assert not [finding for finding in check(study, clients["leeds"]) if finding.severity == "error"]
    totals = [sums(study, clients[name]) for name in study.clients]
    # what is sent is whether a client has a level, not how often
    assert totals[0].columns == ("age", *(f"pain[{level}]" for level in ORDER))
    assert totals[0].sum[1:].tolist() == [1, 1, 0, 1]
    assert totals[1].sum[1:].tolist() == [1, 1, 1, 1]
    study_scaling(study, totals)
    with pytest.raises(StudyError, match="pain.moderate"):
        study_scaling(study, totals[:1])
    assert "whether it has the levels pain[none], pain[mild]" in str(disclosures(study)[0])
