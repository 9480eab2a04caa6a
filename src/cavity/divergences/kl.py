"""The Kullback-Leibler divergence KL(q : p), the one of ordinary variational inference."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtyping import Array, Float

from cavity.interfaces import Divergence


class KL(Divergence):
    """KL(q : p) = E_q[log q - log p].

    The objective leaves out the log-partition of p, which does not depend on q: a cavity may be improper.
    """

    asks_moments_only: ClassVar[bool] = True

    def __call__(self, q: Any, p: Any) -> Float[Array, ""]:
        return q.kl(p)

    def objective(self, q: Any, p: Any) -> Float[Array, ""]:
        return -q.entropy - q.cross(p)
