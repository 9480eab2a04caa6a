"""Check or update the table of types that files and messages may hold (`src/cavity/io/types.toml`).

    python tools/type_table.py check
    python tools/type_table.py update
    python tools/type_table.py update --rename models.laplace=cavity.models.glm.shrinkage:LaplacePrior
    python tools/type_table.py update --reset

`check` ends with exit code 1 and a list of differences if a class of the package is missing from the table, or has
other fields than the newest version that the table records. `update` adds what is missing: a new class gets version 1,
changed fields get a new version, a class that moved keeps its identifier. A class that was renamed keeps its identifier
with `--rename`; without it, the old row is dropped and a new one added. `--reset` starts every class at version 1 with
new identifiers, which makes older files unreadable; it is for the time before a release.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import cavity
from cavity.core.messages import Record
from cavity.io.type_table import TABLE, Row, fields_of, is_component, read_table

# Nothing of these modules is stored: commands, figures, the arguments of compiled programs, Flower's own processes.
SKIPPED = ("cavity.cli", "cavity.reporting", "cavity.simulation", "cavity.network.flower")
# States of optimisers that an algorithm may keep. They are looked up under the package's public name.
OPTAX = (
    "EmptyState", "ScaleByAdamState", "ScaleByAmsgradState", "ScaleByBeliefState", "ScaleByLBFGSState",
    "ScaleByLionState", "ScaleByRmsState", "ScaleByRssState", "ScaleByScheduleState", "ScaleByZoomLinesearchState",
    "TraceState", "ZoomLinesearchInfo",
)  # fmt: skip
HEADER = """\
# The classes that files and messages may hold: identifier, class, and the names of its fields in version 1, 2, ...
# Written by `python tools/type_table.py update`. Never change an identifier or the fields of a released version.
"""
ADVICE = "run `python tools/type_table.py update`, look at the difference, and commit src/cavity/io/types.toml"


def scan() -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Import the package and list its classes that may be stored.

    Returns:
        Path (`module:Class`) -> names of the fields, and the modules that cannot be imported here.
    """
    found, absent = {}, []
    for info in pkgutil.walk_packages(cavity.__path__, "cavity.", onerror=lambda name: None):
        if info.name.startswith(SKIPPED):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            absent.append(info.name)
            continue
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == info.name and _may_be_stored(cls):
                found[f"{info.name}:{cls.__qualname__}"] = fields_of(cls)
    optax = importlib.import_module("optax")
    found |= {f"optax:{name}": fields_of(getattr(optax, name)) for name in OPTAX if hasattr(optax, name)}
    return found, absent


def _may_be_stored(cls: type) -> bool:
    public = not cls.__qualname__.startswith("_") and "." not in cls.__qualname__
    return public and is_component(cls) and cls is not Record and not inspect.isabstract(cls)


def differences(rows: dict[str, Row], found: dict[str, tuple[str, ...]], absent: list[str]) -> list[str]:
    """What the table and the code disagree about, one line each."""
    recorded = {row.path: (identifier, row.versions[-1]) for identifier, row in rows.items()}
    lines = [f"missing from the table: {path}" for path in found if path not in recorded]
    for path, (identifier, fields) in recorded.items():
        if path not in found:
            if path.partition(":")[0] not in absent:
                lines.append(f"not found in the code: {path} ({identifier})")
        elif fields != found[path]:
            lines.append(f"other fields: {path} has {_list(found[path])}; {identifier} records {_list(fields)}")
    lines += [f"two identifiers for {path}" for path, n in Counter(row.path for row in rows.values()).items() if n > 1]
    return lines


def updated(
    rows: dict[str, Row],
    found: dict[str, tuple[str, ...]],
    absent: list[str],
    renamed: dict[str, str],
) -> dict[str, Row]:
    """The table that agrees with the code.

    Args:
        rows: the table now.
        found: the classes in the code.
        absent: modules that cannot be imported here, whose rows are kept.
        renamed: identifier -> the new path of a class that was renamed.
    """
    result: dict[str, Row] = {}
    unlisted = dict.fromkeys(path for path in found if path not in {row.path for row in rows.values()})
    for identifier, row in rows.items():
        path = _current_path(identifier, row.path, found, unlisted, renamed)
        if path is not None:
            unlisted.pop(path, None)
            versions = row.versions if row.versions[-1] == found[path] else (*row.versions, found[path])
            result[identifier] = Row(path, versions)
        elif row.path.partition(":")[0] in absent:
            result[identifier] = row
        else:
            print(f"dropped {identifier}: there is no {row.path}; --rename keeps the identifier of a renamed class")
    for path in unlisted:
        result[_new_identifier(path, unlisted, result)] = Row(path, (found[path],))
    return result


def _current_path(
    identifier: str, path: str, found: dict[str, tuple[str, ...]], unlisted: dict[str, None], renamed: dict[str, str]
) -> str | None:
    """Where the class of a row is now: renamed, in its place, or moved to another module; None if it is gone."""
    if identifier in renamed:
        if renamed[identifier] not in found:
            raise SystemExit(f"--rename: there is no class {renamed[identifier]}")
        return renamed[identifier]
    if path in found:
        return path
    name = path.partition(":")[2]
    moved = [other for other in unlisted if other.partition(":")[2] == name]
    return moved[0] if len(moved) == 1 else None


def _new_identifier(path: str, unlisted: dict[str, None], taken: dict[str, Row]) -> str:
    """`package.class_name`; with the name of the module between them where two classes would have the same."""
    short, long = _identifiers(path)
    alike = [other for other in unlisted if other != path and _identifiers(other)[0] == short]
    name = long if alike or short in taken else short
    if name in taken:
        raise SystemExit(f"{path}: the identifier {name} is taken; rename the class, or add the row by hand")
    return name


def _identifiers(path: str) -> tuple[str, str]:
    module, _, name = path.partition(":")
    parts = module.removeprefix("cavity.").split(".")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    return f"{parts[0]}.{words}", f"{parts[0]}.{parts[-1]}.{words}"


def text_of(rows: dict[str, Row]) -> str:
    """The table as TOML, one row per line, in alphabetical order."""
    lines = [
        f'"{identifier}" = {{ class = "{row.path}", fields = [{", ".join(map(_list, row.versions))}] }}\n'
        for identifier, row in sorted(rows.items())
    ]
    return HEADER + "".join(lines)


def _list(fields: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{field}"' for field in fields) + "]"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "update"))
    parser.add_argument("--reset", action="store_true", help="start every class at version 1")
    parser.add_argument("--rename", action="append", default=[], metavar="IDENTIFIER=MODULE:CLASS")
    parser.add_argument("--table", type=Path, default=TABLE, help="another file than Cavity's own")
    options = parser.parse_args(arguments)
    found, absent = scan()
    for name in absent:
        print(f"{name} cannot be imported here; its rows are kept as they are")
    rows = {} if options.reset or not options.table.exists() else read_table(options.table)
    if options.what == "update":
        renamed = dict(each.split("=", 1) for each in options.rename)
        rows = updated(rows, found, absent, renamed)
        options.table.write_text(text_of(rows))
        print(f"{options.table.name}: {len(rows)} types")
        return 0
    lines = differences(rows, found, absent)
    print("\n".join([*lines, ADVICE]) if lines else f"{options.table.name} agrees with the code: {len(rows)} types")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
