"""The reference of the public names of a package, as directives of autodoc."""

import inspect
from importlib import import_module
from types import ModuleType


def public_names(package: str) -> list[str]:
    """The names that a package exports, without packages; its own classes if it lists none."""
    module = import_module(package)
    names = getattr(module, "__all__", None)
    if names is None:
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        names = [name for name, value in own.items() if inspect.isclass(value) and value.__module__ == package]
    values = {name: getattr(module, name) for name in names}
    return [
        name for name, value in values.items() if not isinstance(value, ModuleType) and not _is_error(value, package)
    ]


def _is_error(value: object, package: str) -> bool:
    """Whether it is an exception that another package has, which describes it."""
    return inspect.isclass(value) and issubclass(value, BaseException) and value.__module__ != package


def directive(package: str, name: str) -> list[str]:
    """The lines of one name."""
    value = getattr(import_module(package), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return [f".. {kind}:: {package}.{name}", "   :members:", ""]
    return [f".. autofunction:: {package}.{name}", ""]


def api_reference(package: str) -> str:
    """Every public name of a package: first a list, then each of them."""
    names = public_names(package)
    lines = [line for name in names for line in directive(package, name)]
    shown = " · ".join(f"{{py:obj}}`{name} <{package}.{name}>`" for name in names)
    return "\n".join([shown, "", "```{eval-rst}", *lines, "```"])
