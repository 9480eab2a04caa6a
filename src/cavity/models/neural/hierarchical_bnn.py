"""Personalised Bayesian networks: one hidden layer, part of which belongs to each client (SFVI, section 4.1).

    f_j(x) = softmax(relu(x W1_j) W2_j),    W2_j ~ N(0, 1) at every client

| model | first layer | Z_G | Z_L of a client |
| --- | --- | --- | --- |
| `hierarchical_bnn` | W1_j = mu + sigma eps_j | mu ~ N(0, 1), log sigma with sigma ~ N+(0, 1) | W2_j, eps_j ~ N(0, 1) |
| `fedpop` | W1_j = W1 | W1 ~ N(0, 1) | W2_j |

The paper prints sigma with indices in one place and as a scalar in another, and W1_j among the local latents: sigma is
a scalar here, and Z_L is (W2_j, eps_j). There are no biases. Each client is one unit. Data are pairs (x, y) with
classes 0, 1, ... as outcomes; all computations are in single precision.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray, PyTree

from cavity.core import Data, LatentModel
from cavity.core.checks import network_features, network_rows
from cavity.distributions.structured import GlobalGaussian, LocalGaussian
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError, DataError
from cavity.models.glm.columns import units_of

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
START_KEY = 0x5F71
START_SCALE = 0.03  # of the weights: wider, and the first gradients are noise
START_SIGMA = 0.05


class ClientNetwork(LatentModel):
    """What both models share. `sizes` are the numbers of features, hidden units and classes."""

    sizes: eqx.AbstractVar[tuple[int, int, int]]

    @abc.abstractmethod
    def layers(
        self, z_global: Float[Array, " g"], z_local: Float[Array, " l"]
    ) -> tuple[Float[Array, "p h"], Float[Array, "h c"]]:
        """W1 and W2 of a client."""

    @property
    def theta(self) -> None:
        return None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        shapes = jax.eval_shape(lambda z: self.constrain(None, z), jnp.zeros(self.num_global, jnp.float32))
        return entry_names(shapes)

    def logits(
        self, z_global: Float[Array, " g"], z_local: Float[Array, " l"], x: Float[Array, "n p"]
    ) -> Float[Array, "n c"]:
        """The input of the softmax, for each row."""
        first, second = self.layers(z_global, z_local)
        return jax.nn.relu(x @ first) @ second

    def log_joint(
        self, theta: PyTree, z_global: Float[Array, " g"], z_local: Float[Array, "u l"], data: Data, key: PRNGKeyArray
    ) -> Float[Array, " u"]:
        x, y = data.batch
        dtype = z_global.dtype
        log_prob = jax.nn.log_softmax(self.logits(z_global, z_local[0], jnp.asarray(x, dtype)))
        right = jnp.take_along_axis(log_prob, jnp.asarray(y, jnp.int32)[:, None], axis=1)[:, 0]
        likelihood = jnp.sum(right * jnp.asarray(data.weight, dtype))
        return _standard_normal(z_local).at[0].add(likelihood)

    def prepare(self, value: PyTree) -> Data:
        x, y = network_rows(value, self.sizes[0])
        num_classes = self.sizes[2]
        if wrong := sorted(set(y.tolist()) - set(range(num_classes))):
            raise DataError(f"classes must be 0 to {num_classes - 1}; y holds {wrong[0]:g}: number them from 0")
        return Data((x, y.astype(np.int32)), np.ones(len(y)), np.asarray(len(y)), units_of(None, 1))

    def unit_labels(self, value: PyTree) -> Sequence[Hashable] | None:
        return None


class HierarchicalBNN(ClientNetwork):
    """First layers that vary around a common one; made by `hierarchical_bnn`.

    Z_G is (mu, log sigma), Z_L of a client (W2, eps), matrices row by row.
    """

    sizes: tuple[int, int, int] = eqx.field(static=True)

    @property
    def num_global(self) -> int:
        return self.sizes[0] * self.sizes[1] + 1

    @property
    def num_local(self) -> int:
        return self.sizes[1] * self.sizes[2] + self.sizes[0] * self.sizes[1]

    @property
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        mean, scale = _start(self.sizes)
        log_sigma = jnp.full(1, math.log(START_SIGMA), jnp.float32)
        return jnp.concatenate([mean, log_sigma]), jnp.append(scale, scale[:1])

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        mu, log_sigma = z_global[:-1], z_global[-1]
        # N+(sigma; 0, 1), and the log determinant of sigma = exp(log sigma)
        half_normal = math.log(2.0) - HALF_LOG_2PI - 0.5 * jnp.exp(2.0 * log_sigma)
        return _standard_normal(mu) + half_normal + log_sigma

    def layers(
        self, z_global: Float[Array, " g"], z_local: Float[Array, " l"]
    ) -> tuple[Float[Array, "p h"], Float[Array, "h c"]]:
        num_features, hidden, num_classes = self.sizes
        second, eps = z_local[: hidden * num_classes], z_local[hidden * num_classes :]
        first = z_global[:-1] + jnp.exp(z_global[-1]) * eps
        return first.reshape(num_features, hidden), second.reshape(hidden, num_classes)

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        return {"mu": z_global[:-1].reshape(self.sizes[:2]), "sigma": jnp.exp(z_global[-1])}


class FedPop(ClientNetwork):
    """One first layer for all; made by `fedpop`. Z_G is W1, Z_L of a client W2, row by row."""

    sizes: tuple[int, int, int] = eqx.field(static=True)

    @property
    def num_global(self) -> int:
        return self.sizes[0] * self.sizes[1]

    @property
    def num_local(self) -> int:
        return self.sizes[1] * self.sizes[2]

    @property
    def start(self) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        return _start(self.sizes)

    def log_prior(self, theta: PyTree, z_global: Float[Array, " g"]) -> Float[Array, ""]:
        return _standard_normal(z_global)

    def layers(
        self, z_global: Float[Array, " g"], z_local: Float[Array, " l"]
    ) -> tuple[Float[Array, "p h"], Float[Array, "h c"]]:
        return z_global.reshape(self.sizes[:2]), z_local.reshape(self.sizes[1:])

    def constrain(self, theta: PyTree, z_global: Float[Array, " g"]) -> dict[str, Array]:
        return {"W1": z_global.reshape(self.sizes[:2])}


def hierarchical_bnn(num_features: int, hidden: int, num_classes: int) -> HierarchicalBNN:
    """Clients' first layers W1_j = mu + sigma eps_j vary around a common mu; second layers are their own.

    Fit it with `SFVI(model, dtype=jnp.float32, batch_size=..., coupled=False, dense=False, local_scale=0.1)`.

    Example:
        >>> model = hierarchical_bnn(4, 3, 2)
        >>> model.num_global, model.num_local
        (13, 18)
    """
    return HierarchicalBNN(_checked(num_features, hidden, num_classes))


def fedpop(num_features: int, hidden: int, num_classes: int) -> FedPop:
    """FedPop, fully Bayesian: the first layer is the same for all clients, second layers are their own.

    Example:
        >>> model = fedpop(4, 3, 2)
        >>> model.num_global, model.num_local
        (12, 6)
    """
    return FedPop(_checked(num_features, hidden, num_classes))


@runtime_checkable
class WithGlobalGaussian(Protocol):
    """The posterior of a fit by SFVI, which has q(Z_G) as `q`."""

    @property
    def q(self) -> GlobalGaussian:
        """The Gaussian over Z_G."""
        ...


def predict_client(
    model: ClientNetwork,
    globals_: WithGlobalGaussian,
    local_q: LocalGaussian,
    x: PyTree,
    key: PRNGKeyArray,
    num_draws: int = 20,
) -> Float[Array, "n c"]:
    """Probabilities of the classes at a client's rows, averaged over draws of q(Z_G) and q(Z_L | Z_G).

    Args:
        model: one of the two.
        globals_: what all clients share, with q(Z_G) as `q`: the posterior of a fit.
        local_q: the client's own q(Z_L | Z_G).
        x: rows of features.
        key: of the draws.
        num_draws: how many.
    """
    q, own = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (globals_.q, local_q))
    return _predict(model, q, own, jnp.asarray(network_features(x, model.sizes[0])), jax.random.split(key, num_draws))


@eqx.filter_jit
def _predict(model: ClientNetwork, q: GlobalGaussian, own: LocalGaussian, x: Array, keys: Key[Array, " s"]) -> Array:
    def one(total: Array, key: PRNGKeyArray) -> tuple[Array, None]:
        global_key, local_key = jax.random.split(key)
        z_global = q.draw(jax.random.normal(global_key, (q.noise_size,), jnp.float32))
        noise = jax.random.normal(local_key, own.mean.shape, jnp.float32)
        z_local = own.draw(z_global - q.mean, noise)
        return total + jax.nn.softmax(model.logits(z_global, z_local[0], x)), None

    total, _ = jax.lax.scan(one, jnp.zeros((len(x), model.sizes[2]), jnp.float32), keys)
    return total / len(keys)


def _standard_normal(z: Float[Array, "*u d"]) -> Float[Array, "*u"]:
    return -0.5 * jnp.sum(z**2, axis=-1) - z.shape[-1] * HALF_LOG_2PI


def _start(sizes: tuple[int, int, int]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Small weights that differ between hidden units and are the same for all clients (W2 may then start at 0)."""
    num_features, hidden, _ = sizes
    noise = jax.random.normal(jax.random.key(START_KEY), (num_features * hidden,), jnp.float32)
    return noise * math.sqrt(1.0 / num_features), jnp.full_like(noise, START_SCALE)


def _checked(*sizes: int) -> tuple[int, int, int]:
    num_features, hidden, num_classes = sizes
    if min(num_features, hidden) < 1 or num_classes < 2:
        raise CavityError(
            f"a network needs at least one feature and hidden unit and two classes, not {num_features}, {hidden} and "
            f"{num_classes}"
        )
    return num_features, hidden, num_classes
