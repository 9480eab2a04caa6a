"""The sites of a NumPyro model: evaluated at given values, and tested for which grow with rows and units."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from cavity.core.types import Leaf
from cavity.errors import CavityError

LOG_DET = "log determinant of "
ModelFunction = Callable[..., object]  # a NumPyro model, called with columns as keywords; its result is not used
Columns = Mapping[str, Leaf]
Arguments = Mapping[str, Leaf | int | None]  # what a model function is called with
Site = dict[str, Any]  # NumPyro's record of a site, whose values have no declared types


@runtime_checkable
class Frame(Protocol):
    """A plate around a site, as NumPyro records it."""

    name: str
    dim: int


class SiteShape(eqx.Module):
    """What is known about a site without its values.

    Attributes:
        type: sample, param, plate or another type of NumPyro.
        is_observed: whether it is an observation.
        frames: the plates around it.
        shape: of its value; for an observation, of its log density.
        num_batch_axes: the number of axes of a latent site that are independent.
        unconstrained_shape: of a latent site on the unconstrained scale.
        size: of a plate.
        drawn: how many entries a plate draws; None for all.
    """

    type: str
    is_observed: bool
    frames: Sequence[Frame]
    shape: tuple[int, ...] = ()
    num_batch_axes: int = 0
    unconstrained_shape: tuple[int, ...] = ()
    size: int = 0
    drawn: int | None = None


Shapes = Mapping[str, SiteShape]


def run_model(
    function: ModelFunction,
    arguments: Arguments,
    values: Mapping[str, Array],
    theta: PyTree,
    key: PRNGKeyArray | None = None,
    *,
    validate: bool = False,
) -> tuple[dict[str, Site], dict[str, Array]]:
    """The trace of the model with these unconstrained values, and the log determinants of their bijections.

    NumPyro checks its distributions' parameters only if asked to: an example's columns may be nonsense, such as 0.
    """
    import numpyro
    from numpyro import handlers
    from numpyro.distributions import ImproperUniform, biject_to

    def fill(site: Site) -> Array | None:
        name = site["name"]
        if site["type"] == "param" and theta is not None and name in theta:
            return biject_to(site["kwargs"].get("constraint", _real()))(theta[name])
        if site["type"] != "sample" or site["is_observed"]:
            return None
        fn = site["fn"]
        improper = isinstance(_innermost(fn), ImproperUniform)
        if name not in values and not improper:
            return None
        bijection = _bijection(site)
        shape = tuple(bijection.inverse_shape(fn.shape()))
        if name not in values:  # it cannot be drawn
            return bijection(jnp.zeros(shape))
        at, step = values[name], site["infer"].get("_scan_current_index")
        if step is not None and at.ndim > len(shape):
            at = at[step]
        value = bijection(at)
        log_det = bijection.log_abs_det_jacobian(at, value)
        within = tuple(range(value.ndim - fn.event_dim, log_det.ndim))
        # a site of its own, as in NumPyro, so that the scales and masks around the latent hold for it too
        numpyro.factor(LOG_DET + name, jnp.sum(log_det, axis=within))
        return value

    seeded = handlers.seed(handlers.substitute(function, substitute_fn=fill), jax.random.key(0) if key is None else key)
    with numpyro.validation_enabled(validate):
        sites = handlers.trace(seeded).get_trace(**arguments)
    found = {name.split(LOG_DET)[-1]: site for name, site in sites.items() if LOG_DET in name}
    return sites, {name: site_log_prob(site) for name, site in found.items()}


def arguments(
    function: ModelFunction, columns: Mapping[str, Leaf | None], num_units: str | None, count: int | None
) -> dict[str, Leaf | int | None]:
    """The arguments of the function: the columns that it takes, and the number of units if it has this argument."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    chosen = {name: column for name, column in columns.items() if takes_all or name in parameters}
    found: dict[str, Leaf | int | None] = {
        name: None if column is None else jnp.asarray(column) for name, column in chosen.items()
    }
    return found if num_units is None else found | {num_units: 1 if count is None else count}


