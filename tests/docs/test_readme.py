"""The README is short, its code runs as it stands, and its output is real."""

import re

import jax
import pytest

from cavity.cli import main
from tests.docs.pages import blocks, page, run_blocks

README = "README.md"
DEMO, SUMMARY = blocks(README, "text")


def words(line: str) -> str:
    """The line without differences in white space and box-drawing characters."""
    return " ".join(re.sub("[─ ]+", " ", line).split())


def test_readme_is_short():
    assert len(page(README).splitlines()) <= 150


def test_python_is_eight_lines_and_prints_the_summary(capsys):
    (code,) = blocks(README)
    assert len([line for line in code.splitlines() if line]) <= 8
    run_blocks(README)
    printed = [words(line) for line in capsys.readouterr().out.splitlines()]
    shown = [words(line) for line in SUMMARY.splitlines()]
    assert printed[: len(shown)] == shown


@pytest.mark.slow
def test_demo_output_is_real(tmp_path, capsys):
    jax.devices()  # the command does not change the devices once JAX has started
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--output", str(tmp_path)])
    assert ended.value.code == 0
    printed = words(capsys.readouterr().out)
    for line in DEMO.splitlines():
        assert line == "..." or words(line) in printed
