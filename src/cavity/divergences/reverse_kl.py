"""The reverse Kullback-Leibler divergence: a posterior that covers its cavity (FedGVI, appendix D.1)."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Array, Float

from cavity.core import Divergence
from cavity.distributions.gaussian import Gaussian
from cavity.distributions.natural import require_proper
from cavity.errors import UnsuitableError


class ReverseKL(Divergence):
    """KL(p : q) = E_p[log p - log q]; the limit of the alpha-Renyi divergence at alpha = 0. It needs a proper p."""

    needs_proper_cavity: ClassVar[bool] = True

    def check(self, family: Any) -> None:
        if not isinstance(family, Gaussian):
            raise UnsuitableError(
                f"the reverse KL divergence is for Gaussian families, not {type(family).__name__}; use KL"
            )

    def __call__(self, q: Any, p: Any) -> Float[Array, ""]:
        return require_proper(p, "take the reverse KL divergence from").kl(q)

    def objective(self, q: Any, p: Any) -> Float[Array, ""]:
        return p.kl(q)
