"""The families by name. `register_family` adds one from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

from cavity.errors import StudyError
from cavity.study.families.bernoulli import Bernoulli
from cavity.study.families.binomial import Binomial
from cavity.study.families.categorical import Categorical
from cavity.study.families.cox import Cox
from cavity.study.families.failure_time import Exponential, LogNormal, Weibull
from cavity.study.families.family import Family
from cavity.study.families.gamma import Gamma
from cavity.study.families.gaussian import Gaussian
from cavity.study.families.negative_binomial import NegativeBinomial
from cavity.study.families.ordinal import Ordinal
from cavity.study.families.piecewise_exponential import PiecewiseExponential
from cavity.study.families.poisson import Poisson
from cavity.study.families.spellings import family_hint
from cavity.study.families.student_t import StudentT
from cavity.study.formula import OUTCOME_FUNCTIONS
from cavity.study.sections import Section

FamilyClass = TypeVar("FamilyClass", bound=type[Family])

_FAMILIES: dict[str, type[Family]] = {}  # by name and alias


def register_family(cls: FamilyClass) -> FamilyClass:
    """Make a family known by its name and aliases, in study files and in `cavity.regression`. Usable as a decorator.

    Every process that reads the study has to register it: a study file names a family and brings no code.

    Args:
        cls: a concrete family.

    Returns:
        The same class.

    Raises:
        StudyError: another family has one of its names.
    """
    for name in (cls.name, *cls.aliases):
        if _FAMILIES.get(name, cls) is not cls:
            raise StudyError(f"there is a family {name!r} already: {_FAMILIES[name].__name__}")
    _FAMILIES.update(dict.fromkeys((cls.name, *cls.aliases), cls))
    if cls.outcome_function is not None:
        OUTCOME_FUNCTIONS.add(cls.outcome_function)
    return cls


def families() -> tuple[type[Family], ...]:
    """All registered families, in the order of registration."""
    return tuple(dict.fromkeys(_FAMILIES.values()))


def family_class(name: str) -> type[Family]:
    """The family of a name or an alias. Raises StudyError."""
    if name not in _FAMILIES:
        raise StudyError(f"unknown family {name!r}{family_hint(name, _FAMILIES)}; choose one of: {_listed()}")
    return _FAMILIES[name]


def make_family(family: str | Family, settings: Mapping[str, object]) -> Family:
    """A family by its name, with the settings that are not None. Raises StudyError.

    Args:
        family: a name, or a family with its settings.
        settings: by name, such as `noise_sd`.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    match family:
        case Family():
            if given:
                raise StudyError(
                    f"give {next(iter(given))} to {type(family).__name__}(...), or name the family by a text"
                )
            return family
        case _:
            cls = family_class(family)
    if unknown := [name for name in given if name not in _keys(cls)]:
        raise StudyError(f"the family {cls.name!r} has no setting {unknown[0]!r}{_owners(unknown[0])}")
    return cls(**given)


def read_family(section: Section) -> Family | None:
    """The family of `[model]` with its settings; None, with a problem in the section, if there is none."""
    word = section.required_word("family", _FAMILIES, _listed(), hint=family_hint)
    if word is None:
        section.ignore(*(key for cls in families() for key in _keys(cls)))
        return None
    cls = _FAMILIES[word]
    found = cls.read(section)
    for key in sorted({key for other in families() for key in _keys(other)} - _keys(cls)):
        section.refuse(key, f"the family {cls.name!r} has no setting {key!r}{_owners(key)}")
    return found


def _keys(cls: type[Family]) -> set[str]:
    return {field.name for field in fields(cls)}


def _owners(key: str) -> str:
    owners = [cls.name for cls in families() if key in _keys(cls)]
    return f"; it is for {', '.join(owners)}" if owners else ""


def _listed() -> str:
    return ", ".join(" or ".join((cls.name, *cls.aliases)) for cls in families())


for _cls in (
    *(Gaussian, StudentT, Bernoulli, Binomial, Categorical, Ordinal, Poisson, NegativeBinomial, Gamma),
    *(Cox, Weibull, LogNormal, Exponential, PiecewiseExponential),
):
    register_family(_cls)
