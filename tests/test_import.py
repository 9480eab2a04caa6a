"""Importing Cavity is cheap, brings nothing along that it does not need, and changes no setting of JAX."""

import json
import os
import subprocess
import sys

import pytest

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


def in_a_new_process(code: str, **environment: str) -> str:
    """In a process like a user's: without what the tests set for themselves."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("OPENBLAS_NUM_THREADS", "XLA_FLAGS")}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**inherited, "JAX_ENABLE_X64": "0", **environment},
    )
    return result.stdout


# parts are loaded when they are first used, so look at all of them
EVERYTHING = "import cavity; [getattr(cavity, name) for name in cavity.__all__]"


def fastest(*programs: str, repeats: int = 12) -> list[float]:
    """The processor seconds of each program in its fastest run; the runs are interleaved, so that noise cancels."""
    timed = [f"import time\n{code}\nprint(time.process_time())" for code in programs]
    rounds = [[float(in_a_new_process(code)) for code in timed] for _ in range(repeats)]
    return [min(column) for column in zip(*rounds, strict=True)]


@pytest.mark.slow  # by the time that many new processes take
def test_importing_takes_little_longer_than_jax():
    jax, cavity, everything = fastest("import jax", "import cavity", EVERYTHING)
    assert cavity <= 1.3 * jax
    assert everything <= 2.0 * jax


@pytest.fixture(scope="module")
def imported():
    return set(json.loads(in_a_new_process(f"{EVERYTHING}\nimport json, sys\nprint(json.dumps(list(sys.modules)))")))


@pytest.mark.parametrize("module", HEAVY)
def test_heavy_modules_wait_until_they_are_needed(imported, module):
    assert "cavity.ledger" in imported
    assert module not in imported


@pytest.mark.parametrize("enabled", ["0", "1"])
def test_no_setting_of_jax_changes(enabled):
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
    found = json.loads(in_a_new_process(code, JAX_ENABLE_X64=enabled))
    assert found == {"changed": [], "x64": enabled == "1", "dtype": "float64" if enabled == "1" else "float32"}


def test_a_module_may_not_hide_what_it_has_of_its_own_name():
    from cavity.core.lazy_loading import from_rooms

    with pytest.raises(ValueError, match="of the same name: shrunk"):
        from_rooms("cavity.models", {"with_shrinkage_prior": "Shrunk shrunk"})
