"""Cavity: Bayesian inference over data that may not be pooled.

A posterior is a product: the prior times one factor per client. Eight lines show the main use:

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
        aggregation,
        distributions,
        divergences,
        hyperparameters,
        likelihoods,
        losses,
        models,
        schedules,
        solvers,
        study,
    )
    from cavity.algorithms import PVI, SFVI, FedAvg, FedEP, FedGVI, FedPA, FedSEP, HierarchicalPVI, SFVIAvg, cavities
    from cavity.core import ClientSource
    from cavity.core.client_data import Weighted
    from cavity.errors import CavityError
    from cavity.evaluation.comparison import compare
    from cavity.evaluation.diagnostics import kl
    from cavity.evaluation.selection import choose
    from cavity.fit.fit import Fit
    from cavity.fit.run import load, resume, run
    from cavity.study.regression import regression

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
    "aggregation",
    "cavities",
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
    "solvers",
    "study",
]

_MODULES = {"cavities": "cavity.algorithms.cavities"}  # those that are not packages of the same name
_HOMES = {
    "cavity.algorithms": "PVI FedAvg FedEP FedGVI FedPA FedSEP HierarchicalPVI SFVI SFVIAvg",
    "cavity.core": "ClientSource",
    "cavity.core.client_data": "Weighted",
    "cavity.errors": "CavityError",
    "cavity.evaluation.comparison": "compare",
    "cavity.evaluation.diagnostics": "kl",
    "cavity.evaluation.selection": "choose",
    "cavity.fit.fit": "Fit",
    "cavity.fit.run": "load resume run",
    "cavity.study.regression": "regression",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'cavity' has no attribute {name!r}; choose one of: {', '.join(__all__)}")
    home = _HOME.get(name)
    collecting = gc.isenabled()
    gc.disable()  # a collection now would visit everything that JAX has made, which takes a tenth of the import
    try:
        if home is None:
            value = import_module(_MODULES.get(name, f"cavity.{name}"))
        else:
            value = getattr(import_module(home), name)
    finally:
        if collecting:
            gc.enable()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
