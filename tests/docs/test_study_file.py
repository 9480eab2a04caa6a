"""The reference of the study file: its example is a study, and it names every key and word that there is."""

import re
from dataclasses import fields
from pathlib import Path

from cavity.study import columns, parse_study, priors, registry, schema
from cavity.study.families import PiecewiseExponential, StudentT, families

FAMILIES = tuple(family for family in families() if family.__module__.startswith("cavity."))
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "study-file.md").read_text()


def test_the_example_is_a_study():
    example, single = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    study = parse_study(example + single)
    assert study.federated_columns == ("age",)


def test_every_key_and_word_is_described():
    records = [schema.Study, schema.ModelChoice, priors.PriorChoice, schema.AlgorithmChoice, schema.RunChoice]
    records += [priors.GroupPriorChoice, columns.Number, columns.Category, *FAMILIES]
    keys = {field.name for record in records for field in fields(record) if field.compare} - {"extra", "group"}
    settings = {PiecewiseExponential: {"cuts": (90.0, 365.0)}}
    made = [StudentT(df="learned"), *(family(**settings.get(family, {})) for family in FAMILIES)]
    extra = {key for family in made for key in family.extra_scales(outcome_is_scaled=True)}
    for key in keys | extra:
        assert f"`{key}`" in PAGE or f"`[{key}]`" in PAGE or f"`[{key}." in PAGE
    tables = [
        registry.COLUMNS,
        registry.LOSSES,
        registry.DIVERGENCES,
        registry.SCHEDULES,
        registry.DAMPINGS,
        registry.COVARIANCES,
    ]
    names = [name for family in FAMILIES for name in (family.name, *family.aliases)]
    for word in [*names, *priors.PRIOR_FAMILIES, *registry.METHODS, *(word for table in tables for word in table)]:
        assert f'"{word}"' in PAGE or f"{{ {word} = " in PAGE
