"""The sites of a NumPyro model: run with given values, and probed for what grows with rows and units."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cavity.errors import CavityError


def run_model(
    function: Callable[..., Any], arguments: Mapping[str, Any], values: Mapping[str, Array], theta: Any, key: Any = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The trace of the model with these unconstrained values, and the log determinants of their bijections."""
    from numpyro import handlers
    from numpyro.distributions import biject_to

    log_dets: dict[str, Array] = {}

    def fill(site: dict[str, Any]) -> Any:
        name = site["name"]
        if site["type"] == "param" and theta is not None and name in theta:
            return biject_to(site["kwargs"].get("constraint", _real()))(theta[name])
        if site["type"] != "sample" or site["is_observed"] or name not in values:
            return None
        bijection = biject_to(site["fn"].support)
        value = bijection(values[name])
        log_dets[name] = bijection.log_abs_det_jacobian(values[name], value)
        return value

    seeded = handlers.seed(handlers.substitute(function, substitute_fn=fill), jax.random.key(0) if key is None else key)
    return handlers.trace(seeded).get_trace(**arguments), log_dets


def arguments(
    function: Callable[..., Any], columns: Mapping[str, Any], num_units: str | None, count: int | None
) -> dict[str, Any]:
    """What the function is called with: the columns that it takes, and the number of units if it asks for it."""
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    chosen = {name: column for name, column in columns.items() if takes_all or name in parameters}
    return chosen if num_units is None else chosen | {num_units: 1 if count is None else count}


def probe(
    function: Callable[..., Any], columns: dict[str, np.ndarray], unit: str | None, num_units: str | None
) -> dict[str, dict[str, Any]]:
    """What the sites look like with the example, with twice its rows, and with one more unit."""
    count = int(columns[unit].max()) + 1 if unit is not None and unit in columns else 1
    doubled = {name: np.concatenate([column, column]) for name, column in columns.items()}
    return {
        "as it is": _shapes(function, arguments(function, columns, num_units, count)),
        "twice the rows": _shapes(function, arguments(function, doubled, num_units, count)),
        "one more unit": _shapes(function, arguments(function, columns, num_units, count + 1)),
    }


def _shapes(function: Callable[..., Any], called_with: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> type and shapes of each site; run abstractly, as it will be when it is compiled."""
    from numpyro.distributions import biject_to

    found: dict[str, dict[str, Any]] = {}
    arrays = {name: value for name, value in called_with.items() if isinstance(value, np.ndarray)}
    rest = {name: value for name, value in called_with.items() if name not in arrays}

    def run(arrays: dict[str, Array]) -> None:
        sites, _ = run_model(function, rest | arrays, {}, None)
        for name, site in sites.items():
            entry: dict[str, Any] = {"type": site["type"], "is_observed": site.get("is_observed", False)}
            entry["frames"] = site.get("cond_indep_stack", [])
            if site["type"] == "plate":
                entry["size"], entry["subsample"] = site["args"]
            elif site["type"] == "param":
                entry |= {"kwargs": site["kwargs"], "args": site["args"]}
            elif site["type"] == "sample" and site["is_observed"]:
                entry["shape"] = jnp.shape(site_log_prob(site))
            elif site["type"] == "sample":
                if site["fn"].is_discrete:
                    raise CavityError(
                        f"the latent site {name!r} is discrete; sum it out in the model (a mixture, `enumerate`), "
                        "or give it a continuous relaxation"
                    )
                entry["shape"] = jnp.shape(site["value"])
                bijection = biject_to(site["fn"].support)
                entry["unconstrained_shape"] = tuple(bijection.inverse_shape(jnp.shape(site["value"])))
            found[name] = entry

    try:
        jax.eval_shape(run, arrays)
    except jax.errors.ConcretizationTypeError as error:
        raise CavityError(
            "the model looks at the values of its data in Python (a number of units, a branch), which it cannot do "
            f"when it is compiled; give the number of units through `num_units`. JAX says: {str(error).splitlines()[0]}"
        ) from None
    return found


def grown_axis(name: str, traces: Mapping[str, Mapping[str, Any]], which: str) -> int | None:
    """The axis along which a site grows in another trace, or None."""
    base, other = traces["as it is"][name]["shape"], traces[which].get(name, {"shape": ()})["shape"]
    if len(base) != len(other):
        raise CavityError(f"the site {name!r} changes its number of dimensions with the data")
    axes = [axis for axis, (a, b) in enumerate(zip(base, other, strict=True)) if a != b]
    if len(axes) > 1:
        raise CavityError(f"the site {name!r} grows along {len(axes)} axes with the data; it may along one")
    return axes[0] if axes else None


def subsampled_axis(site: Mapping[str, Any], base: Mapping[str, Any]) -> int:
    """The axis of a plate that draws rows; where there is none either, the site is not one value per row."""
    for frame in site["frames"]:
        plate = base.get(frame.name, {})
        if plate.get("subsample") is not None and plate["subsample"] != plate["size"]:
            return frame.dim
    name = next(name for name, entry in base.items() if entry is site)
    raise CavityError(
        f"the observed site {name!r} is not one value per row of the data, so it cannot be shared out to silos; put it "
        "into a plate over the rows"
    )


def row_weights(sites: Mapping[str, Any], name: str, weight: Any) -> Any:
    """The weights of the rows that a site observes: all of them, or those that a plate has drawn."""
    for frame in sites[name]["cond_indep_stack"]:
        size, subsample = sites[frame.name]["args"] if frame.name in sites else (0, None)
        if subsample is not None and subsample != size:
            return weight[sites[frame.name]["value"]]
    return weight


def site_log_prob(site: Mapping[str, Any]) -> Array:
    """Log density of a site's value, scaled as its plates say; one number per independent entry."""
    log_prob = site["fn"].log_prob(site["value"])
    return log_prob if site.get("scale") is None else log_prob * site["scale"]


def sum_but(term: Array, axis: int) -> Array:
    """The sum over all axes but one."""
    return jnp.sum(term, axis=tuple(i for i in range(term.ndim) if i != axis))


def unconstrained_param(site: Mapping[str, Any]) -> Array:
    """Where a `numpyro.param` starts, on the unconstrained scale."""
    from numpyro.distributions import biject_to

    value = site["args"][0]
    if value is None or callable(value):
        raise CavityError("a numpyro.param needs a start value, not a function")
    return jnp.asarray(biject_to(site["kwargs"].get("constraint", _real())).inv(jnp.asarray(value, float)))


def _real() -> Any:
    from numpyro.distributions import constraints

    return constraints.real
