"""A small study of every family that is not of survival: data at two clients, and the text of its study file."""

from dataclasses import dataclass

import numpy as np

from cavity.study import as_table

NUM_ROWS = 40


@dataclass(frozen=True)
class FamilyStudy:
    """A family with a formula.

    Attributes:
        family: its name.
        left: the left side of the formula.
        columns: of the outcome, as lines of a study file.
        settings: of the family.
        right: the right side.
    """

    family: str
    left: str
    columns: str
    settings: tuple[tuple[str, str | float], ...] = ()
    right: str = "age + sex"

    @property
    def formula(self):
        return f"{self.left} ~ {self.right}"

    @property
    def text(self):
        """Of the study file."""
        lines = [f"{key} = {value!r}".replace("'", '"') for key, value in self.settings]
        return "\n".join(
            [
                'name = "s"\nid = "s"\nclients = ["leeds", "york"]',
                f'[model]\nfamily = "{self.family}"\nformula = "{self.formula}"',
                *lines,
                '[columns]\nage = { type = "number" }\nsex = { type = "category", levels = ["f", "m"] }',
                'years = { type = "number" }',
                self.columns,
                "[run]\ntolerance = 1e-12",
            ]
        )


COUNT = 'falls = { type = "integer", range = [0, inf] }'
AMOUNT = 'cost = { type = "number" }'
GRADE = 'grade = { type = "category", levels = ["none", "mild", "severe"] }'
DIED = 'died = { type = "boolean" }'
TRIALS = 'deaths = { type = "integer", range = [0, inf] }\npatients = { type = "integer", range = [0, inf] }'
STUDIES = {
    "gaussian": FamilyStudy("gaussian", "cost", AMOUNT),
    "student-t": FamilyStudy("student-t", "cost", AMOUNT),
    "student-t, learned df": FamilyStudy("student-t", "cost", AMOUNT, (("df", "learned"),)),
    "bernoulli": FamilyStudy("bernoulli", "died", DIED),
    "probit": FamilyStudy("bernoulli", "died", DIED, (("link", "probit"),)),
    "cloglog": FamilyStudy("bernoulli", "died", DIED, (("link", "cloglog"),)),
    "binomial": FamilyStudy("binomial", "deaths | trials(patients)", TRIALS),
    "categorical": FamilyStudy("categorical", "grade", GRADE),
    "ordinal logit": FamilyStudy("ordinal", "grade", GRADE),
    "ordinal probit": FamilyStudy("ordinal", "grade", GRADE, (("link", "probit"),)),
    "poisson": FamilyStudy("poisson", "falls", COUNT),
    "poisson with an offset": FamilyStudy("poisson", "falls", COUNT, (), "age + sex + offset(log(years))"),
    "negative binomial": FamilyStudy("negative-binomial", "falls", COUNT),
    "gamma": FamilyStudy("gamma", "cost", AMOUNT),
}


def rows(seed, num_rows=NUM_ROWS):
    """All columns of one client. Costs are near 12,000."""
    rng = np.random.default_rng(seed)
    age, sex = rng.normal(60, 10, num_rows).round(2), rng.choice(["f", "m"], num_rows)
    f = 0.04 * (age - 60) + 0.4 * (sex == "m")
    years, patients = rng.uniform(0.5, 4, num_rows).round(3), rng.integers(1, 12, num_rows)
    grade = np.digitize(f + rng.logistic(size=num_rows), [-0.5, 1.2])
    return {
        "age": age,
        "sex": sex,
        "years": years,
        "died": rng.uniform(size=num_rows) < 1 / (1 + np.exp(-f)),
        "deaths": rng.binomial(patients, 1 / (1 + np.exp(1 - f))),
        "patients": patients,
        "grade": np.array(["none", "mild", "severe"])[grade],
        "falls": rng.poisson(years * np.exp(f) * rng.gamma(1.5, 1 / 1.5, num_rows)),
        "cost": (12_000 * np.exp(f) * rng.gamma(2.0, 0.5, num_rows)).round(2),
    }


def clients():
    return {"leeds": rows(0), "york": rows(1)}


def tables():
    return {name: as_table(frame) for name, frame in clients().items()}
