"""Words that readers do not know, or that have another meaning for them, do not occur in the package or its texts."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# word -> what to write instead
REPLACED = {
    "silo": "client; site in texts for practitioners",
    "clientele": "session",
    "scouting": "initialisation",
    "lazily": "loaded when it is first used",
    "anew": "again",
    "nobody": "no client, or nobody else: say who",
    "everybody": "all clients",
    "hand over": "warm start, or share",
    "taken out": "removed",
    "side by side": "in adjacent panels, or at the same time",
    "goes on": "continues, or resumes",
    "says nothing": "the unit factor, or: is not informative",
    "mend": "fix",
    "for ever": "forever",
}
# texts about old names, and code that others are changing
EXCEPTIONS = ("src/cavity/models/numpyro/", "src/cavity/models/mixed/")


def texts():
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for path in sorted((ROOT / "src").rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(EXCEPTIONS):
            yield path


def found_in(text, word):
    """The lines that have the word, also inside an identifier (`num_silos`) and in the plural."""
    pattern = re.compile(rf"(?<![a-z]){word.replace(' ', '[ _]')}s?(?![a-z])", re.IGNORECASE)
    return [line.strip() for line in text.splitlines() if pattern.search(line)]


@pytest.mark.parametrize("word", REPLACED)
def test_a_replaced_word_does_not_occur(word):
    found = {path.relative_to(ROOT).as_posix(): found_in(path.read_text(), word) for path in texts()}
    assert not {name: lines for name, lines in found.items() if lines}, f"instead of {word!r} write {REPLACED[word]}"


def test_words_are_found_in_identifiers_and_plurals():
    assert found_in("for name in num_silos:\n    amend(name)", "silo") == ["for name in num_silos:"]
    assert found_in("It goes\nit goes_on", "goes on") == ["it goes_on"]
    assert found_in("amend the recommended silence", "mend") == []


def test_texts_are_found():
    assert len(list(texts())) > 200
