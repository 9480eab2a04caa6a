"""Steps in units of standard deviations, so that the units of a model's parameters do not matter.

The units are fixed at the start: units that followed q would shrink with it and grow with its noise. The mean of Z_G
moves in units of the first q(Z_G), the mean of a unit in its first standard deviation, a coupling in units of the
latter over the former. Logs of scales and correlations have no units.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from cavity.algorithms.ascent import Axes
from cavity.algorithms.bound import Globals
from cavity.core.types import Leaf
from cavity.distributions.structured import GlobalGaussian, LocalGaussian

# of its unit: the gradient of a coupling has the noise of Z_G times that of the unit, so larger steps are too noisy
COUPLING_SHARE = 0.1


class GlobalAxes(Axes):
    """The axes of the shared parameters.

    Attributes:
        root: of the covariance of the first q(Z_G).
    """

    root: Float[Leaf, "g g"]

    @classmethod
    def of(cls, q: GlobalGaussian) -> GlobalAxes:
        """The axes of q, or of its scales where it has no correlations of its own."""
        return cls(q.axes)

    def along(self, gradient: Globals) -> Globals:
        return eqx.tree_at(lambda g: g.q.mean, gradient, jnp.asarray(self.root).T @ gradient.q.mean)

    def back(self, update: Globals) -> Globals:
        return eqx.tree_at(lambda u: u.q.mean, update, jnp.asarray(self.root) @ update.q.mean)


class LocalAxes(Axes):
    """The axes of a client's own parameters. The map is elementwise, so `along` and `back` are the same.

    Attributes:
        scale: standard deviations of the first q(Z_u | Z_G).
        per_global: one over those of the first q(Z_G).
    """

    scale: Float[Leaf, "u l"]
    per_global: Float[Leaf, " g"]

    @classmethod
    def of(cls, own: LocalGaussian, shared: GlobalGaussian) -> LocalAxes:
        """The units from a client's first q and the first q(Z_G)."""
        root = GlobalAxes.of(shared).root
        return cls(jnp.exp(own.log_scale), 1.0 / jnp.sqrt(jnp.sum(root**2, axis=1)))

    def along(self, gradient: LocalGaussian) -> LocalGaussian:
        return self._scaled(gradient)

    def back(self, update: LocalGaussian) -> LocalGaussian:
        return self._scaled(update)

    def _scaled(self, change: LocalGaussian) -> LocalGaussian:
        scale = jnp.asarray(self.scale)
        slope = COUPLING_SHARE * jnp.asarray(self.per_global)

        def times(leaf: Array | None, factor: Leaf) -> Array | None:
            return None if leaf is None else leaf * factor

        return LocalGaussian(
            mean=change.mean * scale,
            log_scale=change.log_scale,
            coupling=times(change.coupling, scale[..., None] * slope),
            below=change.below,
            widening=times(change.widening, slope),
        )


class AllAxes(Axes):
    """Global and local axes, for a client that optimises both (SFVI-Avg)."""

    shared: GlobalAxes
    own: LocalAxes

    def along(self, gradient: tuple[Globals, LocalGaussian]) -> tuple[Globals, LocalGaussian]:
        return self.shared.along(gradient[0]), self.own.along(gradient[1])

    def back(self, update: tuple[Globals, LocalGaussian]) -> tuple[Globals, LocalGaussian]:
        return self.shared.back(update[0]), self.own.back(update[1])
