"""NumPyro models over clients against NumPyro's own density, and what cannot be carried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints, transforms
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, potential_energy, unconstrain_fn

from cavity.core import Data
from cavity.errors import CavityError, DataError
from cavity.models.numpyro.from_numpyro import numpyro_model
from cavity.simulation.stacks import pad
from tests.marks import thorough

pytestmark = pytest.mark.usefixtures("quick_to_compile")

NUM_ROWS, NUM_UNITS = 12, 5
KEY = jax.random.key(0)
sample, plate = numpyro.sample, numpyro.plate
BY_COUNTY = {"unit": "county", "num_units": "num_counties"}


@lru_cache
def column(name: str) -> np.ndarray:
    rng = np.random.default_rng(sum(map(ord, name)))
    # no client has its units in the order of the pool
    county = np.array(["e", "b", "a", "c", "d", "b", "b", "a", "e", "c", "d", "d"])
    made: dict[str, Callable[[], np.ndarray]] = {
        "county": lambda: county,
        "patient": lambda: np.arange(NUM_ROWS) + 100,
        "client": lambda: np.arange(NUM_ROWS) % 3,
        "x": lambda: rng.normal(size=NUM_ROWS),
        "pair": lambda: rng.normal(size=(NUM_ROWS, 2)),
        "y": lambda: rng.normal(size=NUM_ROWS),
        "count": lambda: rng.poisson(2.0, NUM_ROWS),
        "four": lambda: rng.normal(size=(NUM_ROWS, 4)),
        "seen": lambda: rng.random(NUM_ROWS) < 0.6,
        "gaps": lambda: np.where(rng.random((NUM_ROWS, 2)) < 0.3, np.nan, rng.normal(size=(NUM_ROWS, 2))),
    }
    return made[name]()


def columns(*names: str) -> dict[str, np.ndarray]:
    return {name: column(name) for name in names}


def plain(x, y):
    """No plate at all."""
    level = sample("level", dist.Normal(0.0, 2.0))
    slope = sample("slope", dist.StudentT(3.0, 0.0, 1.0))
    sample("y", dist.Normal(level + slope * x, 0.7), obs=y)


def positives(x, y):
    scale = sample("scale", dist.HalfCauchy(1.5))
    rate = sample("rate", dist.LogNormal(0.2, 0.5))
    share = sample("share", dist.Beta(2.0, 3.0))
    power = sample("power", dist.Gamma(2.0, 1.5))
    both = sample("both", dist.LogNormal(0.0, 1.0).expand([2]))
    with plate("rows", len(x)):
        sample("y", dist.Normal(rate * x * both[0] + share, scale + power * both[1]), obs=y)


def matrices(pair):
    """Shapes that change on the way to the unconstrained scale."""
    weights = sample("weights", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    cuts = sample("cuts", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    with plate("rows", len(pair)):
        sample("pair", dist.MultivariateNormal(weights[:2] + cuts, scale_tril=jnp.eye(2)), obs=pair)


def slopes(county, x, y, num_counties):
    """A vector of two per unit, correlated."""
    mean = sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    root = sample("root", dist.LKJCholesky(2, 2.0))
    with plate("counties", num_counties):
        own = sample("own", dist.MultivariateNormal(mean, scale_tril=scale[:, None] * root))
    with plate("rows", len(x)):
        sample("y", dist.Normal(own[county, 0] + own[county, 1] * x, 0.5), obs=y)


def matrix_locals(county, x, y, num_counties):
    """Local latents whose number of axes changes on the way, and a global scale inside a plate of two."""
    with plate("two", 2):
        scale = sample("scale", dist.HalfNormal(1.0))
    with plate("counties", num_counties):
        root = sample("root", dist.LKJCholesky(2, 2.0))
        weights = sample("weights", dist.Dirichlet(jnp.ones(3)))
    sample("y", dist.Normal(root[county, 1, 0] * x + weights[county, 0], scale[0] + scale[1]), obs=y)


def grids(four):
    """Rows are units, each with four items; the items come first in the arrays of one site and last in another."""
    spread = sample("spread", dist.HalfNormal(1.0))
    with plate("rows", len(four), dim=-2):
        trait = sample("trait", dist.Normal(0.0, spread))
        with plate("items", 4, dim=-1):
            own = sample("own", dist.Normal(trait, 1.0))
            sample("four", dist.Normal(own, 0.3), obs=four)
    with plate("other items", 4, dim=-2), plate("other rows", len(four), dim=-1):
        sample("again", dist.Laplace(trait[:, 0], 1.0), obs=four.T)


def labelled(x, y):
    """Rows are units that have names, in a column that the function does not take."""
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("patients", len(x)):
        own = sample("own", dist.Exponential(jnp.exp(level)))
        sample("y", dist.Normal(own * x, 1.0), obs=y)


def positive_locals(county, x, count, num_counties):
    """Local latents that depend on local ones, all positive, on a plate of axis -2."""
    shape = sample("shape", dist.LogNormal(0.0, 1.0))
    with plate("counties", num_counties, dim=-2):
        rate = sample("rate", dist.Gamma(shape, 1.0))
        top = sample("top", dist.Uniform(0.0, rate))
        more = sample("more", dist.Normal(top, 1.0).expand([num_counties, 3]))
    sample("count", dist.Poisson(jnp.exp(0.1 * x + more[county, 1]) + top[county, 0]), obs=count)


def dependent_support(x, y):
    top = sample("top", dist.LogNormal(1.0, 0.5))
    under = sample("under", dist.Uniform(0.0, top))
    between = sample("between", dist.TruncatedNormal(0.5, 1.0, low=-top, high=under))
    sample("y", dist.Normal(between * x, under), obs=y)


def improper(x, y):
    level = sample("level", dist.ImproperUniform(constraints.real, (), ()))
    scale = sample("scale", dist.ImproperUniform(constraints.positive, (), (2,)))
    flat = sample("flat", dist.Normal(0.0, 1.0).mask(False))
    sample("y", dist.Normal(level + flat * x, scale[0] + scale[1]), obs=y)


def improper_locals(county, x, y, num_counties):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("counties", num_counties):
        own = sample("own", dist.ImproperUniform(constraints.positive, (), ()))
    sample("y", dist.Normal(level + own[county] * x, 1.0), obs=y)


def learned(x, y):
    """Parameters that are learned: a number, an array made by JAX, one made from a key, one in a global prior."""
    scale = numpyro.param("scale", 0.7, constraint=constraints.positive)
    mean = numpyro.param("mean", jnp.ones(2))
    knob = numpyro.param("knob", lambda key: jnp.full(2, 0.25), constraint=constraints.unit_interval)
    level = sample("level", dist.Normal(mean[0] * knob[0], 1.0))
    sample("y", dist.Normal(level + mean[1] * x + knob[1], scale), obs=y)


def factors(county, x, y, num_counties):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("counties", num_counties):
        own = sample("own", dist.Normal(0.0, 1.0))
    middle = numpyro.deterministic("middle", level + own[county])
    with plate("rows", len(x)):
        numpyro.factor("penalty", -jnp.abs(y - middle))
        sample("y", dist.Normal(middle * x, 1.0), obs=y)
    with plate("two", 2, dim=-2), plate("again", len(x), dim=-1):
        numpyro.factor("constant", jnp.array([[0.3], [0.4]]))


def gappy(county, gaps, seen, y, num_counties):
    """What is not there is masked, in two ways."""
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("counties", num_counties):
        own = sample("own", dist.Normal(level, 1.0))
    with plate("rows", len(gaps), dim=-2), plate("two", 2, dim=-1), handlers.mask(mask=~jnp.isnan(gaps)):
        sample("gaps", dist.Normal(own[county][:, None], jnp.array([0.5, 2.0])), obs=gaps)
    with plate("once more", len(gaps)), handlers.mask(mask=seen & ~jnp.isnan(gaps[:, 0])):
        sample("y", dist.Normal(own[county] + level, 1.0), obs=y)


def scaled(x, y):
    """Scales and masks, also of latents with a bijection."""
    with handlers.scale(scale=3.0):
        scale = sample("scale", dist.HalfNormal(1.0))
    with handlers.mask(mask=False):
        free = sample("free", dist.HalfNormal(1.0))
    with handlers.scale(scale=0.5), plate("rows", len(x)):
        own = sample("own", dist.LogNormal(0.0, scale))
        sample("y", dist.Normal(own * free * x, scale), obs=y)


def transformed(pair, y):
    base = dist.Normal(0.0, 1.0).expand([2]).to_event(1)
    slope = sample("slope", dist.TransformedDistribution(base, transforms.AffineTransform(jnp.array([1.0, 2.0]), 0.5)))
    squeezed = sample("squeezed", dist.TransformedDistribution(dist.Normal(0.0, 1.0), transforms.SigmoidTransform()))
    with handlers.scope(prefix="inner"):
        scale = sample("scale", dist.HalfNormal(1.0))
    outcome = dist.TransformedDistribution(dist.Normal(pair @ slope, scale), transforms.AffineTransform(squeezed, 2.0))
    sample("y", outcome, obs=y)


def silo_own(pair, y):
    """Weights of the client's own, and a positive number."""
    spread = sample("spread", dist.HalfNormal(1.0))
    w = sample("w", dist.Normal(0.0, spread).expand([2]).to_event(1))
    noise = sample("noise", dist.LogNormal(0.0, 1.0))
    sample("y", dist.Normal(pair @ w, noise), obs=y)


