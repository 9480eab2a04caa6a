"""The code of the page on Gaussian processes runs as it stands."""

import numpy as np
import pytest

from tests.docs.pages import run_blocks


@pytest.mark.slow
def test_page_runs():
    namespace = run_blocks("docs/gaussian-processes.md")
    assert np.all(np.isfinite(namespace["prediction"].f_mean))
