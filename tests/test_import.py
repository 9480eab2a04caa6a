"""Importing Cavity is fast, imports no heavy package, and changes no JAX setting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cavity.core.lazy_loading import lazy_exports

HEAVY = [
    "formulaic",
    "numpyro",
    "flwr",
    "matplotlib",
    "pandas",
    "sklearn",
    "arviz",
    "typer",
    "rich",
    "optax",
    "scipy.optimize",
]


def run_in_new_process(code: str, **environment: str) -> str:
    """Run code in a process like a user's, without the environment of the tests, and return what it prints."""
    ours = ("OPENBLAS_NUM_THREADS", "XLA_FLAGS", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**inherited, "JAX_ENABLE_X64": "0", **environment},
    )
    return result.stdout


# parts are loaded when they are first used, so load all of them
EVERYTHING = "import cavity; [getattr(cavity, name) for name in cavity.__all__]"


def fastest(*programs: str, compiled: Path, repeats: int = 12) -> list[float]:
    """The processor seconds of each program in its fastest run; runs are interleaved, so noise affects all.

    Bytecode is kept in a directory of the test, for JAX and Cavity alike: pip compiles what it installs.
    """
    timed = [f"import time\n{code}\nprint(time.process_time())" for code in programs]
    rounds = [
        [float(run_in_new_process(code, PYTHONPYCACHEPREFIX=str(compiled))) for code in timed] for _ in range(repeats)
    ]
    return [min(column) for column in zip(*rounds, strict=True)]


@pytest.mark.slow  # it starts many processes
def test_import_time_is_close_to_that_of_jax(tmp_path):
    jax, cavity, everything = fastest("import jax", "import cavity", EVERYTHING, compiled=tmp_path)
    assert cavity <= 1.3 * jax
    assert everything <= 2.0 * jax


@pytest.fixture(scope="module")
def imported():
    return set(json.loads(run_in_new_process(f"{EVERYTHING}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


@pytest.mark.parametrize("module", HEAVY)
def test_heavy_modules_are_not_imported(imported, module):
    assert "cavity.ledger" in imported
    assert module not in imported


@pytest.mark.parametrize("enabled", ["0", "1"])
def test_jax_settings_do_not_change(enabled):
    code = """
import json, jax
before = dict(jax.config.values)
import cavity
[getattr(cavity, name) for name in cavity.__all__]
after = dict(jax.config.values)
print(json.dumps({
    "changed": [name for name in after if after[name] != before.get(name)],
    "x64": jax.config.jax_enable_x64,
    "dtype": str(jax.numpy.zeros(1).dtype),
}))
"""
    found = json.loads(run_in_new_process(code, JAX_ENABLE_X64=enabled))
    assert found == {"changed": [], "x64": enabled == "1", "dtype": "float64" if enabled == "1" else "float32"}


def test_module_must_not_have_the_name_of_a_public_name():
    with pytest.raises(ValueError, match="a module hides a public name: beta"):
        lazy_exports("cavity.losses", {"beta": "Beta beta"})
