"""Models of a user's own for studies: one whose latents stay with the clients, one whose prior is no Gaussian."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist

import cavity
from cavity.core import LatentModel, Model
from cavity.models.numpyro.globals_only import as_rows
from cavity.study.table import as_table

EXAMPLE = {"ward": ["a", "b"], "dose": np.zeros(2), "outcome": np.zeros(2)}
TEXT = """\
name = "Wards"
id = "wards"
clients = ["leeds", "york"]
[model]
function = "tests.own_models:MODEL"
[columns]
ward = { type = "text" }
dose = { type = "number" }
outcome = { type = "number" }
"""
WARDS = TEXT.replace("MODEL", "wards") + '[algorithm]\nmethod = "sfvi-avg"\ntotal = 4\nlocal_steps = 20\n'
SPREAD = TEXT.replace("MODEL", "spread").replace('ward = { type = "text" }\n', "")


@functools.cache  # one model, so that it is compiled once
def wards() -> LatentModel:
    """A level for each ward."""

    def model(ward, dose, outcome, num_wards):
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        with numpyro.plate("wards", num_wards):
            level = numpyro.sample("level", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(level[ward] + dose, 1), obs=outcome)

    return cavity.models.numpyro_model(model, EXAMPLE, unit="ward", num_units="num_wards")


@functools.cache
def spread() -> Model:
    """A scale with a half-Cauchy prior."""

    def model(dose, outcome):
        scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
        numpyro.sample("y", dist.Normal(dose, scale), obs=outcome)

    return as_rows(cavity.models.numpyro_model(model, {name: EXAMPLE[name] for name in ("dose", "outcome")}))


def ward_columns(names):
    rng = np.random.default_rng(0)
    return {
        name: {
            "ward": np.repeat([f"{name}1", f"{name}2"], 15),
            "dose": rng.random(30),
            "outcome": rng.normal(size=30),
        }
        for name in names
    }


def ward_tables(names=("leeds", "york")):
    return {name: as_table(columns) for name, columns in ward_columns(names).items()}
