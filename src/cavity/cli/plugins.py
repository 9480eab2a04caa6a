"""Commands of other distributions: entry points of the group `cavity.commands`, imported when they are called.

The help of `cavity` lists them with the first line of their module's docstring, which is read from the file without
importing it.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

GROUP = "cavity.commands"
# the parameters that the methods of a Typer group have depend on the version of Typer, which may have a copy of click
Context = Any
Command = Any


class Commands(TyperGroup):
    """The subcommands of `cavity`, and those of other distributions after them."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugins() if name not in own)]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """A command; one of another distribution only as its name and help, unless it has been called."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in plugins():
            return own
        return _stub(plugins()[cmd_name])

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command to call; it is imported if it belongs to another distribution."""
        name = args[0]
        if name in self.commands:
            return super().resolve_command(ctx, args)
        if name in plugins():
            self.add_command(load(plugins()[name]), name)
        else:  # the error suggests the nearest of all names
            for other, point in plugins().items():
                self.add_command(_stub(point), other)
        return super().resolve_command(ctx, args)


@cache
def plugins() -> dict[str, EntryPoint]:
    """The entry points by name, in alphabetical order."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def load(point: EntryPoint) -> Command:
    """Import a command: a function, or a Typer application with subcommands."""
    loaded = point.load()
    single = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    single.callback()(lambda: None)
    if isinstance(loaded, typer.Typer):
        single.add_typer(loaded, name=point.name)
    else:
        single.command(point.name)(loaded)
    return typer.main.get_group(single).commands[point.name]


def _stub(point: EntryPoint) -> TyperCommand:
    """A command with its name and help only."""
    return TyperCommand(point.name, help=help_of(point))


def help_of(point: EntryPoint) -> str:
    """One line about a command: the docstring of its module without "`cavity NAME`: ", or where it comes from."""
    title = f"`cavity {point.name}`: "
    text = (_docstring(point.module) or "").partition("\n")[0].removeprefix(title)
    return text[:1].upper() + text[1:] if text else f"From {point.module.partition('.')[0]}."


def _docstring(module: str) -> str | None:
    """The docstring of a module, read from its file; None if there is no such file."""
    package, *rest = module.split(".")
    spec = find_spec(package)  # of a package at the top, so nothing is imported
    if spec is None or spec.submodule_search_locations is None:
        return None
    for folder in spec.submodule_search_locations:
        path = Path(folder, *rest)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    return None
