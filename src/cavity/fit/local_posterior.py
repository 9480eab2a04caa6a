"""Posteriors of models with local latents: global latents at the server, local ones at each client.

SFVI has a Gaussian q(Z_u | Z_G). Where its bound has K importance samples per unit, draws of a unit's latents are
resampled from K by their weights. This is the density that the bound was fitted with, closer to the posterior than
q(Z_u | Z_G) itself.

PVI has integrated the latents out. A draw of a unit's latents is one of p(Z_u | Z_G, y_u) at a draw of the posterior of
Z_G, resampled in the same way from K draws of Laplace's approximation at that Z_G.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from cavity.algorithms.bound import Globals
from cavity.core import Data, LatentModel
from cavity.core.intervals import DEFAULT_LEVEL, check_level
from cavity.distributions.structured import DenseGlobal, LocalGaussian
from cavity.distributions.trees import entry_names
from cavity.errors import CavityError
from cavity.fit import method
from cavity.fit.fit import Fit
from cavity.fit.summary import Summary, summarise_draws
from cavity.ledger import client as client_ledger
from cavity.models.mixed.conditional import ConditionalLaplace
from cavity.models.mixed.marginal import MarginalModel
from cavity.models.prediction import DEFAULT_DRAWS, Prediction, prediction_from_draws

Labels = tuple[Hashable, ...]
RESAMPLED = 50  # draws of Laplace's approximation, of which one is taken


def global_draws(model: LatentModel, shared: Globals, num_draws: int, seed: int = 0) -> tuple[Array, dict[str, Array]]:
    """Draws of the global latents.

    Args:
        model: the model.
        shared: q(Z_G) and theta.
        num_draws: number of draws.
        seed: random seed.

    Returns:
        Draws of Z_G on the unconstrained scale, and by name as the model's author wrote them, with the learned
        parameters.
    """
    with jax.enable_x64(True):
        shared = jax.tree.map(jnp.asarray, shared)
        noise = jax.random.normal(jax.random.key(seed), (num_draws, shared.q.noise_size))
        z = jax.vmap(shared.q.draw)(noise)
        return z, jax.vmap(lambda z: model.constrain(shared.theta, z))(z)


def as_arviz(draws: dict[str, Array]) -> Any:
    """Draws by name for ArviZ.

    Both kinds of result have them as `.posterior[name]`. The names of a `DataTree` cannot have a slash: there it
    becomes a bar, as in `a|b`.

    Args:
        draws: name -> values, with the draws as leading axis.

    Returns:
        `InferenceData` of ArviZ 0.x, a `DataTree` of ArviZ 1.x.
    """
    import arviz

    chains = {name: np.asarray(values)[None] for name, values in draws.items()}
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.from_dict(posterior=chains)
    return arviz.from_dict({"posterior": {name.replace("/", "|"): values for name, values in chains.items()}})


def local_posterior(fit: Fit, name: str) -> LocalPosterior:
    """A client's posterior of its own local latents.

    Args:
        fit: a fit with local latents, with the client's data in memory.
        name: the client.

    Returns:
        The local posterior.
    """
    marginal = method.marginal_or_none(fit.algorithm)
    algorithm = None if marginal is not None else method.structured(fit.algorithm)
    clients = fit.population("look at a client's latents").data
    if clients is None or name not in fit.client_names or name not in clients:
        raise CavityError(f"no client {name!r}; choose one of: {', '.join(fit.client_names)}")
    if algorithm is None:
        assert marginal is not None
        return _integrated_out(marginal, fit, name, clients[name])
    return LocalPosterior(
        name=name,
        model=algorithm.model,
        shared=fit.posterior,
        q=local_family(fit, name),
        data=clients[name],
        labels=fit.labels.get(name),
        num_samples=algorithm.structured.num_samples,
    )


def _integrated_out(model: MarginalModel, fit: Fit, name: str, data: Data) -> LocalPosterior:
    """The local posterior of a fit of PVI, whose clients integrate their latents out."""
    with jax.enable_x64(True):
        q = jax.tree.map(jnp.asarray, fit.posterior)
        shared = Globals(DenseGlobal.from_root(q.mean, jnp.linalg.cholesky(q.covariance)), model.latent.theta)
        own = ConditionalLaplace(model.latent, model.latent.theta, q.mean, data)
    return LocalPosterior(name, model.latent, shared, own, data, fit.labels.get(name), RESAMPLED)


def local_family(fit: Fit, name: str) -> LocalGaussian:
    """q(Z_L | Z_G) of a client after its last accepted reply, centred at the server's mean of Z_G.

    Args:
        fit: a fit of SFVI or SFVI-Avg.
        name: the client.

    Returns:
        The Gaussian of its local latents.
    """
    state = (fit.client_states or {})[name]
    kept = client_ledger.settled_local(state, fit.server.clients[name].settled.sequence)
    with jax.enable_x64(True):
        q, mean = jax.tree.map(jnp.asarray, (kept.q, fit.posterior.q.mean))
        return q.recentred(mean - kept.centre) if hasattr(kept, "centre") else q


@dataclass(frozen=True)
class LocalPosterior:
    """A client's posterior of its own local latents. It is computed where the client's data are, and stays there.

    Attributes:
        name: the client.
        model: the model.
        shared: q(Z_G) and theta, as the server has them.
        q: q(Z_L | Z_G), from which draws are resampled.
        data: the client's rows.
        labels: the names of its units; None where they have none.
        num_samples: K.
    """

    name: str
    model: LatentModel
    shared: Globals
    q: LocalGaussian | ConditionalLaplace
    data: Data
    labels: Labels | None
    num_samples: int = 1

    def latents(self, num_draws: int = 1000, seed: int = 0) -> tuple[Array, Array]:
        """Draws on the unconstrained scale.

        Args:
            num_draws: number of draws.
            seed: random seed.

        Returns:
            Draws of Z_G [s, g], and of the units' latents [s, u, l].
        """
        with jax.enable_x64(True):
            key = jax.random.key(seed)
            z_global, _ = global_draws(self.model, self.shared, num_draws, seed)
            keys = jax.random.split(jax.random.fold_in(key, 1), num_draws)
            return z_global, _local_draws(self.model, self.shared, self.q, self.data, self.num_samples, z_global, keys)

    def draws(self, num_draws: int = 1000, seed: int = 0) -> dict[str, Array]:
        """Draws of the local latents as the model's author wrote them.

        Args:
            num_draws: number of draws.
            seed: random seed.

        Returns:
            Name -> draws [s, u, ...].
        """
        z_global, z_local = self.latents(num_draws, seed)
        theta = jax.tree.map(jnp.asarray, self.shared.theta)
        with jax.enable_x64(True):
            each = jax.vmap(lambda g, z: self.model.constrain_local(theta, g, z, self.data))
            return each(z_global, z_local)

    def summary(self, level: float = DEFAULT_LEVEL, num_draws: int = 4000, seed: int = 0) -> Summary:
        """Mean, standard deviation and central interval of every local latent, by the name of its unit.

        Args:
            level: the probability that each interval has.
            num_draws: number of draws from which they are computed.
            seed: random seed.

        Returns:
            The summary.
        """
        level = check_level(level)
        if self.model.local_size(self.data) == 0:
            raise CavityError(f"client {self.name!r} has no local latents; the global ones are in `fit.summary()`")
        draws = self.draws(num_draws, seed)
        names, columns = [], []
        for site, values in draws.items():
            flat = np.asarray(values).reshape(num_draws, values.shape[1], -1)
            for u in range(flat.shape[1]):
                unit = u if self.labels is None else self.labels[u]
                rest = [""] if flat.shape[2] == 1 else [f",{i}" for i in range(flat.shape[2])]
                names += [f"{site}[{unit}{suffix}]" for suffix in rest]
                columns += list(flat[:, u].T)
        return summarise_draws(np.stack(columns, axis=1), tuple(names), level, (f"client {self.name!r}",))

    def to_arviz(self, num_draws: int = 4000, seed: int = 0) -> Any:
        """Draws of the local latents for ArviZ.

        Args:
            num_draws: number of draws.
            seed: random seed.

        Returns:
            `InferenceData` of ArviZ 0.x, a `DataTree` of ArviZ 1.x.
        """
        return as_arviz(self.draws(num_draws, seed))

    def predict(
        self, x: PyTree, *, level: float = DEFAULT_LEVEL, num_draws: int | None = None, seed: int = 0
    ) -> Prediction:
        """The expected outcome at new rows of this client: of its own units, or of new units.

        Args:
            x: features of the new rows.
            level: the probability that each interval has.
            num_draws: number of draws; None is the default.
            seed: random seed.

        Returns:
            The prediction.
        """
        level = check_level(level)
        z_global, z_local = self.latents(num_draws or DEFAULT_DRAWS, seed)
        return predict_rows(self.model.alone(self.data), self.shared, z_global, x, seed, level, z_local, self.labels)


def predict_rows(
    model: LatentModel,
    shared: Globals,
    z_global: Array,
    x: PyTree,
    seed: int,
    level: float = DEFAULT_LEVEL,
    z_local: Array | None = None,
    labels: Labels | None = None,
) -> Prediction:
    """The expected outcome over draws.

    Args:
        model: the model.
        shared: q(Z_G) and theta.
        z_global: draws of Z_G.
        x: features of the new rows.
        seed: random seed.
        level: the probability that each interval has.
        z_local: draws of the local latents; latents of other units are drawn from p(Z_u | Z_G).
        labels: the names of the units of `z_local`.

    Returns:
        The prediction.
    """
    expected = getattr(model, "expected_outcome", None)
    if expected is None:
        raise CavityError(f"{type(model).__name__} has no predictions")
    with jax.enable_x64(True):
        theta = jax.tree.map(jnp.asarray, shared.theta)
        keys = jax.random.split(jax.random.key(seed + 1), len(z_global))
        if z_local is None:
            outcomes = jax.vmap(lambda key, g: expected(theta, g, x, key, None, None))(keys, z_global)
        else:
            outcomes = jax.vmap(lambda key, g, z: expected(theta, g, x, key, z, labels))(keys, z_global, z_local)
        return prediction_from_draws(outcomes).with_level(level)


@eqx.filter_jit
def _local_draws(
    model: LatentModel,
    shared: Globals,
    q: LocalGaussian | ConditionalLaplace,
    data: Data,
    num_samples: int,
    z_global: Array,
    keys: Array,
) -> Array:
    shared, q, data = jax.tree.map(jnp.asarray, (shared, q, data))
    assert data.units is not None
    if model.local_size(data) == 0:
        return jnp.zeros((len(z_global), len(data.units.weight), 0), z_global.dtype)

    def one(key: PRNGKeyArray, z: Array) -> Array:
        noise_key, pick_key, model_key = jax.random.split(key, 3)
        here, unmoved = q.given(z - shared.q.mean), jnp.zeros_like(z)
        noise = jax.random.normal(noise_key, (num_samples, *here.mean.shape), here.mean.dtype)
        candidates = here.draw(unmoved, noise)
        if num_samples == 1:
            return candidates[0]
        joint = jax.vmap(lambda c: model.log_joint(shared.theta, z, c, data, model_key))(candidates)
        log_w = joint - here.log_prob(candidates, unmoved)
        picked = jax.random.categorical(pick_key, log_w, axis=0)
        return jnp.take_along_axis(candidates, picked[None, :, None], axis=0)[0]

    return jax.lax.map(lambda args: one(*args), (keys, z_global), batch_size=50)


def latent_names(draws: dict[str, Array]) -> tuple[str, ...]:
    """One name per entry of a draw.

    Args:
        draws: name -> values, with the draws as leading axis.

    Returns:
        The names, in the order of the raveled draw.
    """
    return entry_names(jax.tree.map(lambda leaf: leaf[0], draws))
