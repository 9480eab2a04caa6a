"""The exceptions of Cavity: each names what is wrong, where, and what to do about it."""


class CavityError(ValueError):
    """An error that a user can fix: bad data, an unsuitable choice of parts, a file that cannot be read."""


class StudyError(CavityError):
    """A study file has an invalid value, or lacks a required one.

    Attributes:
        problems: all of them, one line each.
    """

    def __init__(self, *problems: str):
        super().__init__("; ".join(problems))
        self.problems = problems


class DataError(CavityError):
    """A client's data cannot be used as they are."""


class ImproperError(CavityError):
    """An improper member of a family was sampled, scored or asked for its moments."""


class UnsuitableError(CavityError):
    """Two parts cannot be combined: for example, a solver needs a capability that the model or the family lacks."""


class CheckpointError(CavityError):
    """A checkpoint or a saved fit cannot be read."""


class StalledError(CavityError, RuntimeError):
    """A run cannot continue: no client's replies can be used."""


class ProtocolError(CavityError):
    """A message that is refused: of an unknown sender, of another study, or of a client that lost its factor."""


def printable(text: object, most: int = 200) -> str:
    r"""A string from another process, made safe for a log and a terminal.

    Control characters, newlines and marks that reverse the direction of writing become escapes, and what is too long
    is cut off.

    >>> print(printable("leeds\x1b[2J\n"))
    leeds\x1b[2J\n
    """
    if not isinstance(text, str):
        return f"({type(text).__name__})"
    shown = text[:most]
    if not shown.isprintable():
        shown = "".join(
            char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in shown
        )
    return shown if len(text) <= most else f"{shown}... ({len(text)} characters)"
