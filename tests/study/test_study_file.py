"""Study files: what is read, what is refused and where, and when two files are the same study."""

import random
import tomllib

import pytest
from hypothesis import given, settings, strategies

from cavity.errors import StudyError
from cavity.study import differences, parse_study, read_study
from cavity.study import settings as settings_of
from cavity.study.columns import Category, FixedScaling, Missing, Number, ScalingRule
from cavity.study.part import Part
from tests.studies import TRIAL, trial

LINES = TRIAL.splitlines()


def problems(text):
    with pytest.raises(StudyError) as refused:
        parse_study(text)
    return refused.value.problems


def test_a_study_is_read_with_its_defaults(tmp_path):
    (tmp_path / "study.toml").write_text(TRIAL)
    study = read_study(tmp_path / "study.toml")
    assert (study.name, study.id, study.clients, study.min_rows) == ("A trial", "trial-1", ("leeds", "york"), 10)
    assert study.columns[1] == Category(name="rx", levels=("placebo", "low", "high"), reference="placebo")
    assert study.columns[2] == Number(name="age", unit="years", range=(18.0, 110.0), missing=Missing.DROP)
    assert (study.prior.scale, study.prior.intercept_scale, study.prior.extra) == (2.5, 10.0, ())
    assert (study.algorithm.method, study.algorithm.covariance, study.algorithm.damping) == (
        "pvi",
        "full",
        Part("adaptive"),
    )
    assert (study.run.schedule, study.run.rounds, study.run.tolerance) == (Part("synchronous"), None, 1e-6)
    assert [column.name for column in study.used_columns] == ["died", "rx", "age", "sex"]
    assert study.scaling_rules == {"age": ScalingRule.FEDERATED}
    assert study.agreed_centres == {"age": 64.0}
    assert study.scales_design


