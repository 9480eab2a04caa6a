"""The tutorials run as they stand and print what their text shows; the Python of the how-to pages runs."""

import re
from pathlib import Path

import numpy as np
import pytest

import cavity
from tests.docs.pages import ROOT
from tools.tutorials import cells, check, differs, same, tutorials, with_outputs

HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def python_of(page: Path) -> list[str]:
    """The Python blocks of a page, also those inside lists."""
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in BLOCK.findall(page.read_text())]


def test_tutorials_are_found():
    assert len(tutorials()) == 9


@pytest.mark.parametrize("path", tutorials(), ids=lambda path: path.stem)
def test_a_tutorial_shows_output(path):
    found = cells(path.read_text())
    assert len(found) == path.read_text().count("```{code-cell}")
    assert [cell for cell in found if "print(" in cell.code and "def " not in cell.code and not cell.output] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem.startswith("first") else pytest.mark.exhaustive, id=path.stem)
        for path in tutorials()
    ],
)
def test_a_tutorial_prints_what_it_shows(path, capsys):
    assert check(path, write=False), capsys.readouterr().out


@pytest.fixture(scope="module")
def names():
    """What the code of the how-to pages assumes: the package, a model, clients, data frames and a fit."""
    rng = np.random.default_rng(0)
    sizes = {"leeds": 80, "york": 60}
    x = {name: rng.normal(size=(rows, 2)) for name, rows in sizes.items()}
    clients = {name: (x[name], (rng.random(rows) < 0.4).astype(float)) for name, rows in sizes.items()}
    hospitals = {
        name: {"died": rng.random(n) < 0.3, "rx": rng.choice(["placebo", "drug"], n), "age": rng.normal(60, 12, n)}
        for name, n in sizes.items()
    }
    model = cavity.models.logistic_regression(["dose", "age"])
    fit = cavity.run(cavity.PVI(model), clients)
    return {"cavity": cavity, "np": np, "model": model, "clients": clients, "hospitals": hospitals, "fit": fit}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in HOW_TO if python_of(page)], ids=lambda page: page.stem)
def test_python_of_a_how_to_runs(page, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = dict(names)
    for block in python_of(page):
        exec(compile(block, page.name, "exec"), namespace)


def test_output_is_compared():
    assert same("age  0.123 +- 0.04", "age 0.125 +- 0.04")
    assert not same("age  0.123", "age  0.126")
    assert not same("3 clients", "4 clients")
    assert differs("a 1.0\n...\nc\n", "a 1.0\nb\nc\n") is None
    assert differs("a\n", "a\nb\n") is not None
    assert differs("a\nb\n", "a\n") == "b"


def test_output_is_written():
    text = "```{code-cell} ipython3\nprint(1)\n```\n\n```text\n2\n```\n\nWords.\n"
    assert with_outputs(text, ["1\n"]) == text.replace("2", "1")
