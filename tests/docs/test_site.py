"""The documentation site: pages are in tables of contents, links stay in the site, and Sphinx accepts all of it."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cavity
from tests.docs.pages import ROOT
from tests.docs.test_links import links

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
API = DOCS / "reference" / "api"


def listed(page: Path) -> list[Path]:
    """The pages that the tables of contents of a page list."""
    lines = [line for block in TOCTREE.findall(page.read_text()) for line in block.splitlines()]
    names = [line.strip() for line in lines if line.strip() and not line.startswith(":")]
    return [(page.parent / f"{name}.md").resolve() for name in names]


def test_every_page_is_in_one_table_of_contents():
    found = [page for parent in PAGES for page in listed(parent)]
    assert [page for page in found if not page.exists()] == []
    assert sorted(found) == [page for page in PAGES if page != DOCS / "index.md"]


def test_the_site_has_its_four_parts():
    parts = [page.parent.name for page in listed(DOCS / "index.md")]
    assert parts == ["tutorials", "how-to", "reference", "explanation", "project"]


def test_links_of_pages_stay_in_the_site():
    """A file of the repository that a page links to is shown by a page of the site."""
    shown = {ROOT / name for page in PAGES for name in re.findall(r"<!-- file: (.+?) -->", page.read_text())}
    for page in PAGES:
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link[0] != "#"}
        assert {target for target in targets if not target.is_relative_to(DOCS)} <= shown, page


def test_every_public_package_has_a_reference():
    described = {name for page in API.glob("*.md") for name in re.findall(r"<!-- api: (.+?) -->", page.read_text())}
    packages = {name for name in dir(cavity) if type(getattr(cavity, name)).__name__ == "module"}
    assert {getattr(cavity, name).__name__ for name in packages} | {"cavity"} == described


def test_every_error_is_described():
    text = (DOCS / "reference" / "errors.md").read_text()
    module = sys.modules[cavity.CavityError.__module__]
    errors = [name for name, kind in vars(module).items() if isinstance(kind, type)]
    assert len(errors) > 5
    assert [name for name in errors if f"`{name}`" not in text] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sphinx_accepts_the_site(tmp_path):
    missing = [name for name in ("sphinx", "myst_nb", "furo") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install 'cavity[docs]'")
    words = ["--builder", "html", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in (tmp_path / "reference" / "commands.html").read_text()
    assert "cavity.models.logistic_regression" in (tmp_path / "reference" / "api" / "models.html").read_text()
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="https?://')
    assert [page for page in tmp_path.rglob("*.html") if loaded.search(page.read_text())] == []
