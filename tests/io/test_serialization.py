"""Trees as named arrays: what is read equals what was written, and what could not be read is not written."""

import dataclasses
import io
import json
from collections import namedtuple
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cavity
from cavity import ledger
from cavity.aggregation.damping import AdaptiveState
from cavity.core.messages import Acknowledgement, Stacked
from cavity.distributions import DiagonalGaussian, Gamma
from cavity.errors import CheckpointError
from cavity.io import serialization, type_table


class Foreign(eqx.Module):
    """A component from outside Cavity."""

    value: Any
    count: int = eqx.field(static=True, default=3)


Optimiser = namedtuple("Optimiser", ["momentum", "step"])  # as the states of optax are

DTYPES = [bool, "int8", "int32", "int64", "uint32", "uint64", "float16", "float32", "float64", "complex64", "<U3"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


def containers(children):
    return (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.text(), children, max_size=3)
        | children.map(Foreign)
        | st.builds(Optimiser, children, children)
        | st.dictionaries(st.text(), children, max_size=2).map(Stacked)
        | st.builds(Acknowledgement, st.integers(-(2**63), 2**64 - 1), st.floats())
    )


def same(a, b) -> bool:
    """Equal in type, structure and every bit (except NaNs, which may differ in their payload)."""
    if isinstance(a, np.ndarray | np.generic | jax.Array):
        a, b = np.asarray(a), b
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b and np.signbit(a) == np.signbit(b) if a == a else b != b
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, eqx.Module):
        return vars(a).keys() == vars(b).keys() and all(same(vars(a)[key], vars(b)[key]) for key in vars(a))
    if dataclasses.is_dataclass(a):  # a record of the ledger, whose own == calls two NaNs different
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a))
    return a == b


@settings(max_examples=150, deadline=None)
@given(st.recursive(SCALARS | ARRAYS, containers, max_leaves=8))
def test_round_trip(tree):
    again = serialization.from_bytes(serialization.to_bytes(tree), types=[Foreign, Optimiser])
    assert same(tree, again)
    assert serialization.types_in(tree) == serialization.types_in(again)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -0.0, 5e-324, 1.7976931348623157e308, 0.1])
def test_floats_are_exact(value):
    tree = {"plain": float(value), "array": np.array([value]), "scalar": np.float64(value)}
    again = serialization.from_bytes(serialization.to_bytes(tree))
    assert same(tree, again)
    assert again["array"].tobytes() == tree["array"].tobytes()


def test_a_numpy_scalar_keeps_its_type():
    """As a Python float it would be weakly typed where it meets a float32."""
    again = serialization.from_bytes(serialization.to_bytes((np.float64(0.5), np.float32(0.5), np.int32(2), np.True_)))
    assert [leaf.dtype for leaf in again] == ["float64", "float32", "int32", "bool"]


def test_jax_arrays_are_read_as_numpy_arrays():
    again = serialization.from_bytes(
        serialization.to_bytes(DiagonalGaussian(jnp.zeros(2, "float32"), jnp.ones(2, "float32")))
    )
    assert isinstance(again.precision, np.ndarray)
    assert again.precision.dtype == np.float32


def test_an_algorithm_with_all_its_parts():
    """An algorithm is written completely: model, prior, solver, damping, static fields."""
    algorithm = cavity.PVI(
        cavity.models.logistic_regression(["age", "dose"], prior_scale=0.3),
        damping=cavity.aggregation.Fixed(0.25),
        solver=cavity.solvers.NaturalGradient(tolerance=1e-8, newton=False),
    )
    again = serialization.from_bytes(serialization.to_bytes(algorithm))
    assert serialization.types_in(again) == serialization.types_in(algorithm)
    assert jax.tree.structure(again) == jax.tree.structure(algorithm)
    assert again.model.features == ("age", "dose")
    assert (again.damping.exponent, again.solver.tolerance, again.solver.newton) == (0.25, 1e-8, False)
    assert np.array_equal(again.prior.precision, algorithm.prior.precision)


def test_a_server_state():
    algorithm = cavity.PVI(cavity.models.linear_regression(1, noise_sd=1.0))
    server = ledger.open_ledger(algorithm, ["leeds", "york"], seed=3)
    server, _ = ledger.dispatch(algorithm, server, ["york"])
    again = serialization.from_bytes(serialization.to_bytes(server))
    assert same(server, again)
    assert again.method == AdaptiveState(1.0, float("inf"), 0)
    assert again.idle == ("leeds",)


def test_the_file_is_an_ordinary_npz():
    content = serialization.to_bytes({"rate": Gamma(np.array(2.0), np.array(3.0))})
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        assert sorted(float(file[name]) for name in file.files if name != serialization.MANIFEST) == [2.0, 3.0]
        assert json.loads(file[serialization.MANIFEST].tobytes())["format"] == serialization.FORMAT


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (len, "builtin_function_or_method"),
        (lambda x: x, "function"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (np.array([len], object), "object"),
        (jnp.zeros(2, jnp.bfloat16), "bfloat16"),
        (np.zeros(2, [("a", float)]), "'a'"),
        ({1: "a key that is not a string"}, "string keys"),
        (DiagonalGaussian, "type|Meta"),
    ],
)
def test_a_value_that_could_not_be_read_is_not_written(value, message):
    with pytest.raises(TypeError, match=message):
        serialization.to_bytes({"deep": [Foreign(value)]})


