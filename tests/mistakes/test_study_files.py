"""Mistakes in a study file, as `cavity study check` reports them: with the file, the key and the line."""

import jax
import pytest

from tests.mistakes.messages import check_command
from tests.studies import TRIAL

CHECK = ("study", "check", "study.toml")
FORMULA = 'formula = "died ~ rx * age + sex"'
DIED, AGE, SEX = "[columns.died]\n", "[columns.age]\n", "[columns.sex]\n"
WARD = '\n[columns.ward]\ntype = "text"\n'


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    jax.devices()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CAVITY_ALLOW_MODELS", raising=False)


def formula(text):
    return (FORMULA, f"formula = '{text}'")


def family(name, more=""):
    return ('family = "logistic"', f'family = "{name}"\n{more}')


# what is replaced in the file, by what, and what the message has
CHANGES = {
    "text without quotes": ('name = "A trial"', "name = A trial", ("cannot be read as TOML", "line 1", "quotes")),
    "table twice": (SEX, f"{AGE}{SEX}", ("cannot be read as TOML", "line", "age")),
    "no name": ('name = "A trial"\n', "", ("name: missing; it must be a text",)),
    "no clients": ('clients = ["leeds", "york"]', "clients = []", ("clients (line 3)", "name at least one client")),
    "client twice": ('"york"]', '"leeds"]', ("clients (line 3): 'leeds' is listed twice",)),
    "client with a space": ('"york"]', '"New York"]', ("clients (line 3): 'New York'", "letters, digits")),
    "one text for clients": ('["leeds", "york"]', '"leeds"', ("clients (line 3)", "must be a list of texts")),
    "id with a slash": ('"trial-1"', '"trial/1"', ("id (line 2): 'trial/1'", "letters, digits")),
    "misspelt table": ("[columns.sex]", "[column.sex]", ("unknown key 'column' (did you mean 'columns'?)",)),
    "misspelt key": ("range =", "rnage =", ("columns.age.rnage (line 19)", "did you mean 'range'?")),
    "key of a former version": ("family =", "kind =", ("model.kind (line 6): unknown key 'kind'; use 'family'",)),
    "key of another table": ("family =", "seed = 3\nfamily =", ("model.seed (line 6)", "it belongs to [run]")),
    "no type": ('type = "boolean"\n', "", ("columns.died.type", "missing; it must be one of number, integer")),
    "type float": ('type = "number"', 'type = "float"', ("columns.age.type (line 17)", "did you mean 'number'?")),
    "type factor": (
        '[columns.sex]\ntype = "category"',
        '[columns.sex]\ntype = "factor"',
        ("did you mean 'category'?",),
    ),
    "type date": ('type = "number"', 'type = "date"', ("columns.age.type (line 17)", "days since an agreed date")),
    "type string": ('type = "boolean"', 'type = "string"', ("columns.died.type", "did you mean 'text'?")),
    "one level": ('["f", "m"]', '["f"]', ("columns.sex.levels (line 24)", "at least two levels")),
    "no levels": ('levels = ["f", "m"]', "", ("columns.sex.levels", "missing; it must be a list of texts")),
    "level twice": ('["f", "m"]', '["f", "f"]', ("columns.sex.levels (line 24): 'f' is listed twice",)),
    "levels as one text": ('["f", "m"]', '"f, m"', ("columns.sex.levels (line 24)", "must be a list of texts")),
    "reference that is no level": (
        'levels = ["f", "m"]',
        'levels = ["f", "m"]\nreference = "w"',
        ("columns.sex.reference (line 25): 'w' is not one of the levels: f, m",),
    ),
    "range upside down": ("[18, 110]", "[110, 18]", ("columns.age.range (line 19)", "[smallest, largest]")),
    "rule for missing values": ('"drop"', '"omit"', ("columns.age.missing (line 20)", "choose one of: refuse, drop")),
    "no such column": (
        *formula("died ~ rx + weight"),
        ("model.formula (line 7)", "declare it in a table [columns.weight]"),
    ),
    "column in upper case": (*formula("died ~ rx + AGE"), ("model.formula (line 7)", "did you mean 'age'?")),
    "no outcome": (
        *formula("rx + age"),
        ("model.formula (line 7)", "a formula needs an outcome: `outcome ~ predictors`"),
    ),
    "one equals sign": (*formula("died = rx + age"), ("model.formula (line 7)", "`outcome ~ predictors`")),
    "outcome on the right": (*formula("died ~ died + age"), ("'died' is also on the right; remove it there",)),
    "two outcomes": (*formula("died + rx ~ age"), ("character 1", "one column on the left")),
    "bracket without an end": (*formula("died ~ log(age"), ("character 15", "`)` should be")),
    "square of R": (*formula("died ~ I(age^2)"), ("character 13", "`I(age ** 2)`")),
    "power of a column": (*formula("died ~ age^2"), ("character 8", "write `I(age ** 2)`")),
    "polynomial of R": (*formula("died ~ poly(age, 2)"), ("poly() cannot be used", "write `age + I(age ** 2)`")),
    "smooth term of mgcv": (*formula("died ~ s(age)"), ("s() cannot be used", "write `ns(age, knots=[40, 60]")),
    "spline without knots": (
        *formula("died ~ bs(age, df=4)"),
        ("character 19", "give the knots, as in `bs(age, knots="),
    ),
    "all columns": (*formula("died ~ ."), ("character 8", "name the columns")),
    "factor of R": (*formula("died ~ factor(rx)"), ("factor() cannot be used", "declare the column as a category")),
    "comparison": (*formula("died ~ age > 60"), ("character 12", "add a column to the data")),
    "column of a data frame": (*formula("died ~ data$age"), ("character 12", "the name of the column alone")),
    "square root": (*formula("died ~ sqrt(age)"), ("sqrt() cannot be used", "add a column to the data")),
    "scaling in the formula": (*formula("died ~ scale(age)"), ("scale() cannot be used", "use the study's `scaling`")),
    "group without brackets": (*formula("died ~ age + 1 | rx"), ("effects of groups in brackets",)),
    "computed category": (*formula("died ~ log(rx)"), ("'rx', which is a category and not a number",)),
    "text as a predictor": (
        f"{FORMULA}\n",
        f'formula = "died ~ ward"\n{WARD}',
        ("columns.ward.type", "declare it as a category"),
    ),
    "logit": (*family("logit"), ("model.family (line 6): unknown family 'logit'", "did you mean 'bernoulli'?")),
    "binary": (*family("binary"), ("model.family (line 6)", "did you mean 'bernoulli'?")),
    "normal": (*family("normal"), ("model.family (line 6)", "did you mean 'gaussian'?")),
    "negbin": (*family("negbin"), ("model.family (line 6)", "did you mean 'negative-binomial'?")),
    "multinomial": (*family("multinomial"), ("model.family (line 6)", "did you mean 'categorical'?")),
    "coxph": (*family("coxph"), ("model.family (line 6)", "did you mean 'cox'?")),
    "probit": (*family("probit"), ("model.family (line 6)", "did you mean 'bernoulli' with link=\"probit\"?")),
    "capital letter": (*family("Poisson"), ("model.family (line 6)", "did you mean 'poisson'?")),
    "Cox without Surv": (*family("cox"), ("model.formula (line 8)", "Surv(", "on the left of the formula")),
    "binomial without trials": (*family("binomial"), ("model.formula (line 8)", "trials(")),
    "Gaussian of a yes or no": (
        *family("gaussian"),
        ("columns.died.type (line 11)", "the outcome of linear regression is"),
    ),
    "counts of yes or no": (
        *family("poisson"),
        ("columns.died.type (line 11)", "the outcome of Poisson regression is"),
    ),
    "three levels for yes or no": (*formula("rx ~ age"), ("columns.rx.type (line 13)", "a category of two levels")),
    "number for yes or no": (*formula("age ~ sex"), ("columns.age.type (line 17)", "levels = [1, 2]")),
    "setting of another family": (
        *family("logistic", "noise_sd = 2.0"),
        ("model.noise_sd (line 7)", "it is for gaussian"),
    ),
    "link": (*family("logistic", 'link = "log"'), ("model.link (line 7)", "choose one of: logit, probit, cloglog")),
    "undeclared weights": (
        *family("logistic", 'weights = "n"'),
        ("model.weights (line 7)", "declare it in a table [columns.n]"),
    ),
    "offset of a category": (*formula("died ~ age + offset(sex)"), ("columns.sex.type", "must be a number")),
    "negative scale": (
        DIED,
        f"[prior]\nscale = -1\n\n{DIED}",
        ("prior.scale (line 10)", "must be a positive number, not -1"),
    ),
    "scale as text": (
        DIED,
        f'[prior]\nscale = "2.5"\n\n{DIED}',
        ("prior.scale (line 10)", "must be a positive number"),
    ),
    "prior of a misspelt coefficient": (
        DIED,
        f"[prior.scales]\nagee = 1.0\n\n{DIED}",
        ("prior.scales.agee (line 10): unknown coefficient 'agee' (did you mean 'age'?)", "rx[T.low]"),
    ),
    "family of priors": (DIED, f'[prior]\nfamily = "cauchy"\n\n{DIED}', ("prior.family (line 10)", "student-t")),
    "method": (DIED, f'[algorithm]\nmethod = "fedavg"\n\n{DIED}', ("algorithm.method (line 10)", "choose one of: pvi")),
    "fedgvi without a loss": (
        DIED,
        f'[algorithm]\nmethod = "fedgvi"\n\n{DIED}',
        ("algorithm.loss", "a name or { name = number }"),
    ),
    "no rounds": (
        DIED,
        f"[run]\nrounds = 0\n\n{DIED}",
        ("run.rounds (line 10)", "a whole number of at least 1, not 0"),
    ),
    "negative seed": (DIED, f"[run]\nseed = -1\n\n{DIED}", ("run.seed (line 10)", "a whole number of at least 0")),
    "schedule": (
        DIED,
        f'[run]\nschedule = "sync"\n\n{DIED}',
        ("run.schedule (line 10)", "did you mean 'synchronous'?"),
    ),
    "scaling": (
        'id = "trial-1"',
        'id = "trial-1"\nscaling = "zscore"',
        ("scaling (line 3)", "choose one of: none, federated"),
    ),
    "least rows in words": (
        'id = "trial-1"',
        'id = "trial-1"\nmin_rows = "ten"',
        ("min_rows (line 3)", "a whole number"),
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_file(command, tmp_path, old, new, expected):
    assert TRIAL.count(old) == 1
    (tmp_path / "study.toml").write_text(TRIAL.replace(old, new))
    check_command(command, CHECK, "error: study.toml: ", *expected)


def test_no_such_file(command):
    check_command(command, CHECK, "study.toml: file not found", "`cavity study new`")


def test_a_data_file_for_a_study_file(command, tmp_path):
    (tmp_path / "leeds.csv").write_text("died,age\n1,61\n")
    words = ("study", "check", "leeds.csv")
    check_command(command, words, "leeds.csv: this is a data file", "give a study file")


def test_a_file_in_another_encoding(command, tmp_path):
    (tmp_path / "study.toml").write_bytes(TRIAL.encode("utf-16"))
    check_command(command, CHECK, "study.toml: the file is not text in UTF-8", "save it")


def test_a_draft_that_was_not_filled_in(command, tmp_path):
    rows = "".join(f"{i % 2},{20 + i}.5,{'ab'[i % 2]}\n" for i in range(12))
    (tmp_path / "mine.csv").write_text(f"died,age,arm\n{rows}")
    assert command("study", "new", "mine.csv", "--outcome", "died")[0] == 0
    check_command(
        command, CHECK, "clients (line 6): name at least one client", "columns.arm.levels", "all that any client"
    )


def test_a_model_of_your_own_that_is_not_allowed(command, tmp_path):
    text = TRIAL.replace(f'family = "logistic"\n{FORMULA}', 'function = "models:own"')
    (tmp_path / "study.toml").write_text(text)
    check_command(command, CHECK, "wants to import the module 'models'", "--allow-model models")
