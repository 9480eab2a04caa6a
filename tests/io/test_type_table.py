"""The table of stored types: identifiers, versions of fields, classes from outside, and the tool that keeps it."""

import contextlib
import dataclasses
import sys
import tomllib
import types
from collections import namedtuple
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cavity
from cavity.core import Loss, Plan, Schedule
from cavity.core.messages import Record
from cavity.distributions import Gamma
from cavity.errors import CavityError, CheckpointError
from cavity.io import register, serialization, type_table
from cavity.io.type_table import Row
from tests.fuzzing import archive
from tests.io.test_crafted import manifest
from tools import type_table as tool

OLD = {"cavity.a:First": ("x",), "cavity.a:Second": ("y", "z"), "cavity.b:First": ("w",)}


class Offset(eqx.Module):
    """A component from outside Cavity."""

    value: float
    label: str = "none"


Memory = namedtuple("Memory", ["momentum"])


@pytest.fixture
def registry():
    """What a test registers is forgotten after it."""
    yield
    for name in ("offset", "memory", "other", "all_idle"):
        with contextlib.suppress(CavityError):
            type_table.unregister(f"mylab.{name}")


@pytest.fixture
def use_table(monkeypatch):
    """Put further rows into the table."""

    def use(rows):
        changed = type_table.read_table() | rows
        monkeypatch.setattr(type_table, "table", lambda: changed)
        type_table.clear_caches()

    yield use
    monkeypatch.undo()
    type_table.clear_caches()


def module_with(name, monkeypatch, **classes):
    """A module of this name with these classes."""
    module = types.ModuleType(name)
    for key, cls in classes.items():
        cls.__module__, cls.__qualname__ = name, key
        setattr(module, key, cls)
    monkeypatch.setitem(sys.modules, name, module)


def again(tree, types=()):
    return serialization.from_bytes(serialization.to_bytes(tree), types)


def test_the_table_agrees_with_the_code():
    found, absent = tool.scan()
    lines = tool.differences(type_table.read_table(), found, absent)
    assert not lines, "\n".join([*lines, tool.ADVICE])


def test_the_table_is_as_the_tool_writes_it():
    assert tool.text_of(type_table.read_table()) == type_table.TABLE.read_text(), tool.ADVICE


def test_the_table_is_part_of_the_package():
    project = tomllib.loads((Path(tool.__file__).parents[1] / "pyproject.toml").read_text())
    assert "io/types.toml" in project["tool"]["setuptools"]["package-data"]["cavity"]


class TestNames:
    def test_a_class_of_cavity(self):
        assert type_table.name_of(Gamma) == "distributions.gamma/1"
        assert b"cavity.distributions" not in serialization.to_bytes(Gamma(np.ones(2), np.ones(2)))

    def test_two_classes_of_one_name(self):
        assert type_table.name_of(cavity.losses.Gamma) != type_table.name_of(Gamma)

    def test_states_of_optimisers(self):
        """They are read without being passed, whichever private module of optax has them."""
        optimiser = optax.chain(optax.adam(optax.cosine_decay_schedule(0.1, 9)), optax.trace(0.9), optax.lbfgs())
        state = optimiser.init({"a": jnp.ones(2)})
        assert serialization.is_self_contained(state)
        restored = again(state)
        assert serialization.types_in(restored) == serialization.types_in(state)
        assert b"optax._src" not in serialization.to_bytes(state)

    def test_a_class_that_is_missing_from_the_table(self, monkeypatch):
        class Forgotten(eqx.Module):
            x: int = 1

        module_with("cavity.forgotten", monkeypatch, Forgotten=Forgotten)
        with pytest.raises(CheckpointError, match=r"cavity\.forgotten:Forgotten is not in the table.*type_table\.py"):
            serialization.to_bytes(Forgotten())

    def test_fields_that_differ_from_the_table(self, use_table):
        content = serialization.to_bytes(Gamma(np.ones(2), np.ones(2)))
        use_table({"distributions.gamma": Row("cavity.distributions.conjugate:Gamma", (("rate",),))})
        with pytest.raises(CheckpointError, match="other fields than in the table"):
            serialization.to_bytes(Gamma(np.ones(2), np.ones(2)))
        with pytest.raises(CheckpointError, match="other fields than in the table"):
            serialization.from_bytes(content)

    def test_a_package_that_is_not_installed(self, use_table):
        use_table({"models.missing": Row("cavity.no_such_module:Missing", ((),))})
        with pytest.raises(CheckpointError, match=r"models\.missing, which cannot be imported \(No module named"):
            type_table.find("models.missing/1", {}, imports=True)
        with pytest.raises(CheckpointError, match="not a type that is in use here"):
            type_table.find("models.missing/1", {}, imports=False)

    def test_a_class_that_moves_stays_readable(self, use_table, monkeypatch):
        class Part(eqx.Module):
            x: int = 1

        module_with("cavity.before", monkeypatch, Part=Part)
        use_table({"models.part": Row("cavity.before:Part", (("x",),))})
        content = serialization.to_bytes(Part(7))
        monkeypatch.delitem(sys.modules, "cavity.before")
        module_with("cavity.after.deeper", monkeypatch, Part=Part)
        use_table({"models.part": Row("cavity.after.deeper:Part", (("x",),))})
        assert serialization.from_bytes(content).x == 7


