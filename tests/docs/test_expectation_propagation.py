"""Every line of the page on expectation propagation runs as it stands, and gives a proper posterior."""

import re

import numpy as np
import pytest

from tests.docs.pages import page, run_blocks
from tests.marks import thorough

PAGE = "docs/expectation-propagation.md"
LINES = dict(re.findall(r"^\| (.+?) \| `(run\(.+)` \|$", page(PAGE), re.MULTILINE))


@pytest.fixture(scope="module")
def names():
    return run_blocks(PAGE)


@thorough
@pytest.mark.parametrize("method", LINES)
def test_line_runs(names, method):
    fit = eval(LINES[method], names)
    assert bool(fit.posterior.is_proper)
    assert float(np.asarray(fit.posterior.mean)[1]) > 0.0  # the true effect of the dose is positive


def test_all_lines_are_found():
    assert len(LINES) == 12