def silo_own_pooled(pair, y, client, num_clients):
    spread = sample("spread", dist.HalfNormal(1.0))
    with plate("clients", num_clients):
        w = sample("w", dist.Normal(0.0, spread).expand([2]).to_event(1))
        noise = sample("noise", dist.LogNormal(0.0, 1.0))
    sample("y", dist.Normal(jnp.sum(pair * w[client], -1), noise[client]), obs=y)


def intercepts(county, x, y, num_counties):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("counties", num_counties):
        own = sample("own", dist.Normal(level, 0.5))
    sample("y", dist.Normal(own[county] + x, 1.0), obs=y)


def series(four):
    """Rows are patients with a state that moves over four visits."""
    drift = sample("drift", dist.HalfNormal(1.0))

    def visit(state, seen):
        with plate("patients", len(seen)):
            state = sample("state", dist.LogNormal(0.5 * state, drift))
            sample("seen", dist.Normal(state, 1.0), obs=seen)
        return state, None

    scan(visit, jnp.zeros(len(four)), four.T)


@dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    data: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    latents: tuple[str, ...] = ()
    units: dict[str, int] = field(default_factory=dict)
    """local site -> the axis of its units"""
    pooled: Callable[..., Any] | None = None


CASES = {
    "plain": Case(plain, ("x", "y"), latents=("level", "slope")),
    "positives": Case(positives, ("x", "y"), latents=("scale", "rate", "share", "power", "both")),
    "matrices": Case(matrices, ("pair",), latents=("weights", "cuts")),
    "slopes": Case(slopes, ("county", "x", "y"), BY_COUNTY, ("mean", "scale", "root"), {"own": 0}),
    "matrix locals": Case(
        matrix_locals, ("county", "x", "y"), BY_COUNTY, latents=("scale",), units={"root": 0, "weights": 0}
    ),
    "grids": Case(grids, ("four",), latents=("spread",), units={"trait": 0, "own": 0}),
    "labelled": Case(labelled, ("patient", "x", "y"), {"unit": "patient"}, ("level",), {"own": 0}),
    "positive locals": Case(
        positive_locals, ("county", "x", "count"), BY_COUNTY, ("shape",), {"rate": 0, "top": 0, "more": 0}
    ),
    "dependent support": Case(dependent_support, ("x", "y"), latents=("top", "under", "between")),
    "improper": Case(improper, ("x", "y"), latents=("level", "scale", "flat")),
    "improper locals": Case(improper_locals, ("county", "x", "y"), BY_COUNTY, ("level",), {"own": 0}),
    "learned": Case(learned, ("x", "y"), latents=("level",)),
    "factors": Case(factors, ("county", "x", "y"), BY_COUNTY, ("level",), {"own": 0}),
    "gappy": Case(
        gappy, ("county", "gaps", "seen", "y"), BY_COUNTY | {"missing": ("gaps",)}, ("level",), units={"own": 0}
    ),
    "scaled": Case(scaled, ("x", "y"), latents=("scale", "free"), units={"own": 0}),
    "transformed": Case(transformed, ("pair", "y"), latents=("slope", "squeezed", "inner/scale")),
    "client's own": Case(
        silo_own, ("pair", "y"), {"local": ("w", "noise")}, ("spread",), {"w": 0, "noise": 0}, pooled=silo_own_pooled
    ),
    "reparameterised": Case(
        handlers.reparam(intercepts, config={"own": LocScaleReparam(0.0)}),
        ("county", "x", "y"),
        BY_COUNTY,
        ("level",),
        {"own_decentered": 0},
    ),
    "series": Case(series, ("four",), latents=("drift",), units={"state": 1}),
}


