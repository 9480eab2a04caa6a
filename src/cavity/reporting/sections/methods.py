"""A methods paragraph with references, made from what was run."""

from __future__ import annotations

from cavity.distributions.gaussian import gaussian_or_none
from cavity.errors import CavityError, printable
from cavity.evaluation.verdict import UNKNOWN
from cavity.fit.method import server_entries
from cavity.reporting.facts import Facts
from cavity.reporting.page import Paragraph, Part, Section
from cavity.reporting.tables import Table

PVI = (
    "Ashman M, Bui TD, Nguyen CV, Markou S, Weller A, Swaroop S, Turner RE. Partitioned variational inference: a "
    "framework for probabilistic federated learning. 2022. arXiv:2202.12275."
)
SFVI = (
    "Hassan C, Salomone R, Mengersen K. Federated variational inference methods for structured latent variable "
    "models. 2023. arXiv:2302.03314."
)
FEDEP = (
    "Guo H, Greengard P, Wang H, Gelman A, Kim Y, Xing EP. Federated learning as variational inference: a scalable "
    "expectation propagation approach. International Conference on Learning Representations. 2023."
)
FEDGVI = (
    "Mildner T, Hamelijnck O, Giampouras P, Damoulas T. Federated generalised variational inference: a robust "
    "probabilistic federated learning framework. International Conference on Machine Learning. 2025."
)
FEDAVG = (
    "McMahan B, Moore E, Ramage D, Hampson S, Aguera y Arcas B. Communication-efficient learning of deep networks "
    "from decentralized data. International Conference on Artificial Intelligence and Statistics. 2017."
)
PSIS = (
    "Vehtari A, Simpson D, Gelman A, Yao Y, Gabry J. Pareto smoothed importance sampling. Journal of Machine Learning "
    "Research. 2024;25(72)."
)
# name of the algorithm's class -> (what it is called, its reference)
METHODS = {
    "PVI": ("partitioned variational inference", PVI),
    "HierarchicalPVI": ("partitioned variational inference", PVI),
    "FedGVI": ("federated generalised variational inference", FEDGVI),
    "SFVI": ("structured federated variational inference", SFVI),
    "SFVIAvg": ("structured federated variational inference with averaging", SFVI),
    "FedEP": ("federated expectation propagation", FEDEP),
    "FedSEP": ("federated stochastic expectation propagation", FEDEP),
    "FedPA": ("federated posterior averaging", FEDEP),
    "FedAvg": ("federated averaging", FEDAVG),
}


def methods(facts: Facts) -> Section:
    """The section.

    Args:
        facts: what the report is made from.
    """
    fit = facts.fit
    kind = type(fit.algorithm).__name__
    name, reference = METHODS.get(kind, (kind, None))
    references = [] if reference is None else [reference]
    number = len(fit.client_names)
    text = [
        f"We fitted the model{f' ({facts.model})' if facts.model else ''} to the data of {number} "
        f"client{'' if number == 1 else 's'} by {name}{' [1]' if references else ''}, without pooling rows: each "
        "client approximates the likelihood of its rows by a factor, and refits it given the factors of the others, "
        "until the posterior, the product of the prior and all factors, no longer changes.",
        "The clients exchanged factors with a server." if facts.over_network else "All clients ran in one process.",
        f"The run took {len(fit.history)} rounds and {'converged' if fit.converged else 'did not converge'}.",
        f"Intervals are central posterior intervals of probability {facts.level:g}.",
    ]
    if fit.verdict.verdict != UNKNOWN:
        references.append(PSIS)
        text.append(
            f"We compared the approximation with the posterior by importance sampling [{len(references)}]; the result "
            f"was: {fit.verdict.verdict}."
        )
    if any(own.dropped for own in facts.rows.values()):
        text.append("Rows with missing values in the columns of the model were left out (complete cases).")
    text.append(f"Computations were made with Cavity {facts.versions.get('cavity', '')}.")
    parts: list[Part] = [Paragraph(" ".join(text))]
    if (priors := _priors(facts)) is not None:
        parts.append(priors)
    parts += [Paragraph(f"[{i}] {text}") for i, text in enumerate(references, 1)]
    return Section("Methods", tuple(parts))


def _priors(facts: Facts) -> Table | None:
    """The scales of the priors, where there are few."""
    try:
        scales = facts.fit.prior_scales
    except CavityError:
        return None
    if len(scales) > 100:
        return None
    rows = tuple((printable(name), f"{scale:.4g}") for name, scale in scales.items())
    has_normal_prior = gaussian_or_none(facts.fit.server.prior) is not None and not server_entries(facts.fit.server)
    kind = "Normal priors: their standard deviations" if has_normal_prior else "Standard deviations of the priors"
    notes = ("The intercept's is that of the value where all columns are 0.",) if "intercept" in scales else ()
    return Table(f"{kind}, in the units of the data", ("parameter", "prior sd"), rows, notes)
