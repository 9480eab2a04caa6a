"""The reverse Kullback-Leibler divergence: a posterior that covers its cavity (FedGVI, appendix D.1)."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Array, Float

from cavity.core import Distribution, Divergence
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.natural import require_proper
from cavity.divergences.families import require_gaussian


class ReverseKL(Divergence):
    """KL(p : q) = E_p[log p - log q]; the limit of the alpha-Renyi divergence at alpha = 0. It needs a proper p."""

    needs_proper_cavity: ClassVar[bool] = True

    def check(self, family: Distribution) -> None:
        require_gaussian(family, "the reverse KL divergence")

    def __call__(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        return require_proper(p, "take the reverse KL divergence from").kl(q)

    def objective(self, q: Gaussian, p: Gaussian) -> Float[Array, ""]:
        return p.kl(q)