class TestVersions:
    @pytest.fixture
    def part(self, use_table, monkeypatch):
        """A class with three versions: `y` was added, then `old` was removed and `z` added."""

        class Part(eqx.Module):
            x: int
            y: jnp.ndarray = eqx.field(converter=np.asarray, default=2.0)
            z: tuple = dataclasses.field(default_factory=tuple)

        module_with("cavity.parts", monkeypatch, Part=Part)
        use_table({"models.part": Row("cavity.parts:Part", (("x", "old"), ("x",), ("x", "y"), ("x", "y", "z")))})
        return Part

    def read(self, number, **fields):
        tree = {"type": f"models.part/{number}", "fields": fields}
        return serialization.from_bytes(serialization.seal(archive([manifest(tree)])))

    def test_the_newest_is_written(self, part):
        assert type_table.name_of(part) == "models.part/4"
        restored = again(part(1, 3.0, (1,)))
        assert (restored.x, float(restored.y), restored.z) == (1, 3.0, (1,))

    def test_new_fields_of_an_older_version_have_their_defaults(self, part):
        restored = self.read(2, x=1)
        assert isinstance(restored, part)
        assert isinstance(restored.y, np.ndarray)
        assert (restored.x, float(restored.y), restored.z) == (1, 2.0, ())
        assert float(self.read(3, x=1, y=5).y) == 5.0

    def test_a_removed_field_is_refused(self, part):
        with pytest.raises(CheckpointError, match="its Part is of an older version with other fields; use the version"):
            self.read(1, x=1, old=2)

    def test_a_new_field_without_a_default_is_refused(self, use_table, monkeypatch):
        class Part(eqx.Module):
            x: int
            y: int

        module_with("cavity.parts", monkeypatch, Part=Part)
        use_table({"models.part": Row("cavity.parts:Part", (("x",), ("x", "y")))})
        with pytest.raises(CheckpointError, match="older version with other fields"):
            self.read(1, x=1)

    @pytest.mark.parametrize("number", ["0", "5", "", "x", "-1", "04", "4 ", "٤", "9" * 5000])
    def test_an_unknown_version(self, part, number):
        with pytest.raises(CheckpointError, match=r"models\.part has version .*known here is 1 to 4; use the version"):
            self.read(number, x=1, y=1, z=1)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [({"x": 1}, "lacks the field y"), ({"x": 1, "y": 2, "z": {"tuple": []}, "\x1b": 1}, r"unknown field \\x1b")],
    )
    def test_fields_of_another_version(self, part, fields, message):
        with pytest.raises(CheckpointError, match=message):
            self.read(4, **fields)


