"""The exceptions of Cavity: each names what is wrong, where, and what to do about it."""


class CavityError(ValueError):
    """Anything that a user can mend: bad data, a bad choice of parts, a file that cannot be read."""


class StudyError(CavityError):
    """A study file says something that cannot be, or does not say something that it must.

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
    """Two parts do not fit: a solver asked for an ability that the model or the family lacks."""


class CheckpointError(CavityError):
    """A checkpoint or a saved fit cannot be read."""


class ProtocolError(CavityError):
    """A message that does not belong: a stranger's, another study's, or a client that lost its factor."""
