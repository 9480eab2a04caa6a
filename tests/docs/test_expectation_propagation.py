"""Every line of the page on expectation propagation runs as it stands, and gives a proper posterior."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.marks import thorough

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "expectation-propagation.md").read_text()
LINES = dict(re.findall(r"^\| (.+?) \| `(run\(.+)` \|$", PAGE, re.MULTILINE))


@pytest.fixture(scope="module")
def names():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(compile(block, "expectation-propagation.md", "exec"), names)
    return names


@thorough
@pytest.mark.parametrize("method", LINES)
def test_the_line_runs(names, method):
    fit = eval(LINES[method], names)
    assert bool(fit.posterior.is_proper)
    assert float(np.asarray(fit.posterior.mean)[1]) > 0.0  # the dose helps


def test_all_lines_are_found():
    assert len(LINES) == 12
