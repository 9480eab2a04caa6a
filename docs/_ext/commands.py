"""The reference of the command `cavity`, from its Typer application."""

import inspect
from collections.abc import Iterator
from typing import Any, get_type_hints

import typer

from cavity.cli.main import app


def command_reference() -> str:
    """Every command as Markdown: its help, usage, arguments and options."""
    group = typer.main.get_command(app)
    return "\n\n".join(text for name, command in _commands(group, "cavity") for text in _described(name, command))


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group and of its groups, with their full names; those of other distributions are left out."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def _described(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name.split()[-1], [], resilient_parsing=True)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    required = [f"{one.opts[0]} {one.name.upper()}" for one in options if one.required]
    yield f"## {name}"
    yield f"```text\n{' '.join([name, *(one.make_metavar(context) for one in arguments), *required, '[OPTIONS]'])}\n```"
    yield inspect.cleandoc(command.help or "")
    texts = _argument_texts(command)
    rows = [(one.make_metavar(context), texts[one.name], "required" if one.required else "") for one in arguments]
    rows += [(", ".join([*one.opts, *one.secondary_opts]), one.help, _default(one)) for one in options]
    table = [f"| `{word}` | {_cell(text)} | {_cell(default)} |" for word, text, default in rows]
    yield "\n".join(["| argument or option | meaning | default |", "| --- | --- | --- |", *table])


def _argument_texts(command: Any) -> dict[str, str | None]:
    """The help of arguments; newer versions of click drop the text that Typer gives them."""
    hints = get_type_hints(inspect.unwrap(command.callback), include_extras=True)
    annotated = {name: getattr(hint, "__metadata__", (None,))[0] for name, hint in hints.items()}
    return {name: getattr(info, "help", None) for name, info in annotated.items()}


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    return "" if value is None or value is False or value == [] or callable(value) else f"`{value}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
