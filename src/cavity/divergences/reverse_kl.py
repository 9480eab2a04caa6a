"""The reverse Kullback-Leibler divergence: a posterior that covers its cavity (FedGVI, appendix D.1)."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Array, Float

from cavity.distributions.natural import require_proper
from cavity.interfaces import Divergence


class ReverseKL(Divergence):
    """KL(p : q) = E_p[log p - log q]; the limit of the alpha-Renyi divergence at alpha = 0. It needs a proper p."""

    needs_proper_cavity: ClassVar[bool] = True

    def __call__(self, q: Any, p: Any) -> Float[Array, ""]:
        return require_proper(p, "take the reverse KL divergence from").kl(q)

    def objective(self, q: Any, p: Any) -> Float[Array, ""]:
        return p.kl(q)