@lru_cache
def model_of(name: str):
    case = CASES[name]
    return numpyro_model(case.function, columns(*case.data), **case.options)


def take(data: dict[str, np.ndarray], which: np.ndarray) -> dict[str, np.ndarray]:
    return {name: values[which] for name, values in data.items()}


class Pool:
    """A case's rows at so many clients, with random unconstrained values: as NumPyro and as Cavity has them."""

    def __init__(self, name: str, num_clients: int, seed: int = 0):
        self.case, self.model = CASES[name], model_of(name)
        data = columns(*self.case.data)
        home = np.arange(NUM_ROWS) % 3
        if "county" in data:
            home = np.array([(ord(county) - ord("a")) % 3 for county in data["county"]])
        rows = np.argsort(home, kind="stable")  # the same for one client as for three
        home = home[rows] if num_clients == 3 else np.zeros(NUM_ROWS, int)
        data = self.data = take(data, rows)
        self.clients = [self.model.prepare(take(data, home == j)) for j in range(num_clients)]
        self.counts = [len(client.units.weight) for client in self.clients]
        self.function = self.case.function
        self.arguments = {name: values for name, values in data.items() if name != "patient"}
        if "county" in data:
            labels = list(dict.fromkeys(self.arguments["county"]))
            self.arguments["county"] = np.array([labels.index(label) for label in self.arguments["county"]])
            self.arguments["num_counties"] = len(labels)
        if self.case.pooled is not None:
            self.function = self.case.pooled
            self.arguments |= {"client": home, "num_clients": num_clients}
        rng = np.random.default_rng(seed)
        draw = lambda shape: 0.6 * rng.normal(size=shape)  # noqa: E731
        self.theta = jax.tree.map(lambda leaf: jnp.asarray(leaf + draw(leaf.shape)), self.model.theta)
        shapes = jax.eval_shape(self.start)
        self.values = {site: draw(shapes[site].shape) for site in (*self.case.latents, *self.case.units)}

    def start(self) -> dict[str, Any]:
        """Unconstrained values of all sites, by NumPyro's own means."""

        def improper(site):
            fn = site.get("fn")
            if site["type"] != "sample" or not isinstance(getattr(fn, "base_dist", fn), dist.ImproperUniform):
                return None
            return jnp.ones(fn.shape())

        model = handlers.seed(handlers.substitute(self.function, substitute_fn=improper), KEY)
        sites = handlers.trace(model).get_trace(**self.arguments)
        latents = {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}
        return unconstrain_fn(model, (), self.arguments, {name: site["value"] for name, site in latents.items()})

    def constrained(self, theta: Any) -> dict[str, Any]:
        """The learned parameters as the author has them."""
        made = {"scale": jnp.exp, "mean": lambda value: value, "knob": jax.nn.sigmoid}
        return {name: made[name](value) for name, value in (theta or {}).items()}

    def log_density(self, theta: Any, values: dict[str, Any]) -> Any:
        """NumPyro's own."""
        substituted = handlers.substitute(self.function, data=self.constrained(theta))
        return -potential_energy(substituted, (), self.arguments, values)

    @property
    def z_global(self):
        return jnp.asarray(np.concatenate([np.ravel(self.values[name]) for name in self.case.latents]))

    @property
    def z_local(self) -> list[Any]:
        """One matrix per client."""
        total = sum(self.counts)
        sites = [np.moveaxis(self.values[name], axis, 0).reshape(total, -1) for name, axis in self.case.units.items()]
        everything = np.concatenate(sites, axis=1) if sites else np.zeros((total, 0))
        return np.split(everything, np.cumsum(self.counts)[:-1])

    def log_joint(self, client: int, num_rows: int | None = None, num_units: int | None = None) -> Any:
        """A client's part, padded to so many rows and units."""
        data, z = self.clients[client], self.z_local[client]
        data = pad(data, num_rows or len(data.weight), num_units or len(z))
        z = np.concatenate([z, np.full((len(data.units.weight) - len(z), z.shape[1]), 0.3)])
        return compiled(self.model, self.theta, self.z_global, z, data)