def probe(
    function: ModelFunction, columns: dict[str, np.ndarray], unit: str | None, num_units: str | None
) -> dict[str, Shapes]:
    """The shapes of the sites with the example, with twice its rows, and with one more unit."""
    count = count_units(columns, unit)
    doubled = {name: np.concatenate([column, column]) for name, column in columns.items()}
    traces = {
        "as it is": _shapes(function, arguments(function, columns, num_units, count)),
        "twice the rows": _shapes(function, arguments(function, doubled, num_units, count)),
        "one more unit": _shapes(function, arguments(function, columns, num_units, count + 1)),
    }
    for trace in traces.values():
        if changing := sorted(set(trace) ^ set(traces["as it is"])):
            raise CavityError(
                f"the site {changing[0]!r} exists for some numbers of rows or units only; use a plate, not a loop"
            )
    return traces


def count_units(columns: Mapping[str, np.ndarray], unit: str | None) -> int:
    """How many units the column numbers; 1 where there is none."""
    return int(columns[unit].max()) + 1 if unit is not None and unit in columns else 1


def _shapes(function: ModelFunction, called_with: Arguments) -> Shapes:
    """Name -> type and shapes of each site. The model is traced, as it is when it is compiled."""
    found: dict[str, SiteShape] = {}
    rest = {name: value for name, value in called_with.items() if isinstance(value, int)}
    arrays = {name: value for name, value in called_with.items() if name not in rest}

    def run(arrays: dict[str, Array]) -> None:
        sites, _ = run_model(function, rest | arrays, {}, None, validate=True)
        for name, site in sites.items():
            entry = SiteShape(site["type"], bool(site.get("is_observed", False)), site.get("cond_indep_stack", []))
            if site["type"] == "plate":
                entry = replace(entry, size=site["args"][0], drawn=site["args"][1])
            elif site["type"] == "param":
                entry = replace(entry, shape=np.shape(site["value"]))
            elif site["type"] == "sample" and site["is_observed"]:
                entry = replace(entry, shape=jnp.shape(site_log_prob(site)))
            elif site["type"] == "sample":
                if site["fn"].is_discrete:
                    raise CavityError(
                        f"the latent site {name!r} is discrete; sum it out in the model (a mixture, `enumerate`), "
                        "or give it a continuous relaxation"
                    )
                shape = jnp.shape(site["value"])
                entry = replace(
                    entry,
                    shape=shape,
                    num_batch_axes=len(shape) - site["fn"].event_dim,
                    unconstrained_shape=tuple(_bijection(site).inverse_shape(shape)),
                )
            found[name] = entry

    try:
        jax.eval_shape(run, arrays)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise CavityError(
            "the model looks at the values of its data in Python (a number of units, a branch), which it cannot do "
            f"when it is compiled; give the number of units through `num_units`. JAX says: {str(error).splitlines()[0]}"
        ) from None
    return found


def grown_axis(name: str, traces: Mapping[str, Shapes], which: str) -> int | None:
    """The axis along which a site grows in another trace, or None."""
    base, other = traces["as it is"][name].shape, traces[which][name].shape
    if len(base) != len(other):
        raise CavityError(f"the site {name!r} changes its number of dimensions with the data")
    axes = [axis for axis, (a, b) in enumerate(zip(base, other, strict=True)) if a != b]
    if len(axes) > 1:
        raise CavityError(f"the site {name!r} grows along {len(axes)} axes with the data; it may along one")
    return axes[0] if axes else None


def check_param(name: str, traces: Mapping[str, Shapes]) -> None:
    """What is learned is the same for all clients."""
    if any(grown_axis(name, traces, which) is not None for which in ("twice the rows", "one more unit")):
        raise CavityError(
            f"the numpyro.param {name!r} has one value per row or unit, but all clients share it; make it a latent site"
        )


def latent_axis(name: str, traces: Mapping[str, Shapes], unit: str | None, count: int) -> int | None:
    """The axis of a latent site along which the `count` units lie (the rows, where no column says); None if global."""
    site, wider = traces["as it is"][name], traces["twice the rows"]
    by_row, by_unit = (grown_axis(name, traces, which) for which in ("twice the rows", "one more unit"))
    if plates := [frame.name for frame in drawing(wider[name], wider)]:
        raise CavityError(
            f"the latent site {name!r} is in the plate {plates[0]!r}, which draws some of its rows or units; only "
            "observations can be drawn, latents need a plate of their own without `subsample_size`"
        )
    if unit is not None and by_row is not None:
        raise CavityError(
            f"the latent site {name!r} has one value per row, but the units are those of the column {unit!r}; "
            "make every row a unit (leave the column out of the function's arguments)"
        )
    axis = by_row if unit is None else by_unit
    if axis is None:
        return None
    if axis >= site.num_batch_axes:
        raise CavityError(
            f"the latent site {name!r} is one draw for all rows or units together (`to_event`, or a multivariate "
            "distribution over them), which clients cannot share; put it into a plate"
        )
    if site.shape[axis] != count:
        raise CavityError(f"the latent site {name!r} has {site.shape[axis]} values for {count} rows or units")
    return axis


