"""Marks that several files of tests share."""

import pytest

from cavity.data import sources

needs_data = pytest.mark.skipif(
    sources.data_directory() is None, reason="CAVITY_DATA is not set: the real data sets are not here"
)
