"""Marks that several files of tests share."""

import pytest

from cavity_experiments import sources

needs_data = pytest.mark.skipif(
    sources.data_directory() is None, reason="CAVITY_DATA is not set: the real data sets are not here"
)


def thorough(test):
    """A slow test of many small programs, which are compiled quickly: it checks a special case of what fast ones do."""
    return pytest.mark.slow(pytest.mark.usefixtures("quick_to_compile")(test))


def exhaustive(test):
    """More cases of a claim that the slow tests check already, too long for every change: `make test-exhaustive`."""
    return pytest.mark.exhaustive(pytest.mark.slow(test))