def test_the_error_says_where_the_value_is():
    with pytest.raises(TypeError, match="/0/0/value"):
        serialization.to_bytes({"deep": [Foreign(len)]})


def test_classes_from_outside_are_passed_by_the_caller():
    content = serialization.to_bytes(Foreign(1))
    with pytest.raises(CheckpointError, match=r"holds a Foreign, a class from outside.*together with the algorithm"):
        serialization.from_bytes(content)
    content = serialization.to_bytes(Optimiser(1, 2))
    with pytest.raises(CheckpointError, match=r"holds a Optimiser, a class from outside"):
        serialization.from_bytes(content, types=[Foreign])


def manifest_bytes(tree, **others):
    """A sealed file with this manifest, as an attacker or a future version could write it."""
    buffer = io.BytesIO()
    manifest = (
        tree
        if isinstance(tree, bytes)
        else json.dumps({"format": serialization.FORMAT, "tree": tree} | others).encode()
    )
    np.savez(buffer, **{serialization.MANIFEST: np.frombuffer(manifest, np.uint8)})
    return serialization.seal(buffer.getvalue())


GAMMA = type_table.name_of(Gamma)
RATES = {"shape_less_one": 1, "rate": 1}
HOSTILE = {
    "a function": ({"type": "os:system", "fields": {}}, "not a type that"),
    "a class of the standard library": ({"type": "subprocess:Popen", "fields": {"args": "true"}}, "not a type that"),
    "a function of Cavity": ({"type": "cavity.io.serialization:pack", "fields": {}}, "not a type that"),
    "a module of Cavity": ({"type": "cavity:io", "fields": {}}, "not a type that"),
    "a plain class of Cavity": ({"type": "cavity.io.checkpoints:RunDirectory", "fields": {}}, "not a type that"),
    "the path of a class in the table": ({"type": "cavity.distributions:Gamma", "fields": RATES}, "not a type that"),
    "the full path of one": ({"type": "cavity.distributions.conjugate:Gamma", "fields": RATES}, "not a type that"),
    "its path with a version": ({"type": "cavity.distributions.conjugate:Gamma/1", "fields": RATES}, "not a type that"),
    "a class as in format 2": (
        {"module": "cavity.distributions:Gamma", "fields": RATES},
        "does not describe",
    ),
    "a type that does not exist": ({"type": "distributions.cauchy/1", "fields": {}}, "not a type that"),
    "an abstract class": ({"type": "core.loss/1", "fields": {}}, "not a type that"),
    "a later version": ({"type": f"{GAMMA}0", "fields": RATES}, "has version 10, and the version known here is 1"),
    "no version": ({"type": GAMMA.partition("/")[0], "fields": RATES}, "version unknown"),
    "a version that is not a number": ({"type": GAMMA[:-1] + "x", "fields": RATES}, "has version x"),
    "a field too many": ({"type": GAMMA, "fields": RATES | {"x": 1}}, "Gamma has the unknown field x"),
    "a field too few": ({"type": GAMMA, "fields": {"rate": 1}}, "Gamma lacks the field shape_less_one"),
    "another class": ({"type": GAMMA, "fields": {"__class__": None, "rate": 1}}, "lacks the field"),
    "a named tuple as in format 2": ({"namedtuple": GAMMA, "fields": RATES}, "does not describe"),
    "an array that is missing": ({"array": "/x"}, "does not describe"),
    "not a number": ({"float": "one"}, "does not describe"),
    "a number as a class": ({"type": 3, "fields": {}}, "does not describe"),
    "a list as a class": ({"type": ["cavity"], "fields": {}}, "does not describe"),
    "no kind at all": ({"what": 1}, "does not describe"),
    "a dict of numbers": ({"dict": [1, 2]}, "does not describe"),
}


@pytest.mark.parametrize(("tree", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_manifest_is_refused(tree, message):
    with pytest.raises(CheckpointError, match=message):
        serialization.from_bytes(manifest_bytes(tree))


@pytest.mark.parametrize(
    "manifest",
    [b"", b"\xff\xfe", b"[1, 2]", b"3", b"{}", b'{"format": 1}', b"null", b"[" * 100_000],
    ids=["empty", "no text", "a list", "a number", "no keys", "no tree", "null", "deep"],
)
def test_a_manifest_of_another_kind_is_refused(manifest):
    with pytest.raises(CheckpointError, match="manifest"):
        serialization.from_bytes(manifest_bytes(manifest))


@pytest.mark.parametrize("number", [0, 1, 2, 4, "3", True, None])
def test_another_format_is_refused(number):
    with pytest.raises(CheckpointError, match=f"format (unknown|{number}).*reads format 3.*version that wrote it"):
        serialization.from_bytes(manifest_bytes(1, format=number))


def test_num_bytes_counts_numbers():
    tree = {"q": DiagonalGaussian(np.zeros(3, "float32"), np.ones(3)), "name": "york", "n": 2}
    assert serialization.num_bytes(tree) == 8 * 7
