"""Run the fast tests on the supported versions of Python other than the default one.

    make test-pythons

An interpreter is looked for on the PATH and among pyenv's versions. One on the PATH may be a shim that fails, so each
is asked for its version first. Each version has an environment of its own (`.venv-3.12`), installed from
requirements.lock. A version without a working interpreter is skipped. The exit code is 1 if the tests of any fail.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")


def candidates(version: str) -> Iterator[Path]:
    """Where an interpreter of this version may be."""
    name = f"python{version}"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        yield Path(folder) / name
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)


def works(python: Path, version: str) -> bool:
    """Whether this file runs and says that it is this version."""
    try:
        asked = subprocess.run([python, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0 and asked.stdout.startswith(f"Python {version}.")


def find(version: str) -> Path | None:
    """The first interpreter of this version that works."""
    return next((python for python in candidates(version) if works(python, version)), None)


def main() -> None:
    """Test each version; print what was found and what came out."""
    default = f"{sys.version_info.major}.{sys.version_info.minor}"
    results = {}
    for version in VERSIONS:
        if version == default:
            continue
        python = find(version)
        if python is None:
            results[version] = "skipped: no interpreter on the PATH or in pyenv answers --version"
            continue
        print(f"Python {version}: {python}", flush=True)
        make = ["make", "test", f"VENV=.venv-{version}", f"PYTHON={python}"]
        results[version] = "failed" if subprocess.run(make, cwd=ROOT).returncode else "passed"
    print(f"Python {default}: the default; run `make test`")
    for version, result in results.items():
        print(f"Python {version}: {result}")
    sys.exit("failed" in results.values())


if __name__ == "__main__":
    main()