def observed_axis(name: str, traces: Mapping[str, Shapes], num_rows: int) -> int:
    """The axis of an observed site along which the rows lie, counted from the last."""
    base, wider = traces["as it is"], traces["twice the rows"]
    plates = list(drawing(wider[name], wider))
    for frame in plates:
        if (base[frame.name].size, wider[frame.name].size) == (num_rows, 2 * num_rows):
            return frame.dim
    axis, shape = grown_axis(name, traces, "twice the rows"), base[name].shape
    if axis is None:
        what = "value per unit" if grown_axis(name, traces, "one more unit") is not None else "sum"
        raise CavityError(
            f"the observed site {name!r} is not one value per row of the data but one {what}, so it cannot be "
            "divided over clients; put it into a plate over the rows"
        )
    if (shape[axis], wider[name].shape[axis]) != (num_rows, 2 * num_rows):
        raise CavityError(f"the observed site {name!r} has {shape[axis]} values for {num_rows} rows; it needs one each")
    for frame in plates:
        if frame.dim == axis - len(shape):
            raise CavityError(
                f"the plate {frame.name!r} of the observed site {name!r} has the size {base[frame.name].size}, but "
                f"there are {num_rows} rows; let its size be their number"
            )
    return axis - len(shape)


def drawing(site: SiteShape, trace: Shapes) -> Iterator[Frame]:
    """The plates around a site that draw some of their entries."""
    for frame in site.frames:
        plate = trace.get(frame.name)
        if plate is not None and plate.drawn is not None and plate.drawn != plate.size:
            yield frame


def drawn_rows(sites: Mapping[str, Site], name: str, axis: int) -> Array | None:
    """Which rows a plate has drawn for a site whose rows lie along this axis; None for all."""
    for frame in sites[name]["cond_indep_stack"]:
        size, drawn = sites[frame.name]["args"] if frame.name in sites else (0, None)
        if frame.dim == axis and drawn is not None and drawn != size:
            return sites[frame.name]["value"]
    return None


def site_log_prob(site: Site) -> Array:
    """Log density of a site's value, scaled as its plates say; one number per independent entry."""
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site.get("scale") is None else log_prob * site["scale"]


def sum_but(term: Array, axis: int) -> Array:
    """The sum over all axes but one."""
    return jnp.sum(term, axis=tuple(i for i in range(term.ndim) if i != axis % term.ndim))


def unconstrained_param(site: Site) -> Array:
    """Where a `numpyro.param` starts, on the unconstrained scale."""
    from numpyro.distributions import biject_to

    name, value = site["name"], site["value"]
    if not isinstance(value, (int, float, np.ndarray, jax.Array)):
        raise CavityError(f"the numpyro.param {name!r} needs an array as its start, not a {type(value).__name__}")
    start = jnp.asarray(biject_to(site["kwargs"].get("constraint", _real())).inv(jnp.asarray(value, float)))
    if not np.isfinite(start).all():
        raise CavityError(f"the numpyro.param {name!r} starts at {value}, outside or at the edge of its constraint")
    return start


def _bijection(site: Site) -> Any:
    from numpyro.distributions import biject_to

    try:
        return biject_to(site["fn"].support)
    except NotImplementedError:
        raise CavityError(
            f"the latent site {site['name']!r} has the support {site['fn'].support}, which NumPyro has no bijection "
            "to; reparameterise it"
        ) from None


def _innermost(fn: Any) -> Any:
    """A distribution without its expansions, masks and events."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def _real() -> Any:
    from numpyro.distributions import constraints

    return constraints.real


def unconstrained_value(site: Site) -> Array:
    """A latent site's value on the unconstrained scale."""
    from numpyro.distributions import biject_to

    return biject_to(site["fn"].support).inv(site["value"])