@pytest.mark.usefixtures("registry")
class TestOutside:
    def test_a_class_that_the_caller_passes(self):
        assert type_table.name_of(Offset) == "user:Offset"
        assert again(Offset(1.0), [Offset]) == Offset(1.0)

    def test_a_registered_class_is_found_by_its_identifier(self):
        register("mylab.offset", Offset)
        register("mylab.memory", Memory, version=3)
        assert type_table.name_of(Memory) == "mylab.memory/3"
        assert serialization.is_self_contained((Offset(1.0), Memory(2)))
        assert again((Offset(1.0), Memory(2))) == (Offset(1.0), Memory(2))

    def test_a_registered_class_of_another_version(self):
        register("mylab.offset", Offset)
        content = serialization.to_bytes(Offset(1.0))
        register("mylab.offset", Offset, version=2)
        with pytest.raises(CheckpointError, match=r"mylab\.offset has version 1, and the version known here is 2"):
            serialization.from_bytes(content)

    def test_a_class_that_is_not_registered_at_the_reader(self):
        register("mylab.offset", Offset)
        content = serialization.to_bytes(Offset(1.0))
        type_table.unregister("mylab.offset")
        with pytest.raises(CheckpointError, match=r"mylab\.offset/1, which is not a type.*cavity\.io\.register"):
            serialization.from_bytes(content)

    def test_a_registered_class_in_a_message(self):
        register("mylab.offset", Offset)
        content = serialization.to_bytes(Offset(1.0))
        assert serialization.from_bytes(content, limits=serialization.MESSAGE) == Offset(1.0)

    @pytest.mark.parametrize(
        ("identifier", "message"),
        [
            ("offset", "words with a dot between"),
            ("My.Offset", "words with a dot between"),
            ("mylab.offset/1", "words with a dot between"),
            ("user:mylab.offset", "words with a dot between"),
            ("models.offset", "reserved for Cavity"),
            ("optax.offset", "reserved for Cavity"),
        ],
    )
    def test_an_identifier_that_is_not_allowed(self, identifier, message):
        with pytest.raises(CavityError, match=message):
            register(identifier, Offset)

    def test_an_identifier_that_is_taken(self):
        register("mylab.offset", Offset)
        register("mylab.offset", Offset)
        with pytest.raises(CavityError, match=r"already registered for .*:Offset"):
            register("mylab.offset", Memory)

    def test_a_class_that_cannot_be_stored(self):
        with pytest.raises(CavityError, match="dict cannot be registered"):
            register("mylab.dict", dict)

    def test_two_classes_of_one_name(self):
        class Other(eqx.Module):
            value: float

        Other.__qualname__ = "Offset"
        with pytest.raises(TypeError, match="two classes are called Offset, at /1; register them"):
            serialization.to_bytes([Offset(1.0), Other(1.0)])
        content = serialization.to_bytes(Offset(1.0))
        with pytest.raises(CheckpointError, match="two classes have this name; register"):
            serialization.from_bytes(content, [Offset, Other])
        register("mylab.other", Other)
        assert again([Offset(1.0), Other(1.0)], [Offset]) == [Offset(1.0), Other(1.0)]

    def test_a_fit_with_a_registered_schedule_is_loaded_without_it(self, tmp_path):
        model = cavity.models.linear_regression(1, noise_sd=1.0)
        clients = {"leeds": (np.array([[0.0], [1.0], [2.0]]), np.array([0.1, 0.9, 2.2]))}
        fit = cavity.run(cavity.PVI(model), clients, schedule=AllIdle(), rounds=1)
        fit.save(tmp_path / "not registered.npz")
        with pytest.raises(CheckpointError, match="`schedule="):
            cavity.load(tmp_path / "not registered.npz")
        assert isinstance(cavity.load(tmp_path / "not registered.npz", schedule=AllIdle()).schedule, AllIdle)
        register("mylab.all_idle", AllIdle)
        fit.save(tmp_path / "fit.npz")
        loaded = cavity.load(tmp_path / "fit.npz")
        assert isinstance(loaded.schedule, AllIdle)
        assert np.array_equal(loaded.posterior.precision, fit.posterior.precision)


class AllIdle(Schedule):
    """All idle clients in each turn."""

    def init(self, names):
        return None

    def next(self, rng, state, gaps, idle):
        return Plan(tuple(idle), len(idle)), state

    def visits_per_round(self, num_clients):
        return num_clients


