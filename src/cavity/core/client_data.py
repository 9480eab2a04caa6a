"""From the dict of data that a user gives to checked, weighted rows per client."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from cavity.core import ClientSource, Data, LatentModel, Model
from cavity.core.messages import JOINT, is_server_owned
from cavity.core.user_warnings import warn_user
from cavity.errors import DataError, ProtocolError


class Weighted(eqx.Module):
    """Rows with a weight each: a row of weight 2 counts as two, one of weight 0 not at all.

    Example:
        >>> leeds = Weighted((np.eye(2), np.array([0, 1])), weight=[3, 1])
    """

    batch: PyTree
    weight: PyTree  # checked when the rows are prepared


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
        if name in owned:  # these clients have been prepared already
            continue
        if not isinstance(name, str):
            raise DataError(f"client names must be strings; {name!r} is a {type(name).__name__}")
        if name == JOINT or is_server_owned(name):
            raise ProtocolError(f"no client may be called {name!r}; rename it")
        prepared[name] = prepare_client(model, name, value)
    if not model.has_kinds:  # kinds differ in their columns
        _check_agreement(prepared)
    check_units(unit_labels(model, clients))
    _warn_if_one_class(prepared)
    return prepared | owned


def owned_rows(model: Model | LatentModel) -> dict[str, Data]:
    """Rows that the server owns: the part of the prior outside the family."""
    return model.server_entries()


def prepare_client(model: Model | LatentModel, name: str, value: PyTree) -> Data:
    """One client's rows in the model's form; an error names the client."""
    try:
        return as_data(model, value)
    except DataError as error:
        raise DataError(f"client {name!r}: {error}") from None


class Prepared(ClientSource):
    """A source whose data are checked against the model when they are loaded; it includes the server's own rows."""

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
    value, given = _unweighted(value)
    try:
        weight = None if given is None else np.asarray(given, float)
    except (TypeError, ValueError):
        raise DataError("its weights must be numbers, one per row") from None
    if isinstance(value, (tuple, list, Mapping)) and any(np.shape(leaf)[:1] == (0,) for leaf in jax.tree.leaves(value)):
        raise DataError("it has no rows; leave this client out")
    batch, units = model.prepare(value), None
    if isinstance(batch, Data):  # a model with local latents returns the units of the rows too
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


def _unweighted(value: PyTree) -> tuple[PyTree, PyTree]:
    """A client's rows, and their weights where it gave some."""
    return (value.batch, value.weight) if isinstance(value, (Weighted, Data)) else (value, None)


def _check_agreement(prepared: Mapping[str, Data]) -> None:
    """Raise DataError unless all clients have the same arrays with the same columns as the first one."""
    (first, reference), *others = prepared.items()
    for name, data in others:
        if jax.tree.structure(data.batch) != jax.tree.structure(reference.batch):
            raise DataError(f"client {name!r}: its data have a different structure from those of client {first!r}")
        pairs = zip(jax.tree.leaves(data.batch), jax.tree.leaves(reference.batch), strict=True)
        for mine, theirs in pairs:
            if mine.shape[1:] != theirs.shape[1:]:
                raise DataError(
                    f"client {name!r}: an array has columns of shape {mine.shape[1:]} where client {first!r} has "
                    f"{theirs.shape[1:]}; agree on the same columns"
                )


def unit_labels(model: Model | LatentModel, clients: Mapping[str, PyTree]) -> dict[str, tuple[Hashable, ...]]:
    """The names of each client's units, for models with local latents; empty for all others."""
    raw = {name: _unweighted(value)[0] for name, value in clients.items()}
    labels = {name: model.unit_labels(value) for name, value in raw.items()}
    return {name: tuple(found) for name, found in labels.items() if found is not None}


def check_units(labels: Mapping[str, tuple[Hashable, ...]]) -> None:
    """Raise DataError where a unit has rows at two clients: its prior would count twice."""
    home: dict[Hashable, str] = {}
    for name, units in labels.items():
        for label in units:
            if home.setdefault(label, name) != name:
                raise DataError(
                    f"the unit {label!r} has rows at {home[label]!r} and at {name!r}, but its latents belong to one "
                    "client: move its rows there, or rename it where it is a different unit"
                )


def _warn_if_one_class(prepared: Mapping[str, Data]) -> None:
    """Warn if all clients together have one outcome only; at a single client that is common."""
    batches = [data.batch for data in prepared.values()]
    if not all(isinstance(batch, tuple) and len(batch) == 2 for batch in batches):
        return
    outcomes = np.unique(np.concatenate([np.unique(np.asarray(batch[1])) for batch in batches]))
    if len(outcomes) == 1:
        warn_user(
            f"the outcome is {outcomes[0]:g} in every row of every client; the prior alone decides how it depends "
            "on the features. Check the coding of the outcome"
        )


def split_by_size(clients: Mapping[str, PyTree], min_rows: int) -> tuple[dict[str, PyTree], dict[str, int]]:
    """Split clients by their number of rows.

    The factor of a client with few rows can reveal them, so a study refuses small clients by default.

    Returns:
        The clients with at least `min_rows` rows, and the number of rows of the others.
    """
    sizes = {name: len(jax.tree.leaves(data)[0]) for name, data in clients.items()}
    admitted = {name: data for name, data in clients.items() if sizes[name] >= min_rows}
    return admitted, {name: size for name, size in sizes.items() if size < min_rows}