def test_a_study_with_all_keys():
    study = parse_study("""
        name = "all"
        id = "all.2"
        clients = ["a", "b"]
        min_rows = 30
        scaling = "federated"
        [model]
        family = "linear"
        formula = "y ~ x + z + w"
        noise_sd = 2
        [columns]
        y = { type = "number", missing_codes = ["-9", 99] }
        x = { type = "integer", range = [0, inf], scaling = { centre = 3, scale = 0.5 } }
        z = { type = "number" }
        w = { type = "number", scaling = "none" }
        [prior]
        scale = 3
        intercept_scale = 100
        scales = { x = 0.5 }
        [algorithm]
        method = "fedgvi"
        covariance = "diagonal"
        damping = { fixed = 0.5 }
        loss = { beta = 0.3 }
        divergence = { renyi = 1.5 }
        server_divergence = "kl"
        [run]
        schedule = { sampled-count = 1 }
        rounds = 7
        tolerance = 1e-4
        seed = 3
    """)
    assert study.columns[0].missing_codes == ("-9", "99")
    assert study.scaling_rules == {"x": FixedScaling(3.0, 0.5), "z": ScalingRule.FEDERATED}
    assert study.federated_columns == ("z", "y")
    assert study.prior.scales == (("x", 0.5),)
    assert study.algorithm.loss == Part("beta", 0.3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'unit = "years"',
            'untis = "years"',
            "columns.age.untis (line 18): unknown key 'untis' (did you mean 'unit'?)",
        ),
        ("clients", "client", "client (line 3): unknown key 'client' (did you mean 'clients'?)"),
        ('clients = ["leeds", "york"]', "", "clients: missing; it must be a list of texts"),
        ('clients = ["leeds", "york"]', "clients = []", "name at least one client"),
        ('"york"]', '"leeds"]', "'leeds' is listed twice"),
        ('"york"]', '"../york"]', "'../york' must consist of letters"),
        ('id = "trial-1"', "id = 7", "id (line 2): must be a text, not 7"),
        ('id = "trial-1"', 'id = "a b"', "id (line 2): 'a b' must consist of letters"),
        ('name = "A trial"', "", "name: missing"),
        ('family = "logistic"', 'family = "logistc"', "unknown family 'logistc' (did you mean 'logistic'?)"),
        ('family = "logistic"', 'family = "poisson"', "columns.died.type (line 10): the outcome of Poisson"),
        ('family = "logistic"', 'family = "linear"', "the outcome of linear regression is a number"),
        ('family = "logistic"', 'family = "softmax"', "the outcome of softmax regression is a category"),
        (
            'family = "logistic"',
            'family = "logistic"\nnoise_sd = 1.0',
            "model.noise_sd (line 7): the family 'bernoulli' has no setting 'noise_sd'; it is for gaussian",
        ),
        ("* age", "* agee", "model.formula (line 7): undeclared column 'agee' (did you mean 'age'?)"),
        ("* age", "* scale(age)", "scale()"),
        ('type = "number"', 'type = "numbr"', "unknown type 'numbr' (did you mean 'number'?)"),
        ('type = "number"', 'type = "text"', "columns.age.range"),
        ('type = "number"', "", "columns.age.type (line 16): missing"),
        (
            "range = [18, 110]",
            "range = [110, 18]",
            "columns.age.range (line 19): must be a list [smallest, largest]",
        ),
        ("range = [18, 110]", "range = [18, true]", "must be a list [smallest, largest]"),
        ('missing = "drop"', 'missing = "ignore"', "unknown missing 'ignore'; choose one of: refuse, drop"),
        ('missing = "drop"', 'missing = "level"', "unknown missing 'level'; choose one of: refuse, drop"),
        ('levels = ["f", "m"]', 'levels = ["f"]', "columns.sex.levels (line 24): list at least two levels"),
        ('levels = ["f", "m"]', 'levels = ["f", "m"]\nreference = "x"', "'x' is not one of the levels: f, m"),
        ('levels = ["f", "m"]', "", "columns.sex.levels (line 22): missing"),
        ('unit = "years"', "scaling = { centre = 1 }", "columns.age.scaling.scale"),
        ('unit = "years"', "scaling = { centre = 1, scale = -1 }", "must be a positive number, not -1"),
        ('unit = "years"', "scaling = { center = 1, scale = 1 }", "unknown key 'center' (did you mean 'centre'?)"),
        ('unit = "years"', 'scaling = "federal"', "unknown scaling 'federal' (did you mean 'federated'?)"),
        ('type = "boolean"', 'type = "integer"', "boolean, a category of two levels, or 0 and 1"),
        ("[columns.died]", "min_rows = 0\n[columns.died]", "model.min_rows"),
        ('id = "trial-1"', 'id = "trial-1"\nmin_rows = 0', "a whole number of at least 1, not 0"),
        ('id = "trial-1"', 'id = "trial-1"\nmin_rows = true', "a whole number of at least 1, not True"),
        (
            "[columns.died]",
            "[prior]\nscale = -1\n[columns.died]",
            "prior.scale (line 10): must be a positive number",
        ),
        ("[columns.died]", "[prior]\nscale = nan\n[columns.died]", "prior.scale"),
        (
            "[columns.died]",
            "[prior.scales]\nagee = 1\n[columns.died]",
            "prior.scales.agee (line 10): unknown coefficient 'agee'",
        ),
        ("[columns.died]", "[prior]\nlog_noise_scale = 1\n[columns.died]", "unknown key 'log_noise_scale'"),
        ("[columns.died]", '[algorithm]\nmethod = "pvy"\n[columns.died]', "(did you mean 'pvi'?)"),
        ("[columns.died]", '[algorithm]\nmethod = "fedgvi"\n[columns.died]', "algorithm.loss (line 9): missing"),
        (
            "[columns.died]",
            '[algorithm]\nloss = "nll"\n[columns.died]',
            "algorithm.loss (line 10): unknown key 'loss'",
        ),
        ("[columns.died]", "[algorithm]\ndamping = { fixed = 2 }\n[columns.died]", "a damping exponent lies in (0, 1]"),
        ("[columns.died]", '[algorithm]\ndamping = "fixed"\n[columns.died]', "needs a number: { fixed = ... }"),
        ("[columns.died]", "[algorithm]\ndamping = { adaptive = 2 }\n[columns.died]", "takes no (such) number"),
        ("[columns.died]", "[run]\nschedule = { sampled-count = 1.5 }\n[columns.died]", "takes no (such) number"),
        ("[columns.died]", "[run]\nschedule = { sampled-share = 1.5 }\n[columns.died]", "lies in (0, 1]"),
        ("[columns.died]", "[run]\nschedule = { a = 1, b = 2 }\n[columns.died]", "a name or { name = number }"),
        ("[columns.died]", "[run]\nrounds = 0\n[columns.died]", "run.rounds (line 10)"),
        ("[columns.died]", '[columns.died]\nmissing = "level"', "unknown missing 'level'"),
        ('name = "A trial"', 'name = "A trial', "cannot be read as TOML"),
        ('name = "A trial"', "name = " + "[" * 2000, "cannot be read as TOML"),
        ('name = "A trial"', "name = " + "9" * 5000, "cannot be read as TOML"),
        ("range = [18, 110]", f"range = [18, 1{'0' * 400}]", "a list [smallest, largest] of two numbers"),
    ],
)
def test_problems_have_their_key_and_line(old, new, message):
    assert old in TRIAL
    assert any(message in problem for problem in problems(TRIAL.replace(old, new)))


