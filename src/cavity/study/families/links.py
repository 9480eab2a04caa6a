"""Links between a linear predictor and a probability, by name."""

from __future__ import annotations

from collections.abc import Collection

from cavity.errors import StudyError
from cavity.likelihoods import BernoulliCloglog, BernoulliLogit, BernoulliProbit
from cavity.study.sections import Section

LOGIT, PROBIT, CLOGLOG = "logit", "probit", "cloglog"
LINKS = (LOGIT, PROBIT, CLOGLOG)
RATIOS = {LOGIT: "odds ratio", PROBIT: None, CLOGLOG: "hazard ratio"}
TITLES = {LOGIT: "logistic regression", PROBIT: "probit regression", CLOGLOG: "complementary log-log regression"}
LARGEST_CURVATURE = {LOGIT: 0.25, PROBIT: 1.0}  # of one trial; that of cloglog has no bound
NO_CURVATURE_BOUND = "the curvature of a complementary log-log likelihood has no bound"


def read_link(section: Section, links: Collection[str] = LINKS) -> str:
    """The key `link` of `[model]`."""
    return section.word("link", links, LOGIT)


def check_link(link: str, links: Collection[str] = LINKS) -> None:
    """Raise StudyError if there is no such link."""
    if link not in links:
        raise StudyError(f"unknown link {link!r}; choose one of: {', '.join(links)}")


def trial_likelihood(link: str) -> BernoulliLogit | BernoulliProbit | BernoulliCloglog:
    """The likelihood of one outcome, 0 or 1."""
    return {LOGIT: BernoulliLogit, PROBIT: BernoulliProbit, CLOGLOG: BernoulliCloglog}[link]()
