"""Small parts that tests put in the place of a user's own: clients that are loaded when asked for, a likelihood."""

import jax.numpy as jnp

from cavity.core import ClientSource, Likelihood


class LoadedWhenAsked(ClientSource):
    """Clients of a mapping, one load at a time."""

    def __init__(self, clients):
        self.clients = clients

    @property
    def names(self):
        return list(self.clients)

    def load(self, names):
        return [self.clients[name] for name in names]


class CauchyNoise(Likelihood):
    """y ~ Cauchy(f, 1), up to a constant: not log-concave, and with no abilities beyond what every likelihood has."""

    @property
    def num_predictors(self):
        return 1

    def log_prob(self, f, y):
        return -jnp.log1p((y - f[..., 0]) ** 2)

    def mean(self, f):
        return f[..., 0]

    def check(self, y):
        return None