def test_all_problems_are_reported_at_once():
    text = TRIAL.replace("unit", "untis").replace('id = "trial-1"', "id = 1").replace('["f", "m"]', '["f"]')
    assert len(problems(text)) == 3


def test_a_scaled_column_cannot_be_inside_a_function():
    text = TRIAL.replace("* age", "* log(age)")
    assert parse_study(text).scaling_rules == {}  # the study's rule does not scale it
    assert "columns.age.scaling" in problems(text.replace('unit = "years"', 'scaling = "federated"'))[0]
    parse_study(text.replace('unit = "years"', 'scaling = "none"'))


def test_the_scaling_of_a_study_does_not_change_the_model():
    """Centring would change the model of an interaction without main effects."""
    assert trial([("rx * age + sex", "rx + rx:age")]).federated_columns == ("age",)
    assert trial([("rx * age + sex", "rx:age")]).federated_columns == ()
    own = trial([("rx * age + sex", "rx:age"), ('unit = "years"', 'scaling = "federated"')])
    assert own.federated_columns == ("age",)  # its own rule scales it, and the summary says so


LINEAR = """
    name = "a line"
    id = "line"
    clients = ["a"]
    {scaling}
    [model]
    family = "linear"
    formula = "{formula}"
    [columns]
    y = {{ type = "number"{own} }}
    x = {{ type = "number" }}
"""


def line(scaling="", own="", formula="y ~ x", prior=""):
    return LINEAR.format(scaling=scaling, own=own, formula=formula) + prior


def test_the_outcome_of_linear_regression_is_scaled():
    study = parse_study(line())
    assert study.federated_columns == ("x", "y")
    prior = study.prior
    assert (prior.scale, prior.intercept_scale, prior.extra) == (2.5, 2.5, (("log_noise_scale", 2.5),))
    agreed = parse_study(line(own=", scaling = { centre = 120, scale = 15 }"))
    assert agreed.outcome_rule == FixedScaling(120.0, 15.0)
    assert agreed.federated_columns == ("x",)


def test_an_outcome_that_is_not_scaled_needs_a_prior():
    found = problems(line('scaling = "none"'))
    assert [problem.split(":")[0] for problem in found] == [
        "prior.scale",
        "prior.intercept_scale",
        "prior.log_noise_scale",
    ]
    assert all("has no default prior" in problem for problem in found)
    parse_study(line('scaling = "none"', prior="[prior]\nscale = 5\nintercept_scale = 200\nlog_noise_scale = 3\n"))


def test_an_outcome_is_centred_only_with_an_intercept():
    centred = line(own=", scaling = { centre = 120, scale = 15 }", formula="y ~ 0 + x")
    assert "columns.y.scaling" in problems(centred)[0]
    assert (
        "the family 'bernoulli' does not scale its outcome"
        in problems(TRIAL.replace('"boolean"', '"integer"\nrange = [0, 1]\nscaling = "federated"'))[0]
    )


def test_a_users_own_model_has_no_prior_family_or_covariance():
    own = 'name = "o"\nid = "o"\nclients = ["a"]\n[model]\nfunction = "package.module:make"\n'
    study = parse_study(own + '[model.arguments]\nwidth = 3\n[columns.y]\ntype = "number"')
    assert study.model.arguments == (("width", 3),)
    assert study.prior is None
    assert [column.name for column in study.used_columns] == ["y"]
    assert "has its own prior" in problems(own + "[prior]\nscale = 1")[0]
    assert "algorithm.covariance" in problems(own + '[algorithm]\ncovariance = "full"')[0]
    assert "unknown key 'family'" in problems(own + 'family = "linear"')[0]
    assert "module:function" in problems(own.replace("package.module:make", "make"))[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('family = "logistic"', 'kind = "logistic"', "model.kind (line 6): unknown key 'kind'; use 'family'"),
        (
            "[columns.died]",
            '[algorithm]\nfamily = "diagonal"\n[columns.died]',
            "algorithm.family (line 10): unknown key 'family'; use 'covariance'",
        ),
    ],
)
def test_an_old_key_names_the_new_one(old, new, message):
    assert message in problems(TRIAL.replace(old, new))


