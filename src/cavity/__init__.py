"""Cavity: Bayesian inference over data that may not be pooled.

A posterior is a product: the prior, times one factor per client. Eight lines show the whole use:

    import cavity

    model = cavity.models.logistic_regression(["treated", "age"])
    clients = {"leeds": (x_leeds, y_leeds), "york": (x_york, y_york)}
    fit = cavity.run(cavity.PVI(model), clients)
    print(fit.summary())
    fit.predict(x_new)
    fit.withdraw("leeds")
"""

from cavity import distributions, models, schedules, server, solvers
from cavity.algorithms import PVI
from cavity.data.clients import Weighted
from cavity.diagnostics import kl
from cavity.errors import CavityError
from cavity.results import Fit, load, resume, run

__version__ = "0.1.0"

__all__ = [
    "PVI",
    "CavityError",
    "Fit",
    "Weighted",
    "distributions",
    "kl",
    "load",
    "models",
    "resume",
    "run",
    "schedules",
    "server",
    "solvers",
]