def compiled(model, theta, z_global, z_local, data):
    return np.asarray(_compiled(model, theta, jnp.asarray(z_global), jnp.asarray(z_local), data))


@eqx.filter_jit
def _compiled(model, theta, z_global, z_local, data):
    return model.log_joint(theta, z_global, z_local, data, KEY)


@lru_cache
def density(name: str, num_clients: int) -> float:
    pool = Pool(name, num_clients)
    return float(jax.jit(pool.log_density)(pool.theta, pool.values))


SOME = {"plain", "slopes", "grids", "client's own"}  # the others take a minute together


@thorough
@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_the_parts_sum_to_the_density_of_numpyro(name):
    parts = {}
    for num_clients in (1, 3):
        pool = Pool(name, num_clients)
        assert tuple(latent.name for latent in pool.model.latents) == pool.case.latents
        assert tuple(latent.name for latent in pool.model.locals_) == tuple(pool.case.units)
        mine = parts[num_clients] = [pool.log_joint(j) for j in range(num_clients)]
        assert [len(part) for part in mine] == pool.counts
        prior = eqx.filter_jit(pool.model.log_prior)(pool.theta, pool.z_global)
        expected = density(name, num_clients if pool.case.pooled else 1)
        assert float(prior) + sum(float(part.sum()) for part in mine) == pytest.approx(expected, rel=1e-10)
    for j in range(3):  # rows and units of weight 0 change nothing for the others
        padded = pool.log_joint(j, NUM_ROWS, len(parts[1][0]))
        np.testing.assert_allclose(padded[: len(parts[3][j])], parts[3][j], rtol=1e-12)
        assert np.isfinite(padded).all()


@thorough
@pytest.mark.parametrize("name", ["factors", "grids", "slopes"])
def test_units_have_their_own_parts(name):
    """The part of a unit is the density of its rows and latents alone."""
    pool = Pool(name, 1)
    parts = pool.log_joint(0)
    data, labels = pool.data, pool.model.unit_labels(pool.data)
    for u in range(pool.counts[0]):
        mine = np.arange(NUM_ROWS) == u if labels is None else data["county"] == labels[u]
        client = pool.model.prepare(take(data, mine))
        alone = compiled(pool.model, None, pool.z_global, pool.z_local[0][u : u + 1], client)
        assert float(alone[0]) == pytest.approx(float(parts[u]), rel=1e-10)


@thorough
@pytest.mark.parametrize("name", ["plain", "gappy", "client's own"])
def test_a_weight_of_two_is_the_row_twice(name):
    pool = Pool(name, 1)
    (client,), (z,) = pool.clients, pool.z_local
    weight = np.ones(NUM_ROWS)
    weight[[1, 5]] = 2.0
    twice = np.append(np.arange(NUM_ROWS), [1, 5])
    heavy = Data(client.batch, weight, client.num_rows, client.units)
    longer = Data(
        jax.tree.map(lambda leaf: leaf[twice], client.batch), np.ones(NUM_ROWS + 2), client.num_rows, client.units
    )
    one, other = (compiled(pool.model, pool.theta, pool.z_global, z, data) for data in (heavy, longer))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    assert not np.allclose(one, pool.log_joint(0))


