"""From a dict of whatever users bring to checked, weighted rows per client."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core import ClientSource, Data, LatentModel, Model
from cavity.errors import DataError


class Weighted(eqx.Module):
    """Rows with a weight each: a row of weight 2 counts as two, one of weight 0 not at all.

    Example:
        >>> leeds = Weighted((np.eye(2), np.array([0, 1])), weight=[3, 1])
    """

    batch: PyTree
    weight: Any


def prepare_clients(model: Model | LatentModel, clients: Mapping[str, PyTree]) -> dict[str, Data]:
    """Check every client's rows against the model, before any work starts.

    Raises:
        DataError: naming the client, what is wrong with its data, and what to do.
    """
    if not isinstance(clients, Mapping):
        raise DataError(f"clients must be a dict of name -> data, not a {type(clients).__name__}")
    if not clients:
        raise DataError("there are no clients; give a dict with at least one name -> data")
    prepared, owned = {}, owned_rows(model)
    for name, value in clients.items():
        if name in owned:  # these clients were prepared before
            continue
        if not isinstance(name, str):
            raise DataError(f"client names must be strings; {name!r} is a {type(name).__name__}")
        prepared[name] = prepare_client(model, name, value)
    if not model.has_kinds:  # kinds have been told apart by their columns
        _check_agreement(prepared)
    check_units(unit_labels(model, clients))
    _warn_if_one_class(prepared)
    return prepared | owned


def owned_rows(model: Model | LatentModel) -> dict[str, Data]:
    """Rows whose owner is the server: what of the prior is outside the family."""
    return {} if isinstance(model, LatentModel) else model.server_entries()


def prepare_client(model: Model | LatentModel, name: str, value: PyTree) -> Data:
    """One client's rows in the model's form; an error names the client."""
    try:
        return as_data(model, value)
    except DataError as error:
        raise DataError(f"client {name!r}: {error}") from None


class Prepared(ClientSource):
    """A source whose clients' data are checked against the model as they are loaded, as those of a dict are.

    The server's own rows come with them.
    """

    def __init__(self, model: Model | LatentModel, raw: ClientSource):
        self._model, self._raw, self._owned = model, raw, owned_rows(model)

    @property
    def names(self) -> Sequence[str]:
        return [*self._raw.names, *self._owned] if self._owned else self._raw.names

    def num_rows(self, name: str) -> int | None:
        return len(self._owned[name].weight) if name in self._owned else self._raw.num_rows(name)

    def load(self, names: Sequence[str]) -> list[Data]:
        theirs = [name for name in names if name not in self._owned]
        loaded = self._raw.load(theirs) if theirs else []
        if len(loaded) != len(theirs):
            raise DataError(f"the source returned {len(loaded)} data sets for {len(theirs)} clients, not one each")
        prepared = {name: prepare_client(self._model, name, value) for name, value in zip(theirs, loaded, strict=True)}
        return [(prepared | self._owned)[name] for name in names]


def as_data(model: Model | LatentModel, value: PyTree) -> Data:
    """One client's rows in the model's form, with weights."""
    weight = None
    if isinstance(value, Weighted):
        try:
            value, weight = value.batch, np.asarray(value.weight, float)
        except (TypeError, ValueError):
            raise DataError("its weights must be numbers, one per row") from None
    elif isinstance(value, Data):
        value, weight = value.batch, np.asarray(value.weight)
    if isinstance(value, (tuple, list, Mapping)) and any(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(value)):
        raise DataError("it has no rows; leave this client out")
    batch, units = model.prepare(value), None
    if isinstance(batch, Data):  # a model with local latents says which units the rows belong to
        batch, units = batch.batch, batch.units
    num_rows = len(jax.tree.leaves(batch)[0])
    if num_rows == 0:
        raise DataError("it has no rows; leave this client out")
    weight = np.ones(num_rows) if weight is None else weight
    if weight.shape != (num_rows,):
        raise DataError(f"it has {num_rows} rows but weights of shape {weight.shape}; give one weight per row")
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise DataError("its weights must be finite and not negative")
    return Data(batch, weight, np.asarray(num_rows), units)


def _check_agreement(prepared: Mapping[str, Data]) -> None:
    """All clients have the same arrays with the same columns, as the first one has them."""
    (first, reference), *others = prepared.items()
    for name, data in others:
        if jax.tree.structure(data.batch) != jax.tree.structure(reference.batch):
            raise DataError(f"client {name!r}: its data have another structure than those of client {first!r}")
        pairs = zip(jax.tree.leaves(data.batch), jax.tree.leaves(reference.batch), strict=True)
        for mine, theirs in pairs:
            if mine.shape[1:] != theirs.shape[1:]:
                raise DataError(
                    f"client {name!r}: an array has columns of shape {mine.shape[1:]} where client {first!r} has "
                    f"{theirs.shape[1:]}; agree on the same columns"
                )


def unit_labels(model: Any, clients: Any) -> dict[str, tuple[Any, ...]]:
    """The names of each client's units, for models with local latents; empty for all others."""
    if not isinstance(model, LatentModel) or not isinstance(clients, Mapping):
        return {}
    raw = {name: value.batch if isinstance(value, (Weighted, Data)) else value for name, value in clients.items()}
    labels = {name: model.unit_labels(value) for name, value in raw.items()}
    return {name: tuple(found) for name, found in labels.items() if found is not None}


def check_units(labels: Mapping[str, tuple[Any, ...]]) -> None:
    """A unit with rows at two silos would have two sets of latents, and its prior would count twice."""
    home: dict[Any, str] = {}
    for name, units in labels.items():
        for label in units:
            if home.setdefault(label, name) != name:
                raise DataError(
                    f"the unit {label!r} has rows at {home[label]!r} and at {name!r}; its latents can stay at one silo "
                    "only: move its rows there, or give it another name where it is another unit"
                )


def _warn_if_one_class(prepared: Mapping[str, Data]) -> None:
    """One class at one client is ordinary; over all clients it means that nothing can be learned about it."""
    batches = [data.batch for data in prepared.values()]
    if not all(isinstance(batch, tuple) and len(batch) == 2 for batch in batches):
        return
    outcomes = np.unique(np.concatenate([np.unique(np.asarray(batch[1])) for batch in batches]))
    if len(outcomes) == 1:
        warnings.warn(
            f"the outcome is {outcomes[0]:g} in every row of every client; the prior alone decides how it depends "
            "on the features. Check the coding of the outcome",
            stacklevel=5,  # the line that calls `cavity.run` or `Fit.join`
        )


def split_by_size(clients: Mapping[str, PyTree], min_rows: int) -> tuple[dict[str, PyTree], dict[str, int]]:
    """Those with at least `min_rows` rows, and the number of rows of the others.

    A factor of a client with hardly more rows than coefficients nearly gives its rows away, so a study refuses
    small clients unless it says otherwise.
    """
    sizes = {name: len(jax.tree.leaves(data)[0]) for name, data in clients.items()}
    admitted = {name: data for name, data in clients.items() if sizes[name] >= min_rows}
    return admitted, {name: size for name, size in sizes.items() if size < min_rows}
