"""From a NumPyro function to a federated model: its parts, where it starts, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from cavity.errors import CavityError
from cavity.models.glm.columns import example_columns
from cavity.models.numpyro.latent_model import Latent, NumpyroModel, cut
from cavity.models.numpyro.rows import check_rows
from cavity.models.numpyro.sites import (
    Columns,
    ModelFunction,
    arguments,
    check_param,
    count_units,
    drawing,
    latent_axis,
    observed_axis,
    probe,
    run_model,
    site_log_prob,
    unconstrained_param,
)

START_DRAWS = 200
START_SCALE = 0.1
VAGUE = 3.0  # unconstrained units of spread from which on a prior's median says little about the data
NEAR_ZERO = 1e-3  # at 0 itself, NumPyro's Binomial has a kink and a wrong gradient
IMPROPER_SCALE = 10.0  # where a prior has no spread
LARGEST = 1e3  # unconstrained: about the log of the largest number, for draws that under- or overflow


def numpyro_model(
    function: ModelFunction,
    example: PyTree,
    *,
    unit: str | None = None,
    num_units: str | None = None,
    local: Sequence[str] = (),
    missing: Sequence[str] = (),
    start: Mapping[str, PyTree] | None = None,
) -> NumpyroModel:
    """A NumPyro model over clients.

    Args:
        function: an ordinary model, called with a client's columns as keywords. Bind anything else beforehand, with
            `functools.partial`.
        example: data such as a client has, a dict of arrays or a table with a few rows. The model is checked with it,
            and keeps only names, types and shapes.
        unit: the column that names the unit (county, patient) of each row. Where the function takes it as an argument,
            it gets the units of a client numbered 0, 1, ...; where it does not, every row is a unit.
        num_units: the argument through which the function wants to know a client's number of units.
        local: latent sites that belong to a client as a whole (its own intercept, its own weights).
        missing: columns that may hold NaN; the model then masks these observations itself.
        start: unconstrained values from which sites start, where the median of the prior is no good start.

    Raises:
        CavityError: naming the site that is not supported: a discrete latent, an observation that is not one per row
            or depends on other rows, a local site that a global one depends on, a prior that looks at the data.
    """
    columns = example_columns(example, function, unit, num_units)
    if unknown := [name for name in missing if name not in columns]:
        raise CavityError(f"`missing` names {unknown[0]!r}, which is no column; the example has {', '.join(columns)}")
    traces = probe(function, columns, unit, num_units)
    base = traces["as it is"]
    num_rows = len(next(iter(columns.values())))
    indexed = unit is not None and unit in columns
    count = count_units(columns, unit) if indexed else num_rows
    latents, locals_, row_axes = [], [], []
    for name, site in base.items():
        if site.type == "param":
            check_param(name, traces)
        elif site.type == "sample" and site.is_observed:
            row_axes.append((name, observed_axis(name, traces, num_rows)))
        elif site.type == "sample":
            latent = Latent(name, site.unconstrained_shape)
            axis = latent_axis(name, traces, unit if indexed else None, count)
            if axis is None:
                (locals_ if name in local else latents).append(latent)
            elif name in local:
                raise CavityError(f"the site {name!r} is named as a client's own, but has one value per row or unit")
            else:
                shape = tuple(n for i, n in enumerate(latent.shape) if i != axis)
                locals_.append(Latent(name, shape, axis))
    for name in local:
        if name not in (names := [latent.name for latent in (*latents, *locals_)]):
            raise CavityError(f"there is no latent site {name!r} to be local; the model has {', '.join(names)}")
    if local and len(of_units := [latent.name for latent in locals_ if latent.unit_axis is not None]):
        raise CavityError(
            f"{', '.join(local)} would belong to a client and {', '.join(of_units)} to its units; a model has one or "
            "the other"
        )
    if indexed and all(latent.unit_axis is None for latent in locals_):
        raise CavityError(
            f"no latent site has one value per unit of the column {unit!r}; let a plate have the size that `num_units` "
            "names, or leave `unit` out"
        )
    if not row_axes:
        raise CavityError("the model observes nothing; give an observed site `obs=` a column of the data")
    begin, prior_scale = _start(function, columns, num_units, latents, start or {})
    drawn = [name for name, _ in row_axes if any(drawing(traces["twice the rows"][name], traces["twice the rows"]))]
    model = NumpyroModel(
        function=function,
        example={
            name: np.zeros_like(column) for name, column in columns.items()
        },  # the example has no rows of a client
        latents=tuple(latents),
        locals_=tuple(locals_),
        learned=_learned(function, columns, num_units, [name for name in base if base[name].type == "param"]),
        row_axes=tuple(row_axes),
        begin=begin,
        prior_scale=prior_scale,
        unit=unit,
        num_units=num_units,
        missing=tuple(missing),
        drawn=tuple(drawn),
    )
    _check_directions(model, columns)
    check_rows(model, columns, drawn)
    return model


def numpyro_kinds(first: NumpyroModel, *others: NumpyroModel) -> NumpyroModel:
    """One model for clients that differ in their columns, and so in their likelihood or their local latents.

    The columns of a client determine its kind. All kinds have the same global latents with the same priors, and learn
    the same parameters.

    Example: `numpyro_kinds(numpyro_model(counts, ...), numpyro_model(yes_or_no, ...))`
    """
    for other in others:
        if other.others or first.others:
            raise CavityError("give all kinds at once, not kinds of kinds")
        for what, mine, theirs in (
            ("global sites", first.latents, other.latents),
            ("learned parameters", sorted(first.learned or {}), sorted(other.learned or {})),
        ):
            if mine != theirs:
                raise CavityError(f"all kinds need the same {what}, in the same order: {mine} and {theirs}")
        at = first.begin[0] + START_SCALE * first.prior_scale
        priors = [float(model.log_prior(first.theta, at)) for model in (first, other)]
        if not np.isclose(*priors, rtol=1e-5):
            raise CavityError("all kinds need the same priors of their global sites; these differ")
    for i, model in enumerate((first, *others)):
        if any(model.has_columns(other.example) for other in (first, *others)[:i]):
            raise CavityError(
                f"two kinds have the columns {', '.join(model.example)}; a client's kind is known by them, so name the "
                "outcome differently"
            )
    return replace(first, others=others)


def _learned(
    function: ModelFunction, columns: Columns, num_units: str | None, names: Sequence[str]
) -> dict[str, Array] | None:
    """The unconstrained start of each `numpyro.param`."""
    if not names:
        return None
    sites, _ = run_model(function, arguments(function, columns, num_units, None), {}, None)
    return {name: unconstrained_param(sites[name]) for name in names}


def _start(
    function: ModelFunction,
    columns: Columns,
    num_units: str | None,
    latents: Sequence[Latent],
    given: Mapping[str, PyTree],
) -> tuple[tuple[Array, Array], Array]:
    """Where q starts on the unconstrained scale, with a small scale, and the spread of the prior there.

    It is the prior's median, or 0 for an improper prior. A vague prior has its median anywhere (exp(-690) under
    Gamma(.001, .001)), so there it is the point nearest to 0 within the range of the prior's draws.
    """
    from numpyro.distributions import biject_to

    if not latents:
        raise CavityError("the model has no global latent site; there is nothing to learn together")
    if unknown := set(given) - {latent.name for latent in latents}:
        raise CavityError(f"`start` names {', '.join(sorted(unknown))}, which is no global latent site")
    for latent in latents:
        if np.shape(given.get(latent.name, 0.0)) not in ((), latent.shape):
            raise CavityError(f"`start` of {latent.name!r} needs the shape {latent.shape}, or a single number")

    def draw(key: PRNGKeyArray) -> dict[str, Array]:
        sites, _ = run_model(function, arguments(function, columns, num_units, None), {}, None, key)
        return {
            latent.name: biject_to(sites[latent.name]["fn"].support).inv(sites[latent.name]["value"])
            for latent in latents
        }

    with jax.enable_x64(True):
        draws = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), START_DRAWS))
    centre, scale, prior_scale = [], [], []
    for latent in latents:
        flat = np.asarray(draws[latent.name], float).reshape(START_DRAWS, -1)
        if np.isnan(flat).any():
            raise CavityError(f"the prior of {latent.name!r} has no finite median to start from; give one in `start`")
        flat = np.where(np.isfinite(flat), flat, LARGEST * np.sign(flat))
        middle, spread = np.median(flat, axis=0), flat.std(axis=0)
        middle = np.where(spread > VAGUE, np.clip(NEAR_ZERO, flat.min(axis=0), flat.max(axis=0)), middle)
        if latent.name in given:
            middle = np.broadcast_to(np.asarray(given[latent.name], float), latent.shape).reshape(-1)
        centre.append(middle)
        scale.append(np.where(spread > 0, np.minimum(spread, START_SCALE), START_SCALE))
        prior_scale.append(np.where(spread > 0, spread, IMPROPER_SCALE))
    start = (jnp.asarray(np.concatenate(centre)), jnp.asarray(np.concatenate(scale)))
    return start, jnp.asarray(np.concatenate(prior_scale))


def _check_directions(model: NumpyroModel, columns: Mapping[str, np.ndarray]) -> None:
    """Global priors may depend on neither local sites nor data: the server has neither."""
    names = [latent.name for latent in model.latents]

    @partial(jax.jit, static_argnums=1)
    def priors(columns: Columns, num_units: int, key: PRNGKeyArray) -> list[Array]:
        values = cut(model.latents, model.begin[0])
        sites, log_dets = run_model(model.function, model._arguments(columns, num_units), values, model.theta, key)
        log_probs = {name: jnp.sum(site_log_prob(sites[name])) + jnp.sum(log_dets[name]) for name in names}
        return [jnp.append(sites[name]["value"], log_probs[name]) for name in names]

    def moved(name: str, column: np.ndarray) -> np.ndarray:
        if name == model.unit:
            return column
        return ~column if column.dtype.kind == "b" else 2 * column + 1

    key, other = jax.random.split(jax.random.key(1))
    more = {name: np.concatenate([column, moved(name, column)]) for name, column in columns.items()}
    checks = zip(names, priors(columns, 1, key), priors(columns, 1, other), priors(more, 2, key), strict=True)
    for name, here, by_local, by_data in checks:
        rounding = 16 * float(jnp.finfo(here.dtype).eps)
        same = partial(np.allclose, here, rtol=rounding, atol=rounding, equal_nan=True)
        if not same(by_local):
            raise CavityError(
                f"the global site {name!r} depends on a local one; local latents may depend on global ones only"
            )
        if not same(by_data):
            raise CavityError(
                f"the prior of the global site {name!r} depends on the data (their values, or their number), which no "
                "server has"
            )
