"""Every abstract class of Cavity, a few methods each, one contract per file. Read these files first.

A posterior is a product, `q = prior * factor_1 * ... * factor_M`, and a method is a choice of the parts below:

    cavity  = posterior / factor               # Distribution: the algebra
    tilted  = argmin E[loss] + divergence      # Loss, Divergence, gathered in a Problem, found by a Solver
    delta   = tilted / posterior               # Algorithm: the client part
    factor  = factor * delta ** exponent       # Algorithm: the server part; Damping chooses the exponent

A Schedule says who works when, an Engine where. A new part is a new final class in a file of its own.
Numbers are array leaves, so that a sweep over them does not recompile; counts and names are static.
"""

from cavity.core.algorithm import (
    Absorbed,
    Algorithm,
    BlockPart,
    BlockState,
    ClientPart,
    Convergence,
    Declaration,
    Entries,
    Initialisation,
    LocalUnits,
    Release,
    RunDefaults,
    ServerPart,
)
from cavity.core.client_source import ClientSource
from cavity.core.damping import Damping
from cavity.core.dataset import Data, pad, weighted_sum
from cavity.core.distribution import Density, Distribution
from cavity.core.divergence import Divergence, MultipleOfKL
from cavity.core.engine import BlockRound, BlockRounds, Engine
from cavity.core.hyperparameter import Hyperparameter
from cavity.core.latent_model import LatentModel
from cavity.core.lazy_loading import listing
from cavity.core.likelihood import (
    ClosedFormMean,
    ExpectedLogProb,
    ExpectedPower,
    Likelihood,
    Noisy,
    OutcomeDraws,
    PowerIntegral,
)
from cavity.core.loss import Loss
from cavity.core.model import (
    ConjugateLikelihood,
    CorrectedPrior,
    Encoding,
    GaussianRows,
    LinearModel,
    Model,
    PredictiveModel,
    PredictorDraws,
    PredictorModel,
    ReportedModel,
    RowModel,
)
from cavity.core.schedule import Plan, Schedule
from cavity.core.solver import Problem, Solution, Solver

__all__ = [
    "Absorbed",
    "Algorithm",
    "BlockPart",
    "BlockRound",
    "BlockRounds",
    "BlockState",
    "ClientPart",
    "ClientSource",
    "ClosedFormMean",
    "ConjugateLikelihood",
    "Convergence",
    "CorrectedPrior",
    "Damping",
    "Data",
    "Declaration",
    "Density",
    "Distribution",
    "Divergence",
    "Encoding",
    "Engine",
    "Entries",
    "ExpectedLogProb",
    "ExpectedPower",
    "GaussianRows",
    "Hyperparameter",
    "Initialisation",
    "LatentModel",
    "Likelihood",
    "LinearModel",
    "LocalUnits",
    "Loss",
    "Model",
    "MultipleOfKL",
    "Noisy",
    "OutcomeDraws",
    "Plan",
    "PowerIntegral",
    "PredictiveModel",
    "PredictorDraws",
    "PredictorModel",
    "Problem",
    "Release",
    "ReportedModel",
    "RowModel",
    "RunDefaults",
    "Schedule",
    "ServerPart",
    "Solution",
    "Solver",
    "pad",
    "weighted_sum",
]

__dir__ = listing(__all__)
