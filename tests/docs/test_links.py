"""Every relative link of the documentation leads to a file, and its anchor to a heading."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FOLDERS = ("docs", "experiments")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def links(page: Path) -> list[str]:
    """Targets of links and images, without web addresses."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [target for target in found if "://" not in target and not target.startswith("mailto:")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page):
    """Files that a page names in code marks, from the root of the repository or from the page's own folder."""
    named = re.findall(r"`((?:src|tests|docs|tools|experiments)/[\w./-]+\.(?:py|md|toml))`", page.read_text())
    assert [name for name in named if not ((ROOT / name).exists() or (page.parent / name).exists())] == []


def test_links_are_found():
    assert len(links(ROOT / "README.md")) > 10
