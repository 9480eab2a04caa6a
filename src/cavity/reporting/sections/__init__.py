"""The sections of a report, in their order; each is one file."""

from collections.abc import Callable

from cavity.reporting.facts import Facts
from cavity.reporting.page import Section
from cavity.reporting.sections.clients import clients
from cavity.reporting.sections.convergence import convergence
from cavity.reporting.sections.estimates import estimates
from cavity.reporting.sections.local_results import local_results
from cavity.reporting.sections.messages import messages
from cavity.reporting.sections.methods import methods
from cavity.reporting.sections.parties import parties

SECTIONS: tuple[Callable[[Facts], Section | None], ...] = (
    parties,
    estimates,
    clients,
    convergence,
    local_results,
    messages,
    methods,
)

__all__ = ["SECTIONS"]
