"""The Kullback-Leibler divergence KL(q : p) of ordinary variational inference, and its multiples."""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from cavity.core import Distribution, MultipleOfKL
from cavity.core.fields import Number, as_number, require


class KL(MultipleOfKL):
    """KL(q : p) = E_q[log q - log p].

    The objective omits the log-partition of p, which does not depend on q, so that a cavity may be improper.
    """

    asks_moments_only: ClassVar[bool] = True
    is_kl: ClassVar[bool] = True

    @property
    def weight(self) -> Number:
        return 1.0

    def __call__(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        return q.kl(p)

    def objective(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        return -q.entropy - q.cross(p)


class WeightedKL(MultipleOfKL):
    """KL(q : p) / w (FedGVI, section 3.3): with w above 1 the data count more than the cavity, below 1 less.

    Attributes:
        w: positive. KL with the loss times w has the same minimisers.
    """

    asks_moments_only: ClassVar[bool] = True
    w: Float[Array, ""] = eqx.field(converter=as_number)

    def __check_init__(self) -> None:
        require(self.w, lambda w: w > 0, "the weight w of KL / w must be positive")

    @property
    def weight(self) -> Number:
        return 1.0 / self.w

    def __call__(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        value = q.kl(p)
        return value / self.w.astype(value.dtype)

    def objective(self, q: Distribution, p: Distribution) -> Float[Array, ""]:
        value = KL().objective(q, p)
        return value / self.w.astype(value.dtype)
