"""What other programs call a family, for the hint of a message. These words are not accepted."""

from __future__ import annotations

from collections.abc import Collection

from cavity.study.spelling import did_you_mean

_BINARY, _CATEGORIES, _ORDERED = "bernoulli", "categorical", "ordinal"
_COUNTS, _NUMBER, _HAZARD = "negative-binomial", "gaussian", "cox"
OTHER_NAMES = {
    "logit": _BINARY,
    "binary": _BINARY,
    "dichotomous": _BINARY,
    "logreg": _BINARY,
    "quasibinomial": "binomial",
    "normal": _NUMBER,
    "identity": _NUMBER,
    "ols": _NUMBER,
    "lm": _NUMBER,
    "continuous": _NUMBER,
    "t": "student-t",
    "robust": "student-t",
    "negbin": _COUNTS,
    "nbinom": _COUNTS,
    "nb": _COUNTS,
    "neg_binomial": _COUNTS,
    "quasipoisson": _COUNTS,
    "count": "poisson",
    "counts": "poisson",
    "multinomial": _CATEGORIES,
    "multiclass": _CATEGORIES,
    "mlogit": _CATEGORIES,
    "nominal": _CATEGORIES,
    "cumulative": _ORDERED,
    "polr": _ORDERED,
    "ordered": _ORDERED,
    "proportional-odds": _ORDERED,
    "coxph": _HAZARD,
    "cox-ph": _HAZARD,
    "survival": _HAZARD,
    "proportional-hazards": _HAZARD,
    "pwexp": "piecewise-exponential",
}
BY_LINK = ("probit", "cloglog")  # families of other programs that are a link here


def family_hint(word: str, known: Collection[str]) -> str:
    """A hint at the family that was probably meant, or nothing.

    Args:
        word: that is no name of a family.
        known: the names of families.
    """
    plain = word.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in BY_LINK:
        return f" (did you mean '{_BINARY}' with link=\"{plain}\"?)"
    found = OTHER_NAMES.get(plain, OTHER_NAMES.get(plain.replace("-", "_"), OTHER_NAMES.get(plain.replace("-", ""))))
    return did_you_mean(plain, known, 0.5) if found is None else f" (did you mean {found!r}?)"
