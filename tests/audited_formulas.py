"""A program that uses random formulas under an audit hook, and prints what they did.

It is a process of its own, since an audit hook cannot be taken off again: `python -m tests.audited_formulas 100000`.
"""

import json
import random
import sys

from cavity.errors import StudyError
from cavity.study.columns import Integer, Number
from cavity.study.design import Design, template
from cavity.study.formula import parse_formula
from cavity.study.group_design import GroupDesign
from tests.formulas import COLUMNS, EXPLOIT, any_text

FORBIDDEN = ("open", "exec", "compile", "import", "code.__new__", "marshal.loads", "pickle.find_class")
FORBIDDEN_PARTS = ("os", "subprocess", "socket", "ctypes", "shutil", "builtins", "tempfile", "urllib")
VALUES = template(tuple(COLUMNS.values()), 4)
events: list[str] = []
watching = False


def note(event: str, arguments: tuple) -> None:
    """The audit hook."""
    if watching and (event in FORBIDDEN or event.split(".")[0] in FORBIDDEN_PARTS):
        events.append(f"{event} {arguments}")


def use(text: str) -> str:
    """All that is ever done with a formula: it is read, its columns are laid out and computed."""
    try:
        formula = parse_formula(text)
        design = Design(text, tuple(COLUMNS.get(name, Number(name=name)) for name in formula.predictors))
        values = {name: VALUES.get(name, VALUES["age"]) for name in formula.columns}
        assert design.matrix(values, len(VALUES["age"])).shape == (len(VALUES["age"]), len(design.names))
        names = dict.fromkeys((*formula.group_predictors, *formula.group_columns))
        groups = GroupDesign(text, tuple(COLUMNS.get(name, Integer(name=name)) for name in names))
        assert groups.matrix(values, len(VALUES["age"])).shape == (len(VALUES["age"]), len(groups.names))
        assert all(parse_formula(f"y ~ {term}").groups == (term,) for term in formula.groups if "y" not in names)
    except StudyError as error:
        assert "at character " in str(error), error
        return "refused"
    return "computed"


def main(num_texts: int) -> None:
    """Print the events and the numbers of formulas that were refused and computed."""
    global watching
    rng, others = random.Random(0), random.Random(1)
    texts = [EXPLOIT, *(any_text(rng) for _ in range(num_texts))]
    for _ in range(1000):  # what is imported on first use is imported before; other texts, since results are cached
        use(any_text(others))
    sys.addaudithook(note)
    found = {"refused": 0, "computed": 0}
    watching = True
    compile("1", "", "eval")
    assert events, "the hook sees nothing"
    events.clear()
    for text in texts:
        found[use(text)] += 1
    watching = False
    print(json.dumps(found | {"events": events[:10]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
