"""Random formulas: safe ones, which formulaic can be trusted with, and texts of any kind, which it cannot."""

import random

from cavity.study.columns import Boolean, Category, Number


def category(name, *levels):
    return Category(name=name, levels=levels, reference=levels[0])


COLUMNS = {
    column.name: column
    for column in (
        category("rx", "none", "low", "high"),
        category("sex", "f", "m"),
        category("ward at entry", "north", "b c", "T.x", "9"),
        Number(name="age"),
        Number(name="dose"),
        Number(name="age at entry"),
        Boolean(name="male"),
    )
}
EXPLOIT = """died ~ age + {`patient's bmi` # `'c` if open("pwned","w").write("x") < 0 else age*age}"""
NUMERIC = ("age", "dose", "`age at entry`", "male")
CATEGORIES = ("rx", "sex", "`ward at entry`")


def value(rng, depth):
    """An expression of numbers, with at least one column."""
    pick = rng.random()
    if depth == 0 or pick < 0.25:
        return rng.choice(NUMERIC)
    inner = value(rng, depth - 1)
    if pick < 0.4:
        return f"{inner} {rng.choice('+-*/')}{rng.choice(('', ' '))}{rng.choice(('2', '0.50', '1e3', '10', '.25'))}"
    if pick < 0.6:
        return f"{inner}{rng.choice('+-*/')}{value(rng, depth - 1)}"
    if pick < 0.7:
        return f"({inner}) ** {rng.choice(('2', '3', '2.0'))}"
    if pick < 0.8:
        return f"({inner})"
    if pick < 0.9:
        return f"{rng.choice('-+')}{inner}"
    return f"{rng.choice(('I', 'exp', 'log', 'log10', 'log2'))}({inner})"


def atom(rng, depth):
    pick = rng.random()
    if pick < 0.35:
        return rng.choice(CATEGORIES)
    if pick < 0.6:
        return rng.choice(NUMERIC)
    if pick < 0.75:
        return rng.choice(("I({})", "{{{} / 10}}", "log({})", "exp({})", "{{ 2*({}) }}", "{{age}}")).format(
            value(rng, 2)
        )
    if depth > 0:
        return rng.choice(("({})", "({})", "[{}]")).format(terms(rng, depth - 1))
    return rng.choice((*CATEGORIES, *NUMERIC))


def part(rng, depth):
    pick = rng.random()
    if pick < 0.1:
        return f"({terms(rng, 0)}){rng.choice(('**', '^', ' ** '))}{rng.randint(1, 3)}"
    text = atom(rng, depth)
    while rng.random() < 0.4:
        text += rng.choice((":", ":", "*", " * ", "/", " %in% ")) + atom(rng, depth)
    return text


def terms(rng, depth):
    text = rng.choice(("", "", "", "", "-", "0 + ", "1 + ")) + part(rng, depth)
    while rng.random() < 0.5:
        sign = rng.choice((" + ", " + ", "+", " - ", "-", " + -", " - -"))
        text += sign + rng.choice((part(rng, depth),) * 6 + ("0", "1"))
    return text


def safe_formula(rng: random.Random) -> str:
    """A formula over COLUMNS with all operators; some are refused by all readers."""
    scaled = rng.choice(("", "", " + 2:`age at entry`:dose", " - 1:age + 0.5:male:age"))
    return f"y{rng.choice((' ~ ', '~'))}{terms(rng, 2)}{scaled}"


PIECES = (
    *("y ~ ", "~", "age", "rx", "dose", "`age at entry`", "`patient's bmi`", "`'c`", "0", "1", "2", "1e999", ".5"),
    *("+", "-", "*", ":", "/", "**", "^", "%in%", "|", "||", "%", "(", ")", "[", "]", "{", "}", ",", "=", "."),
    *(
        "I(",
        "log(",
        "exp(",
        "bs(age, knots=[40, 60])",
        "(1 | g)",
        "(0 + dose || g)",
        "(rx * age | client)",
        "offset(",
        "Surv(",
        "stratified(",
        "np.log(",
    ),
    *(
        "'",
        '"',
        "`",
        "#",
        "\\",
        "\n",
        "\t",
        " ",
        "\x00",
        "\x1b[31m",
        "\ufeff",
        "\u202e",
        "é",
        "²",
        "٣",
        "ﬁ",
        "$",
        ";",
        "@",
    ),
    *("__import__('os').system('true')", "open('x','w')", "lambda: 0", "eval(", "exec(", "age.__class__", "[0]"),
    *("if age else", "print(1)", "f'{1}'", '"""', "'''", "# `'c`", "import os", ":=", "<", ">", "==", "not ", "and "),
    EXPLOIT[14:-1],
)


def any_text(rng: random.Random) -> str:
    """Tokens, quotes, brackets and Python in any order, sometimes inside of a formula that is well formed."""
    pieces = "".join(rng.choices(PIECES, k=rng.randint(1, 8)))
    pick = rng.random()
    if pick < 0.2:
        return pieces
    if pick < 0.4:
        return f"y ~ {pieces}"
    if pick < 0.6:
        return f"y ~ age + {{{pieces}}}"
    if pick < 0.8:
        return f"y ~ I({pieces}) + rx"
    text = safe_formula(rng)
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(PIECES) + text[at:]
