"""Cavity: Bayesian inference over data that may not be pooled.

A posterior is a product: the prior, times one factor per client. Eight lines show the whole use:

    import cavity

    model = cavity.models.logistic_regression(["treated", "age"])
    clients = {"leeds": (x_leeds, y_leeds), "york": (x_york, y_york)}
    fit = cavity.run(cavity.PVI(model), clients)
    print(fit.summary())
    fit.predict(x_new)
    fit.withdraw("leeds")

Importing this package is quick and changes no setting of JAX; a part is loaded when it is first used.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cavity import (
        distributions,
        divergences,
        hyperparameters,
        likelihoods,
        losses,
        models,
        schedules,
        server,
        solvers,
        study,
        taken_out,
    )
    from cavity.algorithms import PVI, SFVI, FedAvg, FedEP, FedGVI, FedPA, FedSEP, HierarchicalPVI, SFVIAvg
    from cavity.comparison import compare
    from cavity.data.clients import Weighted
    from cavity.diagnostics import kl
    from cavity.errors import CavityError
    from cavity.interfaces import ClientSource
    from cavity.results import Fit, load, resume, run
    from cavity.selection import choose
    from cavity.study.by_formula import regression

__version__ = "0.1.0"

__all__ = [
    "PVI",
    "SFVI",
    "CavityError",
    "ClientSource",
    "FedAvg",
    "FedEP",
    "FedGVI",
    "FedPA",
    "FedSEP",
    "Fit",
    "HierarchicalPVI",
    "SFVIAvg",
    "Weighted",
    "choose",
    "compare",
    "distributions",
    "divergences",
    "hyperparameters",
    "kl",
    "likelihoods",
    "load",
    "losses",
    "models",
    "regression",
    "resume",
    "run",
    "schedules",
    "server",
    "solvers",
    "study",
    "taken_out",
]

_HOME = {
    "PVI": "cavity.algorithms",
    "FedAvg": "cavity.algorithms",
    "FedEP": "cavity.algorithms",
    "FedGVI": "cavity.algorithms",
    "FedPA": "cavity.algorithms",
    "FedSEP": "cavity.algorithms",
    "HierarchicalPVI": "cavity.algorithms",
    "SFVI": "cavity.algorithms",
    "SFVIAvg": "cavity.algorithms",
    "CavityError": "cavity.errors",
    "ClientSource": "cavity.interfaces",
    "Fit": "cavity.results",
    "Weighted": "cavity.data.clients",
    "choose": "cavity.selection",
    "compare": "cavity.comparison",
    "kl": "cavity.diagnostics",
    "load": "cavity.results",
    "regression": "cavity.study.by_formula",
    "resume": "cavity.results",
    "run": "cavity.results",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'cavity' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = _HOME.get(name)
    collecting = gc.isenabled()
    gc.disable()  # a collection meanwhile would go through all that JAX has made, for a tenth of the time it takes
    try:
        value = import_module(f"cavity.{name}") if home is None else getattr(import_module(home), name)
    finally:
        if collecting:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