@pytest.mark.parametrize(("alias", "name"), [("logistic", "bernoulli"), ("bernoulli", "bernoulli")])
def test_an_alias_is_the_same_study(alias, name):
    study = trial([('family = "logistic"', f'family = "{alias}"')])
    assert study.model.family.name == name
    assert settings_of(study)["model.family"] == name
    assert study.hash == trial().hash


def shuffled(text, seed):
    """The same tables with their keys in another order, and comments."""
    head, *tables = text.split("\n[")
    rng = random.Random(seed)
    rng.shuffle(tables)
    blocks = []
    for block in [head, *("[" + table for table in tables)]:
        lines = [line for line in block.splitlines() if line]
        first, rest = (lines[:1], lines[1:]) if lines[0].startswith("[") else ([], lines)
        rng.shuffle(rest)
        blocks.append("\n".join([*first, *(f"{line}  # {rng.random()}" for line in rest)]))
    return "\n\n".join(blocks)


@settings(max_examples=20, deadline=None)
@given(strategies.integers(0, 10**6))
def test_comments_and_order_do_not_change_the_hash(seed):
    other = shuffled(TRIAL, seed)
    assert tomllib.loads(other) == tomllib.loads(TRIAL)
    assert parse_study(other).hash == parse_study(TRIAL).hash


def test_writing_out_a_default_does_not_change_the_hash():
    spelled = (
        'min_rows = 10\nscaling = "federated"\n'
        + TRIAL
        + "[prior]\nscale = 2.5\nintercept_scale = 10\n[run]\nseed = 0\n"
    )
    assert parse_study(spelled).hash == trial().hash
    assert differences(parse_study(spelled), trial()) == []


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ('name = "A trial"', 'name = "B trial"', "name"),
        ('id = "trial-1"', 'id = "trial-2"', "id"),
        ('id = "trial-1"', 'id = "trial-1"\nmin_rows = 9', "min_rows"),
        ('id = "trial-1"', 'id = "trial-1"\nscaling = "none"', "scaling"),
        ('["leeds", "york"]', '["york", "leeds"]', "clients"),
        ("rx * age", "rx + age", "model.formula"),
        ('"low", "high"', '"high", "low"', "columns.rx.levels"),
        ('levels = ["f", "m"]', 'levels = ["f", "m"]\nreference = "m"', "columns.sex.reference"),
        ('unit = "years"', 'unit = "months"', "columns.age.unit"),
        ("[18, 110]", "[18, 111]", "columns.age.range"),
        ('missing = "drop"', 'missing = "refuse"', "columns.age.missing"),
        ('unit = "years"', 'unit = "years"\nmissing_codes = ["-9"]', "columns.age.missing_codes"),
        ('type = "number"', 'type = "integer"', "columns.age.type"),
        ("[columns.died]", "[prior]\nscale = 1\n[columns.died]", "prior.scale"),
        ("[columns.died]", '[prior.scales]\n"sex[T.m]" = 1\n[columns.died]', 'prior.scales."sex[T.m]"'),
        ("[columns.died]", "[algorithm]\ndamping = { fixed = 0.5 }\n[columns.died]", "algorithm.damping"),
        ("[columns.died]", '[algorithm]\ncovariance = "diagonal"\n[columns.died]', "algorithm.covariance"),
        ("[columns.died]", '[run]\nschedule = "sequential"\n[columns.died]', "run.schedule"),
        ("[columns.died]", "[run]\nrounds = 5\n[columns.died]", "run.rounds"),
        ("[columns.died]", "[run]\nseed = 1\n[columns.died]", "run.seed"),
    ],
)
def test_every_change_of_meaning_changes_the_hash_and_is_named(old, new, path):
    ours, theirs = trial(), trial([(old, new)])
    assert ours.hash != theirs.hash
    assert differences(ours, theirs) == [path]
    assert differences(settings_of(ours), theirs) == [path]


def test_a_fixed_scaling_against_a_federated_one():
    fixed = trial([('unit = "years"', 'unit = "years"\nscaling = { centre = 60, scale = 10 }')])
    federated = trial([('unit = "years"', 'unit = "years"\nscaling = "federated"')])
    names = ["columns.age.scaling", "columns.age.scaling.centre", "columns.age.scaling.scale"]
    assert differences(fixed, federated) == names


def test_settings_are_plain_and_complete():
    values = settings_of(trial())
    assert values["columns.rx.levels"] == ["placebo", "low", "high"]
    assert values["columns.age.missing"] == "drop"
    assert all(type(value) in (str, int, float, list) for value in values.values())
