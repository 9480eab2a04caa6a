"""`dir` of every public package lists its public names and nothing else, in a fresh interpreter."""

import importlib
import json
import subprocess
import sys

import pytest

LIST = """
import importlib, json
import cavity
names = {"cavity": sorted(cavity.__all__), "cavity.core": None, "cavity.algorithms": None}
names |= {f"cavity.{name}": None for name in cavity.__all__ if name not in ("cavities",)}
found = {}
for name in names:
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError:  # a function or class
        continue
    if hasattr(package, "__path__"):
        found[name] = [dir(package), sorted(package.__all__)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def listed():
    done = subprocess.run([sys.executable, "-c", LIST], capture_output=True, text=True, check=True, timeout=240)
    return json.loads(done.stdout)


def test_all_public_packages_are_listed(listed):
    expected = (
        "aggregation algorithms core distributions divergences hyperparameters likelihoods losses models schedules "
        "solvers study"
    )
    assert {"cavity", *(f"cavity.{name}" for name in expected.split())} == set(listed)


def test_dir_lists_public_names_only(listed):
    for package, (names, public) in listed.items():
        assert names == public, package


def test_every_public_name_exists(listed):
    for package, (_, public) in listed.items():
        module = importlib.import_module(package)
        for name in public:
            assert getattr(module, name) is not None