class TestTool:
    """On a table of its own, not on that of Cavity."""

    def table(self, found=OLD, rows=None, absent=(), renamed=None):
        return tool.updated(rows or {}, found, list(absent), renamed or {})

    def test_identifiers(self):
        found = {f"cavity.algorithms.some.{name.lower()}:{name}": () for name in ("PVI", "FedEP", "SFVIAvg", "Fixed2D")}
        names = ["algorithms.pvi", "algorithms.fed_ep", "algorithms.sfvi_avg", "algorithms.fixed2_d"]
        assert list(self.table(found)) == names
        assert list(self.table({"cavity.a.b:X": (), "cavity.a.c:X": ()})) == ["a.b.x", "a.c.x"]

    def test_nothing_to_do(self):
        rows = self.table()
        assert rows["a.second"] == Row("cavity.a:Second", (("y", "z"),))
        assert self.table(rows=rows) == rows
        assert tool.differences(rows, OLD, []) == []

    def test_a_new_class(self):
        rows, found = self.table(), OLD | {"cavity.c:Third": ()}
        assert tool.differences(rows, found, []) == ["missing from the table: cavity.c:Third"]
        assert self.table(found, rows) == rows | {"c.third": Row("cavity.c:Third", ((),))}

    def test_other_fields_are_a_new_version(self):
        rows, found = self.table(), OLD | {"cavity.a:First": ("x", "more")}
        (line,) = tool.differences(rows, found, [])
        assert line == 'other fields: cavity.a:First has ["x", "more"]; a.first records ["x"]'
        assert self.table(found, rows)["a.first"].versions == (("x",), ("x", "more"))

    def test_a_class_that_moved_keeps_its_identifier(self):
        rows, found = self.table(), {key: value for key, value in OLD.items() if key != "cavity.a:Second"}
        found |= {"cavity.elsewhere.deep:Second": ("y", "z")}
        assert len(tool.differences(rows, found, [])) == 2
        assert self.table(found, rows)["a.second"] == Row("cavity.elsewhere.deep:Second", (("y", "z"),))

    def test_a_class_that_was_renamed(self, capsys):
        rows, found = self.table(), {key: value for key, value in OLD.items() if key != "cavity.a:Second"}
        found |= {"cavity.a:Better": ("y", "z")}
        kept = self.table(found, rows, renamed={"a.second": "cavity.a:Better"})
        assert kept["a.second"].path == "cavity.a:Better"
        assert "a.better" not in kept
        assert "a.better" in self.table(found, rows)
        assert "dropped a.second" in capsys.readouterr().out

    def test_modules_that_cannot_be_imported_keep_their_rows(self):
        rows, found = self.table(), {key: value for key, value in OLD.items() if key != "cavity.b:First"}
        assert tool.differences(rows, found, ["cavity.b"]) == []
        assert self.table(found, rows, ["cavity.b"]) == rows

    def test_two_rows_for_one_class(self):
        rows = self.table()
        assert tool.differences(rows | {"a.again": rows["a.first"]}, OLD, []) == ["two identifiers for cavity.a:First"]

    def test_the_command(self, tmp_path, capsys):
        path = tmp_path / "types.toml"
        assert tool.main(["check", "--table", str(path)]) == 1
        assert "missing from the table: cavity.core.messages:Report" in capsys.readouterr().out
        assert tool.main(["update", "--table", str(path)]) == 0
        assert tool.main(["check", "--table", str(path)]) == 0
        text = path.read_text()
        path.write_text(text.replace('fields = [["exponent"]]', 'fields = [["power"]]'))
        assert tool.main(["check", "--table", str(path)]) == 1
        assert tool.main(["update", "--table", str(path)]) == 0
        assert 'fields = [["power"], ["exponent"]]' in path.read_text()
        assert tool.main(["update", "--reset", "--table", str(path)]) == 0
        assert path.read_text() == text

    def test_what_is_not_stored_is_not_in_the_table(self):
        paths = {row.path for row in type_table.table().values()}
        assert not any(path.startswith(tool.SKIPPED) for path in paths)
        assert "cavity.core.messages:Acknowledgement" in paths
        assert not {"cavity.core.loss:Loss", "cavity.core.messages:Record"} & paths
        assert (Loss.__module__, Record.__module__) == ("cavity.core.loss", "cavity.core.messages")