@thorough
@pytest.mark.parametrize("name", ["matrices", "dependent support", "learned", "transformed", "slopes"])
def test_constrained_values_are_those_of_numpyro(name):
    pool = Pool(name, 1)
    values = {site: pool.values[site] for site in pool.case.latents}
    found = eqx.filter_jit(pool.model.constrain)(pool.theta, pool.z_global)
    theta = pool.constrained(pool.theta)
    model = handlers.substitute(handlers.seed(pool.function, KEY), data=theta)
    expected = jax.jit(lambda values: constrain_fn(model, (), pool.arguments, values))(values) | theta
    assert set(found) == set(pool.case.latents) | set(pool.theta or {})
    for site, value in found.items():
        np.testing.assert_allclose(value, expected[site], rtol=1e-12, err_msg=site)
    flat = jax.flatten_util.ravel_pytree(found)[0]
    assert len(pool.model.parameter_names) == len(flat) == len(set(pool.model.parameter_names))
    for label, number in zip(pool.model.parameter_names, flat, strict=True):
        site, _, index = label.partition("[")
        place = tuple(map(int, index.rstrip("]").split(","))) if index else ()
        assert float(found[site][place]) == float(number)


@thorough
def test_where_models_start():
    model = model_of("positives")
    at = eqx.filter_jit(model.constrain)(None, model.start[0])
    assert float(at["scale"]) == pytest.approx(1.5, rel=0.5)  # the median of the HalfCauchy
    assert model.start[0].shape == model.start[1].shape == (model.num_global,)
    given = numpyro_model(transformed, columns("pair", "y"), start={"slope": [1.0, 2.0], "squeezed": 3.0})
    np.testing.assert_array_equal(given.start[0][:3], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(model_of("learned").theta["scale"], np.log(0.7))
    np.testing.assert_allclose(model_of("learned").theta["knob"], np.log(0.25 / 0.75))
    assert not any(leaf.any() for leaf in model_of("gappy").example.values())  # nobody's data


@thorough
def test_gradients_pass_masked_observations():
    pool = Pool("gappy", 1)
    data = columns(*pool.case.data)
    assert np.isnan(data["gaps"]).any()

    def total(z_global, z_local):
        return jnp.sum(pool.model.log_joint(None, z_global, z_local, pool.clients[0], KEY))

    for gradient in jax.jit(jax.grad(total, argnums=(0, 1)))(pool.z_global, jnp.asarray(pool.z_local[0])):
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0.0

    def with_param(gaps):
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        level = sample("level", dist.Normal(0.0, 1.0))
        with handlers.mask(mask=~jnp.isnan(gaps)):
            sample("gaps", dist.LogNormal(level, scale), obs=gaps)

    data = {"gaps": np.exp(data["gaps"])}
    model = numpyro_model(with_param, data, missing=["gaps"])
    prepared = model.prepare(data)
    gradient = jax.grad(lambda theta: model.log_joint(theta, jnp.zeros(1), jnp.zeros((1, 0)), prepared, KEY)[0])
    assert np.isfinite(gradient(model.theta)["scale"])
    assert float(jnp.abs(gradient(model.theta)["scale"])) > 0.0


def drawn(county, x, y, num_counties, size=5):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("counties", num_counties):
        own = sample("own", dist.Normal(level, 0.5))
    with plate("rows", len(x), subsample_size=size) as rows:
        sample("y", dist.Normal(own[county[rows]] + x[rows], 1.0), obs=y[rows])


def drawn_items(four, rows=5, items=2):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("items", 4, subsample_size=items, dim=-1) as j, plate("rows", len(four), subsample_size=rows, dim=-2):
        mine = numpyro.subsample(four, event_dim=0)
        sample("four", dist.Normal(level + 0.1 * j, 1.0), obs=mine)


def drawn_but_not_latents(x, y, size=5):
    """Rows are units; all have latents, some are looked at."""
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("patients", len(x)):
        own = sample("own", dist.Normal(level, 1.0))
    with plate("rows", len(x), subsample_size=size) as rows:
        sample("y", dist.Normal(own[rows] * x[rows], 1.0), obs=y[rows])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["units", "items", "rows"])
def test_drawn_rows_are_right_on_average(name):
    function, whole, names, options = {
        "units": (drawn, partial(drawn, size=None), ("county", "x", "y"), BY_COUNTY),
        "items": (drawn_items, partial(drawn_items, rows=None, items=None), ("four",), {}),
        "rows": (drawn_but_not_latents, partial(drawn_but_not_latents, size=None), ("x", "y"), {}),
    }[name]
    data = columns(*names)
    model = numpyro_model(function, data, **options)
    client = model.prepare(data)
    rng = np.random.default_rng(3)
    z_global, z = rng.normal(size=1), rng.normal(size=(len(client.units.weight), model.num_local))
    expected = compiled(replace(model, function=whole), None, z_global, z, client)
    for extra in (0, 7) if name == "units" else (7,):
        padded = pad(client, NUM_ROWS + extra, len(z) + (extra if len(z) > 1 else 0))
        wider = jnp.asarray(np.concatenate([z, np.zeros((len(padded.units.weight) - len(z), model.num_local))]))
        estimate = jax.jit(
            jax.vmap(lambda key, z=wider, data=padded: model.log_joint(None, jnp.asarray(z_global), z, data, key))
        )
        found = np.asarray(estimate(jax.random.split(KEY, 3000)))[:, : len(z)]
        error = found.std(axis=0) / np.sqrt(len(found))
        assert (error > 0).all()
        assert np.abs((found.mean(axis=0) - expected) / error).max() < 4.0


