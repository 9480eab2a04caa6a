"""The package declares what it imports, ships the demo's data, and has a complete lock file."""

import ast
import re
import sys
import tomllib
from importlib import resources
from pathlib import Path

from cavity.reporting import indomethacin

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
PACKAGE_OF_IMPORT = {"sklearn": "scikit-learn", "mpl_toolkits": "matplotlib"}  # where the names differ


def package(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0].lower()


def declared() -> set[str]:
    """The dependencies of the package and its extras, without those for developers."""
    extras = PROJECT["project"]["optional-dependencies"]
    found = [*PROJECT["project"]["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]
    return {package(line) for line in found}


def imported() -> dict[str, Path]:
    """Imported package -> a file of the library that imports it."""
    found = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module]
            for name in names:
                root = name.split(".")[0]
                if root not in sys.stdlib_module_names and root != "cavity":
                    found[PACKAGE_OF_IMPORT.get(root, root)] = file
    return found


def test_imports_are_declared():
    missing = {name: str(file) for name, file in imported().items() if name not in declared()}
    assert not missing


def test_demo_data_are_shipped_with_source_and_licence():
    assert "datasets/demo/*" in PROJECT["tool"]["setuptools"]["package-data"]["cavity"]
    files = {path.name for path in (resources.files("cavity.datasets") / "demo").iterdir()}
    assert files >= {"indomethacin.csv", "README.md", "LICENSE.medicaldata"}
    hospitals, _ = indomethacin.indomethacin()
    assert {name: len(y) for name, (_, y) in hospitals.items()} == {
        "Indiana": 413,
        "Michigan": 164,
        "Kentucky": 22,
        "Case Western": 3,
    }
    # table 2 of the trial: 27 of 295 with indomethacin, 52 of 307 with placebo
    cases = [sum(y[x[:, 0] == arm].sum() for x, y in hospitals.values()) for arm in (1, 0)]
    assert cases == [27, 52]


def test_lock_file_has_hashes_of_all_packages_and_no_urls():
    entries = re.findall(
        r"^([a-z0-9._-]+(?:\[\w+\])?)==\S+.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", LOCK, re.MULTILINE
    )
    names = {name.split("[")[0] for name, _ in entries}
    assert len(entries) == len(re.findall(r"^[a-z]", LOCK, re.MULTILINE))
    assert "://" not in LOCK
    assert declared() - {"cavity"} <= names
    assert {package(line) for line in PROJECT["build-system"]["requires"]} <= names
    wheels = dict(entries)
    assert wheels["numpy"].count("--hash") > 20  # for all platforms and versions of Python
