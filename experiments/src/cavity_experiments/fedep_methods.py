"""The ten methods that FedEP's experiments compare (Guo et al., 2023, table 2), each with its own settings.

All start from the last point of one burn-in by FedAvg and run for the same number of rounds, with the same number of
epochs per visit. The variant is the estimate of the tilted covariance: I scaled identity, M samples of the chain, L
Laplace, V natural-gradient VI.

A control is added: FedAvg whose server takes smaller steps after the burn-in. It shows how much of the gain of the
other methods comes from more averaging rather than from a posterior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optax

from cavity.algorithms import FedAvg, FedEP, FedPA, FedSEP
from cavity.core import Model
from cavity.fit.fit import Fit
from cavity.fit.run import run
from cavity.schedules import SampledCount
from cavity.solvers import SGMCMC, DiagonalFisher, NaturalVI, Point, SampleMoments, ScaledIdentity, SGDIterates
from cavity.solvers.sgmcmc.covariance import Spread
from cavity.training import Observer

FEDAVG, SMALL_STEPS, FEDPA = "FedAvg", "FedAvg, small steps", "FedPA"
VARIANTS = ("I", "M", "L", "V")
STATEFUL = tuple(f"FedEP {variant}" for variant in VARIANTS)
STATELESS = tuple(f"FedSEP {variant}" for variant in VARIANTS)
METHODS = (FEDAVG, SMALL_STEPS, FEDPA, *STATEFUL, *STATELESS)
MOMENTUM = 0.9  # of clients and server, table 7


@dataclass(frozen=True)
class Choice:
    """What is chosen for one method, on validation images.

    Attributes:
        server_step_size: of the server's optimiser.
        step_size: of the clients' descent.
        precision_per_row: c, for the warm start and in the covariance estimate; not used by FedAvg.
    """

    server_step_size: float
    step_size: float = 0.03
    precision_per_row: float = 1.0


@dataclass(frozen=True)
class Setting:
    """How all methods are run.

    Attributes:
        clients_per_round: the number of clients drawn for each round.
        burn_in: rounds of FedAvg.
        rounds: of each method after that.
        num_epochs: of a client's descent per visit.
        batch_size: rows per step.
        choices: method -> what was chosen for it, after the burn-in.
        shrinkage: of M.
        fisher_epochs: passes over a client's rows for the Fisher information: L's, and V's number of changes.
        decay: of V.
        first: the choice for FedAvg's burn-in; None takes the choice for its later rounds.
    """

    clients_per_round: int
    burn_in: int
    rounds: int
    num_epochs: int
    batch_size: int
    choices: Mapping[str, Choice]
    shrinkage: float = 1e-4
    fisher_epochs: int = 1
    decay: float = 0.5
    first: Choice | None = None

    def chain(self, spread: Spread, step_size: float) -> SGMCMC:
        """All iterates of the epochs count in a mean; a point mass is the last iterate."""
        burn_in = self.num_epochs - 1 if isinstance(spread, Point) else 0
        descent = SGDIterates(step_size, momentum=MOMENTUM)
        return SGMCMC(descent, spread, num_epochs=self.num_epochs, burn_in=burn_in, batch_size=self.batch_size)


def with_momentum(step_size: Any) -> optax.GradientTransformation:
    """Descent with momentum, as the paper's servers have it."""
    return optax.sgd(step_size, MOMENTUM)


def method(name: str, model: Model, setting: Setting, num_rows: int) -> Any:
    """A method by its name in the tables: "FedAvg", "FedPA", or such as "FedEP I"."""
    choice = setting.choices[name]
    server = {"optimiser": with_momentum, "step_size": choice.server_step_size}
    if name in (FEDAVG, SMALL_STEPS):
        return FedAvg(model, solver=setting.chain(Point(), choice.step_size), **server)
    kind, _, variant = name.partition(" ")
    solver = setting.chain(_spread(variant or "M", setting, choice.precision_per_row), choice.step_size)
    if kind == "FedEP":
        return FedEP(model, solver=solver, **{f"server_{key}": value for key, value in server.items()})
    return (FedPA if kind == FEDPA else FedSEP)(model, solver=solver, num_rows=num_rows, **server)


def _spread(variant: str, setting: Setting, precision_per_row: float) -> Spread:
    return {
        "I": ScaledIdentity(precision_per_row),
        "M": SampleMoments(setting.shrinkage, precision_per_row),
        "L": DiagonalFisher(setting.fisher_epochs),
        "V": NaturalVI(setting.fisher_epochs, 1, setting.decay, precision_per_row),
    }[variant]


def burn_in(
    model: Model, clients: Mapping[str, Any], setting: Setting, seed: int, observers: Sequence[Observer] = ()
) -> Fit:
    """FedAvg's first rounds, from which all methods continue."""
    if setting.first is not None:
        setting = replace(setting, choices={FEDAVG: setting.first})
    algorithm = method(FEDAVG, model, setting, 0)
    schedule = SampledCount(setting.clients_per_round)
    return run(
        algorithm, clients, schedule=schedule, rounds=setting.burn_in, tolerance=0.0, seed=seed, observers=observers
    )


def continue_run(name: str, burnt: Fit, setting: Setting, num_rows: int, observers: Sequence[Observer] = ()) -> Fit:
    """The rounds of one method after the burn-in."""
    algorithm = method(name, burnt.algorithm.model, setting, num_rows)
    if isinstance(algorithm, FedAvg):
        burnt = replace(burnt, algorithm=algorithm)
    else:
        burnt = burnt.warm_start(algorithm, precision_per_row=setting.choices[name].precision_per_row)
    return burnt.refine(setting.rounds, 0.0, observers=observers)