def test_a_plate_as_large_as_the_example_still_draws_elsewhere():
    data = columns("county", "x", "y")
    model = numpyro_model(partial(drawn, size=NUM_ROWS // 2), take(data, np.arange(NUM_ROWS // 2)), **BY_COUNTY)
    client = model.prepare(data)
    values = compiled(model, None, np.zeros(1), np.zeros((NUM_UNITS, 1)), client)
    assert values.shape == (NUM_UNITS,)
    assert np.isfinite(values).all()


@thorough
def test_without_compilation_the_same():
    """Also where an example of zeros is no data that the model could have."""

    def meta(error, y):
        level = sample("level", dist.Normal(0.0, 1.0))
        spread = sample("spread", dist.HalfNormal(1.0))
        with plate("studies", len(y)):
            own = sample("own", dist.Normal(level, spread))
            sample("y", dist.Normal(own, error), obs=y)

    data = {"error": np.exp(column("x")), "y": column("y")}
    model = numpyro_model(meta, data)
    client, z, own = model.prepare(data), jnp.array([0.3, -0.2]), jnp.asarray(column("x"))[:, None]
    parts = model.log_joint(None, z, own, client, KEY)
    np.testing.assert_allclose(parts, compiled(model, None, z, own, client), rtol=1e-12)
    assert float(model.constrain(None, z)["spread"]) == pytest.approx(np.exp(-0.2))
    values = {"level": z[0], "spread": z[1], "own": own[:, 0]}
    total = float(parts.sum() + model.log_prior(None, z))
    assert total == pytest.approx(-float(potential_energy(meta, (), data, values)), rel=1e-10)


def regression(prior=None, outcome=None, obs=lambda x, y: y):
    """A function of x and y with one thing changed."""

    def function(x, y):
        level = sample("level", dist.Normal(0.0, 1.0) if prior is None else prior(x, y))
        mean = level * x if outcome is None else outcome(level, x, y)
        sample("y", dist.Normal(mean, 1.0), obs=obs(x, y))

    return function


def by_county(body):
    """A function of counties whose latents are made by `body(level, num_counties)`."""

    def function(county, x, y, num_counties):
        level = sample("level", dist.Normal(0.0, 1.0))
        own = body(level, num_counties)
        sample("y", dist.Normal(own[county] + x, 1.0), obs=y)

    return function


def own_in_a_plate(level, num_counties, **options):
    with plate("counties", num_counties, **options):
        return sample("own", dist.Normal(level, 1.0))


def discrete(x, y):
    kind = sample("kind", dist.Bernoulli(0.5))
    sample("y", dist.Normal(kind * x, 1.0), obs=y)


def upwards(county, x, y, num_counties):
    own = own_in_a_plate(0.0, num_counties)
    level = sample("level", dist.Normal(own.sum(), 1.0))
    sample("y", dist.Normal(own[county] + level, 1.0), obs=y)


def upwards_by_support(county, x, y, num_counties):
    own = own_in_a_plate(0.0, num_counties)
    level = sample("level", dist.ImproperUniform(constraints.greater_than(own[0]), (), ()))
    sample("y", dist.Normal(own[county] + level, 1.0), obs=y)


def summed(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    numpyro.factor("together", jnp.sum(dist.Normal(level * x, 1.0).log_prob(y)))


def per_unit(level, num_counties):
    own = own_in_a_plate(level, num_counties)
    with plate("again", num_counties):
        numpyro.factor("penalty", -(own**2))
    return own


def per_row(county, x, y, num_counties):
    level = sample("level", dist.Normal(0.0, 1.0))
    own = own_in_a_plate(level, num_counties)
    with plate("rows", len(x)):
        slack = sample("slack", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(own[county] + slack, 1.0), obs=y)


def looks(county, x, y):
    with plate("counties", len(np.unique(county))):
        own = sample("own", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(own[county], 1.0), obs=y)


def drops(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(level, 1.0), obs=y[x > 0])


def observes_nothing(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    numpyro.deterministic("mean", level * x)


def nothing_global(x, y):
    with plate("rows", len(x)):
        sample("y", dist.Normal(sample("own", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def drawn_latents(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("rows", len(x), subsample_size=3) as rows:
        own = sample("own", dist.Normal(level, 1.0))
        sample("y", dist.Normal(own, 1.0), obs=y[rows])


def of_all_rows(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    with plate("rows", 1000, subsample_size=len(x)):
        sample("y", dist.Normal(level * x, 1.0), obs=y)


def looped(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    own = jnp.stack([sample(f"own {i}", dist.Normal(level, 1.0)) for i in range(len(x))])
    sample("y", dist.Normal(own, 1.0), obs=y)


def static_counties(county, x, y):
    own = own_in_a_plate(0.0, NUM_UNITS)
    sample("y", dist.Normal(own[county], 1.0), obs=y)


def both_kinds(level, num_counties):
    return own_in_a_plate(level, num_counties) + sample("extra", dist.Normal(0.0, 1.0))


def param_per_row(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(level, numpyro.param("noise", jnp.ones(len(x)))), obs=y)


def param_at_the_edge(x, y):
    level = sample("level", dist.Normal(0.0, 1.0))
    sample("y", dist.Normal(level, 1 + numpyro.param("noise", 0.0, constraint=constraints.positive)), obs=y)


def on_a_sphere(x, y):
    way = sample("way", dist.ProjectedNormal(jnp.zeros(2)))
    sample("y", dist.Normal(way[0] * x, 1.0), obs=y)


def empty_units(county, x, y, num_counties):
    """A covariate of the units, which one without rows does not have."""
    level = sample("level", dist.Normal(0.0, 1.0))
    height = jax.ops.segment_max(x, county, num_counties)
    own = own_in_a_plate(level * height, num_counties)
    sample("y", dist.Normal(own[county], 1.0), obs=y)


XY, COUNTIES = ("x", "y"), ("county", "x", "y")
REFUSED = {
    "discrete latent": (discrete, XY, {}, "'kind' is discrete"),
    "global after local": (upwards, COUNTIES, BY_COUNTY, "global site 'level' depends on a local one"),
    "support after local": (upwards_by_support, COUNTIES, BY_COUNTY, "global site 'level' depends on a local one"),
    "prior with data": (regression(prior=lambda x, y: dist.Normal(y.mean(), 1.0)), XY, {}, "'level' depends on the da"),
    "prior with spread": (regression(prior=lambda x, y: dist.Normal(0, jnp.std(y))), XY, {}, "'level' depends on the "),
    "prior with number": (regression(prior=lambda x, y: dist.Normal(0, 1 / len(x))), XY, {}, "'level' depends on the "),
    "prior with units": (
        by_county(lambda level, n: own_in_a_plate(sample("mean", dist.Normal(0.0, 1 / n)), n)),
        COUNTIES,
        BY_COUNTY,
        "'mean' depends on the data",
    ),
    "sum": (summed, XY, {}, "'together' is not one value per row"),
    "factor per unit": (by_county(per_unit), COUNTIES, BY_COUNTY, "'penalty' is not one .* but one value per unit"),
    "latent per row": (per_row, COUNTIES, BY_COUNTY, "'slack' has one value per row, but the units .* 'county'"),
    "joint latents": (
        by_county(lambda level, n: sample("own", dist.Normal(level, 1.0).expand([n]).to_event(1))),
        COUNTIES,
        BY_COUNTY,
        "'own' is one draw for all",
    ),
    "too many latents": (
        by_county(lambda level, n: own_in_a_plate(level, n + 1)),
        COUNTIES,
        BY_COUNTY,
        "'own' has 6 values for 5",
    ),
    "drawn latents": (drawn_latents, XY, {}, "'own' is in the plate 'rows', which draws"),
    "drawn units": (
        by_county(lambda level, n: own_in_a_plate(level, n, subsample_size=3)),
        COUNTIES,
        BY_COUNTY,
        "'own' is in the plate 'counties', which draws",
    ),
    "plate of all clients": (of_all_rows, XY, {}, "plate 'rows' of the observed site 'y' has the size 1000"),
    "lag": (
        regression(outcome=lambda level, x, y: level * y[:-1], obs=lambda x, y: y[1:]),
        XY,
        {},
        "'y' has 11 values for 12 rows",
    ),
    "outer product": (regression(obs=lambda x, y: y[:, None]), XY, {}, "'y' grows along 2 axes"),
    "centred in the model": (
        regression(outcome=lambda level, x, y: level * (x - x.mean())),
        XY,
        {},
        "'y' for a row or unit depends on others",
    ),
    "coupled units": (
        by_county(lambda level, n: (own := own_in_a_plate(level, n)) - own.mean()),
        COUNTIES,
        BY_COUNTY,
        "'y' for a row or unit depends on others",
    ),
    "units without rows": (empty_units, COUNTIES, BY_COUNTY, "'own' is not finite for a unit without rows"),
    "loop": (looped, XY, {}, "'own 12' exists for some"),
    "no such local": (plain, XY, {"local": ("w",)}, "no latent site 'w' to be local; .* level, slope"),
    "observed local": (plain, XY, {"local": ("y",)}, "no latent site 'y' to be local"),
    "local per unit": (intercepts, COUNTIES, BY_COUNTY | {"local": ("own",)}, "'own' is named as a client's own"),
    "local of two kinds": (
        by_county(both_kinds),
        COUNTIES,
        BY_COUNTY | {"local": ("extra",)},
        "extra would .* own to its units",
    ),
    "no column of units": (intercepts, XY, BY_COUNTY, "no column 'county' of units; it has x, y"),
    "no such argument": (intercepts, COUNTIES, {"unit": "county", "num_units": "n"}, "no argument 'n'"),
    "number without units": (intercepts, COUNTIES, {"num_units": "num_counties"}, "`num_units` goes with"),
    "unbound argument": (intercepts, COUNTIES, {"unit": "county"}, "takes 'num_counties', which is no column"),
    "units without latents": (
        static_counties,
        COUNTIES,
        {"unit": "county"},
        "one value per unit of the column 'county'",
    ),
    "looks at values": (looks, COUNTIES, {"unit": "county"}, "looks at the values of its data in Python"),
    "drops rows": (drops, XY, {}, "looks at the values of its data in Python"),
    "text": (regression(), ("x", "county"), {}, "takes 'y', which is no column"),
    "no such missing": (plain, XY, {"missing": ("z",)}, "'z', which is no column"),
    "no such start": (plain, XY, {"start": {"z": 1.0}}, "`start` names z"),
    "start of another shape": (plain, XY, {"start": {"level": [1.0, 2.0]}}, "`start` of 'level' needs the shape"),
    "no median": (
        regression(prior=lambda x, y: dist.Normal(0.0, jnp.nan * x[0])),
        XY,
        {},
        "'level' has no finite median to start from",
    ),
    "nothing observed": (observes_nothing, XY, {}, "observes nothing"),
    "nothing global": (nothing_global, XY, {}, "no global latent site"),
    "param per row": (param_per_row, XY, {}, "numpyro.param 'noise' has one value per row or unit"),
    "param at the edge": (param_at_the_edge, XY, {}, "numpyro.param 'noise' starts at 0.0"),
    "no bijection": (on_a_sphere, XY, {}, "'way' has the support"),
}


@thorough
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused(name):
    function, names, options, message = REFUSED[name]
    with pytest.raises(CavityError, match=message):
        numpyro_model(function, columns(*names), **options)


def test_examples_that_are_no_columns_are_refused():
    x, y = column("x"), column("y")
    for wrong, message in (
        ({"x": x, "y": column("county")}, "'y' of the example holds no numbers"),
        ({"x": x, "y": y[:3]}, "same number of rows"),
        ({"x": x[:0], "y": y[:0]}, "at least one"),
        ({"x": 1.0, "y": y}, "same number of rows"),
    ):
        with pytest.raises(CavityError, match=message):
            numpyro_model(plain, wrong)
    with pytest.raises(CavityError, match="dict of columns or a table"):
        numpyro_model(plain, [x, y])
    counts = {"x": x, "y": column("count")}
    with pytest.raises(CavityError, match="'level' depends on the data"):
        numpyro_model(regression(prior=lambda x, y: dist.Normal(y.mean(), 1.0)), counts)


@pytest.mark.parametrize(
    ("case", "name", "change", "message"),
    [
        ("positive locals", "x", lambda x: x.astype(str) + "!", "'x' holds something other than numbers"),
        ("positive locals", "x", lambda x: np.where(x > 1, np.nan, x), r"'x' has \d missing or infinite values \(rows"),
        ("positive locals", "x", lambda x: np.where(x > 1, np.inf, x), "'x' has . missing or infinite"),
        ("positive locals", "x", lambda x: x[:, None], r"row of column 'x' has the shape \(1,\), not \(\)"),
        ("positive locals", "x", lambda x: x[:5], "differ in their numbers of rows"),
        ("positive locals", "x", lambda x: 1.0, "'x' is a single number"),
        ("positive locals", "count", lambda count: count + 0.5, "'count' must hold whole numbers"),
        ("positive locals", "count", lambda count: count + 2**31, "'count' must hold whole numbers of 32 bits"),
        ("positive locals", "county", lambda county: county[:5], "differ in their numbers of rows"),
        ("positive locals", "county", lambda county: county[:, None], "'county' of units must hold one label per row"),
        ("positive locals", "county", lambda c: np.array([None, *c[1:]]), "'county' names no unit in 1 rows"),
        ("gappy", "county", lambda county: np.where(county == "a", np.nan, 1.0), "'county' names no unit in 2 rows"),
        ("gappy", "gaps", lambda gaps: gaps[:, :1], r"row of column 'gaps' has the shape \(1,\), not \(2,\)"),
        ("gappy", "gaps", lambda gaps: np.where(np.isnan(gaps), np.inf, gaps), "'gaps' has . missing or infinite"),
        ("gappy", "y", lambda y: np.where(y > 0, np.nan, y), "'y' has . missing or infinite"),
        ("gappy", "seen", lambda seen: 2 * seen, "'seen' must hold 0 or 1"),
        ("labelled", "patient", lambda patient: patient // 2, "'patient' names a unit twice"),
        ("labelled", "patient", lambda patient: np.append(patient, patient[0]), "differ in their numbers of rows"),
    ],
)
def test_data_that_do_not_fit_are_refused(case, name, change, message):
    data = columns(*CASES[case].data)
    with pytest.raises(DataError, match=message):
        model_of(case).prepare(data | {name: change(data[name])})


def test_data_that_fit_in_another_way():
    """Whole numbers as floats, truth as numbers, a table; units in the order in which they come."""
    pandas = pytest.importorskip("pandas")
    model = model_of("positive locals")
    data = columns("county", "x", "count")
    client = model.prepare(data)
    assert client.batch["count"].dtype == np.int32
    assert list(model.unit_labels(data)) == ["e", "b", "a", "c", "d"]
    assert client.batch["county"][:6].tolist() == [0, 1, 2, 3, 4, 1]
    again = model.prepare(pandas.DataFrame(data | {"count": data["count"].astype(float)}))
    for one, other in zip(jax.tree.leaves(client), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    gappy_data = columns("county", "gaps", "seen", "y")
    as_numbers = model_of("gappy").prepare(gappy_data | {"seen": gappy_data["seen"].astype(float)})
    assert as_numbers.batch["seen"].dtype == bool


def test_rows_that_are_units_cannot_be_drawn_from_outside():
    pool = Pool("labelled", 1)
    client = pool.clients[0]
    few = Data(jax.tree.map(lambda leaf: leaf[:4], client.batch), client.weight[:4], client.num_rows, client.units)
    with pytest.raises(CavityError, match="4 rows and 12 units"):
        compiled(pool.model, None, pool.z_global, pool.z_local[0], few)
