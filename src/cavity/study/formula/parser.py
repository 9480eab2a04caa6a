"""From tokens to a tree, by recursive descent: one method per line of the grammar.

    formula     = left "~" [sum]
    left        = sum | name "|" call
    sum         = {sign} product {sign {sign} product}              sign = "+" | "-"
    product     = interaction {("*" | "/" | "%in%") interaction}
    interaction = power {":" power}
    power       = atom [("**" | "^") power]
    atom        = name | number | call | "{" value "}" | "(" sum ")" | "[" sum "]" | bar
    bar         = "(" sum ("|" | "||") name [("/" | ":") name] ")"

    call        = name "(" [argument {"," argument} [","]] ")"
    argument    = [name "="] (value | items)
    items       = "[" [value {"," value}] "]"
    value       = product of numbers {sign product of numbers}
    product     = factor {("*" | "/") factor}
    factor      = sign factor | operand ["**" factor]
    operand     = name | number | call | "(" value ")"

The first half is the algebra of terms, the second is arithmetic with numbers. A chain of operators is one node, so the
depth of a tree is that of its brackets and signs, which is limited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cavity.study.formula.tokens import Token, refusal, tokenize
from cavity.study.formula.tree import Argument, Bar, Braces, Call, Chain, Items, Name, Node, Number, Power, Signed, Sum

MAX_DEPTH = 30
SMALL_POWERS = tuple(map(str, range(2, 11)))  # those that an expression may have
CLOSING = {"(": ")", "[": "]", "{": "}"}
T = TypeVar("T")


def parse(text: str) -> tuple[Sum, Sum]:
    """Both sides of a formula. Raises StudyError, with the position."""
    return _Parser(text).formula()


class _Parser:
    def __init__(self, text: str):
        self._text, self._tokens = text, tokenize(text)
        self._next, self._depth = 0, 0

    # terms

    def formula(self) -> tuple[Sum, Sum]:
        if self._sees("~") or not any(token.kind == "operator" and token.text == "~" for token in self._tokens):
            raise self._refused("a formula needs an outcome: `outcome ~ predictors`")
        left = self._sum()
        if self._sees("|"):
            left = self._with_call(left)
        self._expect("~")
        right = Sum((), at=self._token.at) if self._token.kind == "end" else self._sum()
        if self._sees("|", "||"):
            raise self._refused(
                "`|` is not available here; give one set of predictors, and effects of groups in brackets"
            )
        if self._token.kind != "end":
            raise self._unexpected(", where an operator or the end should be")
        return left, right

    def _with_call(self, left: Sum) -> Sum:
        """`deaths | trials(patients)` is `trials(deaths, patients)`."""
        bar = self._take().at
        call = self._name_or_call() if self._token.kind == "name" else None
        match _unwrapped(left), call:
            case Name() as outcome, Call(function=function, arguments=arguments) if arguments:
                first = Argument(outcome, None, at=outcome.at)
                return Sum((("+", Call(function, (first, *arguments), at=left.at)),), at=left.at)
        message = "on the left `|` is between one column and a call, as in `deaths | trials(patients)`"
        raise refusal(self._text, bar, message)

    def _sum(self) -> Sum:
        at, parts = self._token.at, []
        sign = self._signs("+")
        while True:
            part = self._product()
            if part.literal == "0":  # `+ 0` is `- 1`
                part, sign = Number("1", at=part.at), "-" if sign == "+" else "+"
            parts.append((sign, part))
            if not self._sees("+", "-"):
                return Sum(tuple(parts), at=at)
            sign = self._signs("+")

    def _signs(self, sign: str) -> str:
        """An odd number of minus signs in a row is a minus, an even number is a plus."""
        while self._sees("+", "-"):
            sign = sign if self._take().text == "+" else ("-" if sign == "+" else "+")
        return sign

    def _product(self) -> Node:
        return self._chain(self._interaction, "*", "/", "%in%")

    def _interaction(self) -> Node:
        return self._chain(self._power, ":")

    def _chain(self, operand: Callable[[], Node], *operators: str) -> Node:
        first, rest = operand(), []
        while self._sees(*operators):
            rest.append((self._take().text, operand()))
        return Chain(first, tuple(rest), at=first.at) if rest else first

    def _power(self) -> Node:
        start, in_brackets = self._token.at, self._token.kind == "operator"
        base = self._atom()
        if not self._sees("**", "^"):
            return base
        self._take()
        exponent = self._atom()
        if self._sees("**", "^"):
            raise self._refused("a power of a power of terms; write one power")
        match base, exponent.literal:
            case Name(name=name), str() as power if not in_brackets and power in SMALL_POWERS:
                written = f"`I({name} ** {power})`"
                raise refusal(
                    self._text, start, f"here this means {name} itself, as in R; write {written} for the power"
                )
        return Power(base, exponent, at=base.at)

    def _atom(self) -> Node:
        token = self._token
        if token.kind == "number":
            self._take()
            plain = token.text.replace(".", "").isdigit()
            return Number(token.text, at=token.at) if plain else Name(token.text, False, at=token.at)
        if token.kind in ("name", "quoted"):
            return self._name_or_call()
        if self._sees("{"):
            return Braces(self._inside("{", self._value), at=token.at)
        if self._sees("("):
            return self._inside("(", self._terms_or_bar)
        if self._sees("["):
            return _unwrapped(self._inside("[", self._sum))
        raise self._unexpected()

    def _terms_or_bar(self) -> Node:
        at, terms = self._tokens[self._next - 1].at, self._sum()
        if not self._sees("|", "||"):
            return _unwrapped(terms)
        correlated, token = self._take().text == "|", self._token
        group = self._name_or_call() if token.kind in ("name", "quoted") else None
        match group:
            case Name() if self._sees(")"):
                return Bar(terms, group, correlated, at=at)
            case Name() if self._sees("/", ":"):
                return self._nested_bar(terms, group, correlated, at)
        if self._sees("+", "%in%", "*"):
            raise self._refused(
                "one column on the right of the bar; write one term for each, as in `(1 | a) + (1 | b)`"
            )
        if group is None:
            raise self._unexpected(", where the column of the groups should be, as in `(1 | ward)`")
        if self._token.kind == "end":
            raise self._unexpected(", where `)` should be")
        raise refusal(self._text, token.at, "the right of the bar is one column, as in `(1 | ward)`")

    def _nested_bar(self, terms: Sum, outer: Name, correlated: bool, at: int) -> Bar:
        expands, token = self._take().text == "/", self._token
        inner = self._name_or_call() if token.kind in ("name", "quoted") else None
        match inner:
            case Name() if self._sees(")"):
                return Bar(terms, inner, correlated, outer, expands, at=at)
            case Name() if self._sees("/", ":"):
                raise self._refused("at most two groups within each other; leave one out")
        raise refusal(self._text, token.at, "groups within groups are two columns, as in `(1 | community/mother)`")

    # numbers

    def _value(self) -> Node:
        return self._chain(self._multiplied, "+", "-")

    def _multiplied(self) -> Node:
        return self._chain(self._factor, "*", "/")

    def _factor(self) -> Node:
        at = self._token.at
        if self._sees("+", "-"):
            sign = self._take().text
            return Signed(sign, self._deeper(self._factor), at=at)
        base = self._operand()
        if self._sees("^"):
            raise self._refused("write `**` for the power of a number, as in `I(age ** 2)`")
        if not self._sees("**"):
            return base
        self._take()
        return Power(base, self._deeper(self._factor), at=at)

    def _operand(self) -> Node:
        token = self._token
        if token.kind == "number":
            self._take()
            return Number(token.text, at=token.at)
        if token.kind in ("name", "quoted"):
            return self._name_or_call()
        if self._sees("("):
            return self._inside("(", self._value)
        raise self._unexpected()

    # both

    def _name_or_call(self) -> Node:
        token = self._take()
        if token.kind == "name" and self._sees("("):
            return Call(token.text, self._inside("(", self._arguments), at=token.at)
        if token.kind == "name" and token.text == ".":
            raise refusal(self._text, token.at, "`.` for all columns is not available; name the columns")
        if token.kind == "name" and token.text.replace(".", "").isdigit():
            raise refusal(self._text, token.at, "this is not a number; a column of this name goes between backticks")
        return Name(token.text, token.kind == "quoted", at=token.at)

    def _arguments(self) -> tuple[Argument, ...]:
        arguments = []
        while not self._sees(")"):
            token, keyword = self._token, None
            if token.kind == "name" and self._follows("="):
                keyword = self._take().text
                self._expect("=")
            value = self._items() if self._sees("[") else self._value()
            arguments.append(Argument(value, keyword, at=token.at))
            if self._token.kind == "end":
                raise self._unexpected(", where `)` should be")
            if not self._sees(")"):
                self._expect(",")
        return tuple(arguments)

    def _items(self) -> Items:
        at = self._token.at

        def items() -> tuple[Node, ...]:
            found = []
            while not self._sees("]"):
                found.append(self._value())
                if not self._sees("]"):
                    self._expect(",")
            return tuple(found)

        return Items(self._inside("[", items), at=at)

    def _inside(self, opening: str, read: Callable[[], T]) -> T:
        self._expect(opening)
        found = self._deeper(read)
        if self._sees("|", "||"):
            raise self._refused("effects of groups go between round brackets, as in `(1 | ward)`")
        self._expect(CLOSING[opening])
        return found

    def _deeper(self, read: Callable[[], T]) -> T:
        if self._depth == MAX_DEPTH:
            raise self._refused(f"the formula is nested more than {MAX_DEPTH} deep")
        self._depth += 1
        found = read()
        self._depth -= 1
        return found

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _sees(self, *operators: str) -> bool:
        return self._token.kind == "operator" and self._token.text in operators

    def _follows(self, operator: str) -> bool:
        """Whether it comes after the next token, which is not the end."""
        token = self._tokens[self._next + 1]
        return token.kind == "operator" and token.text == operator

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _expect(self, operator: str) -> None:
        if not self._sees(operator):
            raise self._unexpected(f", where an operator or `{operator}` should be")
        self._take()

    def _unexpected(self, instead: str = "") -> Exception:
        token = self._token
        return self._refused(f"{'it ends' if token.kind == 'end' else f'unexpected {token.text!r}'}{instead}")

    def _refused(self, reason: str) -> Exception:
        return refusal(self._text, self._token.at, reason)


def _unwrapped(terms: Sum) -> Node:
    """What is in brackets: one term is that term."""
    return terms.parts[0][1] if len(terms.parts) == 1 and terms.parts[0][0] == "+" else terms
