"""Notes below a summary that take a computation on the clients' data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cavity.evaluation import integration, separation, verdict

if TYPE_CHECKING:
    from cavity.fit.fit import Fit


def computed_remarks(fit: Fit) -> tuple[str, ...]:
    """Whether the outcome is separated, how good the approximation is, and how exact the integrals are.

    Args:
        fit: the fit.

    Returns:
        One sentence each, of those that apply.
    """
    found = (separation.remark(fit), verdict.remark(fit), integration.remark(fit))
    return tuple(remark for remark in found if remark is not None)
