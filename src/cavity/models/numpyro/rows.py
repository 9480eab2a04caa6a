"""Whether a NumPyro model's rows and units are independent, and what it makes of units without rows.

An observed site may see its own row and its unit's latents alone. The prior of a unit's latents may look at the rows of
that unit too (a covariate of a county), as long as copies of a row, with which clients are padded, do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from cavity.errors import CavityError
from cavity.models.numpyro.latent_model import NumpyroModel, cut, cut_units
from cavity.models.numpyro.sites import Columns, count_units, run_model, site_log_prob, sum_but
from cavity.models.row_independence import NUM_OTHERS, TOLERANCE, Company, depends_on_others, some_values

MORE_UNITS = 3  # beside those of the example; one of them without rows

Terms = dict[str, np.ndarray]  # site -> log densities of rows or units [n, 2], at two values of the global latents


def check_rows(model: NumpyroModel, columns: Mapping[str, np.ndarray], drawn: Sequence[str]) -> None:
    """Raise CavityError where the log density of a row or unit depends on others; `drawn` sites are left out."""
    num_rows = len(next(iter(columns.values())))
    probe = _Probe(model, columns, drawn)
    name = depends_on_others(probe.of_rows, num_rows, removed=not drawn)
    padding = np.zeros(num_rows + NUM_OTHERS, int)  # copies of the first row
    _, alone = probe.terms(Company(np.arange(num_rows)))
    _, padded = probe.terms(Company(np.concatenate([np.arange(num_rows), padding]), np.arange(num_rows)))
    for site, expected in alone.items():
        if not np.allclose(padded[site][: len(expected)], expected, TOLERANCE, TOLERANCE, equal_nan=True):
            name = name or site
    if name is not None:
        raise CavityError(
            f"the value of site {name!r} for a row or unit depends on others at the same client (a mean over rows, "
            "their number or order, the previous row, latents of other units); compute it in advance, as a column"
        )
    for site, expected in alone.items():
        if np.isfinite(expected).all() and not np.isfinite(padded[site]).all():
            raise CavityError(
                f"the site {site!r} is not finite for a unit without rows, as used for padding; let the model "
                "give such a unit a finite value, such as 0"
            )


class _Probe:
    """Evaluates a model at the rows of its example, with and without other rows, and with the same latents."""

    def __init__(self, model: NumpyroModel, columns: Mapping[str, np.ndarray], drawn: Sequence[str]):
        self._model, self._columns = model, dict(columns)
        self._unit_of_row = self._columns.pop(model.unit, None) if model.unit is not None else None
        self._num_rows = len(next(iter(columns.values())))
        self._num_units = self._num_rows if model.rows_are_units else count_units(columns, model.unit)
        self._at = [model.begin[0], some_values(model.begin[0], model.prior_scale)]
        size = (self._num_rows + self._num_units + MORE_UNITS, model.num_local)
        self._own = np.random.default_rng(2).normal(size=size).astype(model.begin[0].dtype)

        @partial(jax.jit, static_argnums=1)
        def terms(columns: Columns, count: int, z: Array, own: Array) -> tuple[dict, dict]:
            values = cut(model.latents, z) | cut_units(model.locals_, own)
            called_with = model._arguments(columns, count)
            sites, log_dets = run_model(model.function, called_with, values, model.theta, jax.random.key(2))
            rows = {name: sum_but(site_log_prob(sites[name]), axis) for name, axis in model.row_axes}
            units = {}
            for latent in model.locals_:
                term = site_log_prob(sites[latent.name]) + log_dets[latent.name]
                axis = latent.unit_axis
                units[latent.name] = jnp.sum(term)[None] if axis is None else sum_but(term, axis)
            return {name: term for name, term in rows.items() if name not in drawn}, units

        self._terms = terms

    def _units(self, company: Company) -> tuple[np.ndarray, np.ndarray | None]:
        """Whose latents each unit has, and the unit of each row; other units come first, and an empty one last."""
        num_units, unit_of_row = self._num_units, self._unit_of_row
        if self._model.rows_are_units:
            return np.where(company.is_other, self._num_rows + company.rows, company.rows), None
        if unit_of_row is None or not company.is_other.any():
            return np.arange(num_units), None if unit_of_row is None else unit_of_row[company.rows]
        first = MORE_UNITS - 1 if company.apart else 0
        whose = np.roll(np.arange(num_units + MORE_UNITS), first)
        whose[:first], whose[num_units + first :] = num_units + np.arange(first), num_units + MORE_UNITS - 1
        return whose, np.where(
            company.is_other & company.apart, company.rows % (MORE_UNITS - 1), first + unit_of_row[company.rows]
        )

    def terms(self, company: Company) -> tuple[Terms, Terms]:
        """Of the rows, and of the units."""
        given = {name: company.column(column) for name, column in self._columns.items()}
        whose, unit_of_row = self._units(company)
        if unit_of_row is not None and self._model.unit is not None:
            given[self._model.unit] = unit_of_row.astype(np.int32)
        try:
            found = [self._terms(given, len(whose), z, jnp.asarray(self._own[whose])) for z in self._at]
        except (TypeError, ValueError) as error:
            raise CavityError(
                f"the model cannot be computed with {len(company.rows)} rows, but clients have different numbers: "
                f"{error}"
            ) from None
        return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *found)

    def of_rows(self, company: Company) -> Terms:
        """Of the rows, and of the units of each row where these have no other rows than in the example."""
        rows, units = self.terms(company)
        if self._model.rows_are_units:
            return rows | units
        _, unit_of_row = self._units(company)
        if unit_of_row is None or not company.apart:
            return rows
        return rows | {name: term[unit_of_row] for name, term in units.items()}
