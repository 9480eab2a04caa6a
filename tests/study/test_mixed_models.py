"""Mixed models by formula: study files, Python, checks of data, and the same posterior from all of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import cavity
from cavity.errors import DataError, StudyError
from cavity.models.mixed.grouped_regression import GroupedRegression
from cavity.models.mixed.marginal import marginal_model
from cavity.study import as_table, parse_study
from cavity.study.building import client_data, scaling_of
from cavity.study.checks import check
from cavity.study.disclosure import disclosures
from cavity.study.identity import differences, settings
from cavity.study.models import study_model
from cavity.study.run import run_study
from tests.marks import thorough

STUDY = """\
name = "Wards"
id = "wards-1"
clients = ["leeds", "york"]
[model]
family = "gaussian"
formula = "stay ~ age + sex + (age | ward)"
[columns]
stay = { type = "number" }
age = { type = "number", range = [0, 120] }
sex = { type = "category", levels = ["f", "m"] }
ward = { type = "text" }
[prior]
sd_scale = 2.0
"""


def study(*changes, text=STUDY):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_study(text)


def hospital(client, num_wards, seed, size=8):
    rng = np.random.default_rng(seed)
    ward = np.repeat([f"{client}-{i}" for i in range(num_wards)], size)
    level = np.repeat(rng.normal(0, 2, num_wards), size)
    age, sex = rng.normal(60, 12, len(ward)), rng.choice(["f", "m"], len(ward))
    stay = 10 + 0.1 * (age - 60) + level + rng.normal(size=len(ward))
    return {"stay": stay, "died": stay > 10, "age": age, "sex": sex, "ward": ward}


def hospitals():
    return {"leeds": hospital("leeds", 6, 1), "york": hospital("york", 5, 2)}


def tables():
    return {name: as_table(frame) for name, frame in hospitals().items()}


def test_a_study_has_the_columns_and_priors_of_its_groups():
    found = study()
    assert found.design_names == ("age", "sex[T.m]", "age|ward")
    assert found.federated_columns == ("age", "stay")
    assert tuple(found.scaling_rules) == ("age",)
    assert [column.name for column in found.used_columns] == ["stay", "age", "sex", "ward"]
    assert found.prior.group.sd_scale == 2.0
    assert settings(found)["prior.sd_scale"] == 2.0
    assert settings(found)["prior.correlation_eta"] == 2.0
    assert study(("sd_scale = 2.0", "sd_scale = 2.0\ncorrelation_eta = 2")).hash == found.hash
    other = study(("sd_scale = 2.0", 'sd_scale = 2.0\nsd_df = 3\nsd_scales = { "1|ward" = 4.0 }'))
    assert differences(found, other) == ["prior.sd_df", 'prior.sd_scales."1|ward"']


def test_a_study_without_group_terms_has_none_of_their_settings():
    plain = study((" + (age | ward)", ""), ("[prior]\nsd_scale = 2.0\n", ""))
    assert plain.prior.group is None
    assert not any("sd_scale" in key or "eta" in key for key in settings(plain))


def test_the_model_computes_in_scaled_units_and_reports_in_those_of_the_data():
    found = study(("sd_scale = 2.0", 'sd_scale = 2.0\nsd_scales = { "1|ward" = 4.0 }'))
    frames = hospitals()
    scaling = scaling_of(found, list(frames.values()))
    model = study_model(found, scaling)
    assert isinstance(model, GroupedRegression)
    age, stay = (np.concatenate([frame[name] for frame in frames.values()]) for name in ("age", "stay"))
    assert model.effect_units == pytest.approx((1.0, age.std()))
    np.testing.assert_allclose(model.sd_scale, [4.0 / stay.std(), 2.0])  # in the units of the data; in sd(y) / sd(x)
    np.testing.assert_allclose(model.fixed_scale, [2.5, 2.5, 2.5])
    z = jnp.array([0.1, 0.4, -0.2, np.log(0.3), np.log(0.6), np.log(0.2), 0.5])
    reported = model.constrain(None, z)
    assert tuple(reported) == (
        *("intercept", "age", "sex[T.m]", "sigma"),
        *("1|ward_sigma", "age|ward_sigma", "1,age|ward_corr"),
    )
    assert float(reported["age"]) == pytest.approx(0.4 * stay.std() / age.std())
    assert float(reported["sigma"]) == pytest.approx(0.3 * stay.std())
    assert float(reported["1|ward_sigma"]) == pytest.approx(0.6 * stay.std())
    assert float(reported["age|ward_sigma"]) == pytest.approx(0.2 * stay.std() / age.std())
    own = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)))
    data = model.prepare(client_data(found, frames["leeds"], scaling))
    effects = model.constrain_local(None, z, own, data)
    place = data.batch["unit"]
    fixed = reported["intercept"] + reported["age"] * frames["leeds"]["age"]
    fixed = fixed + reported["sex[T.m]"] * (frames["leeds"]["sex"] == "m")
    by_hand = fixed + effects["1|ward"][place] + effects["age|ward"][place] * frames["leeds"]["age"]
    computed = stay.mean() + stay.std() * model.predictors(z, own, data.batch)[:, 0]
    np.testing.assert_allclose(computed, by_hand, rtol=1e-9)


@thorough
def test_the_marginal_likelihood_is_the_normal_density_of_the_reported_parameters():
    found, frames = study(), hospitals()
    scaling = scaling_of(found, list(frames.values()))
    model = study_model(found, scaling)
    data = model.prepare(client_data(found, frames["york"], scaling))
    z = jnp.array([0.1, 0.4, -0.2, np.log(0.3), np.log(0.6), np.log(0.2), 0.5])
    value = {name: float(number) for name, number in model.constrain(None, z).items()}
    sd = np.array([value["1|ward_sigma"], value["age|ward_sigma"]])
    effects = np.array([[1.0, value["1,age|ward_corr"]], [value["1,age|ward_corr"], 1.0]]) * np.outer(sd, sd)
    york, expected = frames["york"], 0.0
    for ward in np.unique(york["ward"]):
        mine = york["ward"] == ward
        columns = np.stack([np.ones(mine.sum()), york["age"][mine]], axis=1)
        mean = value["intercept"] + value["age"] * york["age"][mine] + value["sex[T.m]"] * (york["sex"][mine] == "m")
        covariance = columns @ effects @ columns.T + value["sigma"] ** 2 * np.eye(mine.sum())
        expected += stats.multivariate_normal.logpdf(york["stay"][mine], mean, covariance)
    computed = float(marginal_model(model, order=1).log_prob(z, data))
    assert computed == pytest.approx(expected, abs=1e-4)  # exact for normal units, up to the least noise


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([('ward = { type = "text" }', 'ward = { type = "number" }')], "columns.ward.type.*cannot name groups"),
        ([('ward = { type = "text" }\n', "")], "undeclared column 'ward'"),
        ([("(age | ward)", "(1 | client/ward) + (1 | sex)")], "model.formula.*at most two groups"),
        ([("(age | ward)", "(1 | ward) + (1 | client)")], "model.formula.*the client is the largest group"),
        ([("(age | ward)", "(1 | ward) + (age | ward)")], "model.formula.*two effects"),
        ([("sd_scale = 2.0", "sd_scale = -1.0")], "prior.sd_scale.*positive"),
        ([("sd_scale = 2.0", 'sd_scales = { "1|wad" = 1.0 }')], "sd_scales.*unknown effect '1.wad'"),
        ([(" + (age | ward)", "")], "prior.sd_scale.*formulas with group terms"),
        ([('"gaussian"', '"categorical"'), ("stay ~", "sex ~"), (" + sex", "")], "cannot have group terms yet"),
        ([("[prior]", '[algorithm]\ncovariance = "diagonal"\n[prior]')], "algorithm.covariance.*full covariance"),
        ([("[prior]", '[algorithm]\nmethod = "fedgvi"\nloss = "nll"\n[prior]')], "fedgvi cannot fit effects"),
        (
            [('id = "wards-1"', 'id = "wards-1"\nscaling = "none"'), ("sd_scale = 2.0", "scale = 1\n")],
            r"prior.sd_scale \(line 13\): missing",
        ),
    ],
)
def test_studies_that_cannot_be_fitted_are_refused(changes, message):
    with pytest.raises(StudyError, match=message):
        study(*changes)


def test_a_site_is_told_how_many_groups_it_has_and_what_is_sent():
    findings = check(study(), hospitals()["york"], "york")
    assert [str(f.message) for f in findings if f.column == "ward"] == ["5 groups; names are not sent"]
    assert not [finding for finding in findings if finding.severity == "error"]
    assert "age|ward" in disclosures(study())[1].what


def test_a_row_without_a_group_is_refused_or_dropped():
    frame = hospitals()["york"]
    frame["ward"] = np.array(["", *frame["ward"][1:]], object)
    with pytest.raises(DataError, match="1 missing value"):
        client_data(study(), frame, scaling_of(study(), [hospitals()["york"]]))
    dropping = study(('ward = { type = "text" }', 'ward = { type = "text", missing = "drop" }'))
    rows = client_data(dropping, frame, scaling_of(dropping, [frame]))
    assert len(rows.labels) == 39


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("stay ~ (1 | ward) + (1 | shift)", "client 'leeds': the groups 'ward' and 'shift': they are crossed"),
        ("stay ~ (1 | ward) + (1 | floor)", "'ward' is within 'floor': write the larger group first"),
        ("stay ~ (1 | shift) + (1 | client:ward)", "they are crossed"),
        ("stay ~ (1 | client) + (1 | shift)", "the group '0' has rows at 'leeds' and at 'york'"),
    ],
)
def test_crossed_groups_are_refused_with_the_reason(formula, message):
    frames = hospitals()
    for frame in frames.values():
        frame["shift"] = np.arange(len(frame["ward"])) % 3
        frame["floor"] = [int(ward[-1]) // 2 for ward in frame["ward"]]
    with pytest.raises((DataError, StudyError), match=message):
        cavity.regression(formula, frames, family="gaussian")


def test_a_group_at_two_clients_is_refused():
    frames = hospitals()
    frames["york"]["ward"] = np.where(frames["york"]["ward"] == "york-0", "leeds-0", frames["york"]["ward"])
    with pytest.raises(DataError, match="'leeds-0' has rows at 'leeds' and at 'york'"):
        cavity.regression("stay ~ age + (1 | ward)", frames, family="gaussian", rounds=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sd_scale": 0.0}, "sd_scale must be positive"),
        ({"covariance": "diagonal"}, "full covariance"),
        ({"sd_scales": {"1|wad": 1.0}}, "unknown effect '1.wad'"),
        ({"scaling": "none", "prior_scale": 1.0, "intercept_scale": 1.0}, "give sd_scale in the units of the outcome"),
    ],
)
def test_priors_of_groups_are_checked(arguments, message):
    with pytest.raises(StudyError, match=message):
        cavity.regression("stay ~ age + (1 | ward)", hospitals(), family="gaussian", **arguments)


def test_priors_of_groups_need_groups():
    with pytest.raises(StudyError, match="sd_df is for formulas with group terms"):
        cavity.regression("stay ~ age", hospitals(), family="gaussian", sd_df=3)


@thorough
def test_python_and_a_study_have_the_same_posterior():
    intercepts = study(("(age | ward)", "(1 | ward)"))
    fit = run_study(intercepts, tables())
    direct = cavity.regression("stay ~ age + sex + (1 | ward)", hospitals(), family="gaussian", sd_scale=2.0)
    assert fit.converged
    np.testing.assert_allclose(fit.posterior.mean, direct.posterior.mean, atol=1e-6)
    names = [estimate.name for estimate in fit.summary()]
    assert names == ["intercept", "age", "sex[T.m]", "sigma", "1|ward_sigma"]
    summary = {estimate.name: estimate for estimate in fit.summary()}
    assert summary["age"].mean == pytest.approx(0.1, abs=4 * summary["age"].sd)
    assert summary["1|ward_sigma"].lower < 2.0 < summary["1|ward_sigma"].upper
