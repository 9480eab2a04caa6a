"""`client_effects`: what differs between clients, written as a term of the formula.

| choice | term | |
| --- | --- | --- |
| none | - | all clients have the same intercept |
| intercepts | `stratified(1)` | each client has its own; it is no shared parameter |
| random | `(1 | client)` | they vary around a common one, with a standard deviation that is a parameter |
"""

from __future__ import annotations

from cavity.errors import StudyError
from cavity.study.formula import parse_formula

TERMS = {"none": "", "intercepts": "stratified(1)", "random": "(1 | client)"}


def with_client_effects(formula: str, choice: str) -> str:
    """The formula with the term of this choice: before effects of groups within clients, else at the end.

    Args:
        formula: such as `died ~ age`.
        choice: none, intercepts or random.

    Raises:
        StudyError: if there is no such choice.
    """
    if choice not in TERMS:
        raise StudyError(f"unknown client_effects {choice!r}; choose one of: {', '.join(TERMS)}")
    if not TERMS[choice]:
        return formula
    groups = [term for term in parse_formula(formula).groups if not term.is_client]
    if not groups:
        return f"{formula} + {TERMS[choice]}"
    at = min(term.at for term in groups)
    return f"{formula[:at]}{TERMS[choice]} + {formula[at:]}"
