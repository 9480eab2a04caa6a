"""Divide one data set among clients.

Every function except `select` returns a partition: client name -> row indices of the client, ascending. Each row
belongs to exactly one client; only `size_and_label_skew` leaves a few rows out. Names are padded with zeros
(`client-00`, `client-01`, ...), so that sorting them keeps their order. `rng` is the only source of randomness, and
`labels` has one entry per row. A division that would leave a client without rows is a ValueError.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

Batch = TypeVar("Batch")
Partition = dict[str, np.ndarray]

# Sizes are floors of products such as 10 * (1 - 0.9), which is 0.9999999999999998 in float64.
_ROUNDING = 1e-9


def homogeneous(rng: np.random.Generator, num_rows: int, num_clients: int) -> Partition:
    """Divide rows at random into parts of equal size (to within one row).

    Args:
        rng: Source of randomness.
        num_rows: Number of rows of the data set.
        num_clients: Number of clients.

    Returns:
        Client name -> row indices.

    Example:
        >>> parts = homogeneous(np.random.default_rng(0), num_rows=7, num_clients=2)
        >>> {name: len(rows) for name, rows in parts.items()}
        {'client-00': 4, 'client-01': 3}
    """
    _check_num_clients(num_clients, num_rows)
    return _named(np.array_split(rng.permutation(num_rows), num_clients))


def size_and_label_skew(
    rng: np.random.Generator, labels: np.ndarray, num_clients: int, beta: float, kappa: float
) -> Partition:
    """Half of the clients are small and half large, and the small ones have another share of positive labels.

    The scheme of Partitioned Variational Inference (Ashman et al., 2022), appendix E.1. With N rows, M
    clients, and eta the share of positive labels among all rows,

        N_small = floor(N / M * (1 - beta)),    N_large = floor(N / M * (1 + beta))     (75)
        eta_small = eta * (1 - kappa),          kappa in [1 - 1 / eta, 1]               (76)

    The paper misprints (76), its range and the text after it; its table 2 follows the equations above. With kappa = 1
    small clients have only negative labels, with kappa = 1 - 1 / eta only positive ones. The number of negative rows
    of a small client is rounded down. The remaining rows are divided at random among the large clients, whose shares
    of labels therefore differ by chance (table 2 shows one draw). Because of the floors in (75), fewer than M rows
    belong to no client.

    Args:
        rng: Source of randomness.
        labels: Two values, the positive one above zero (0 and 1, -1 and 1, or booleans). Shape [n].
        num_clients: Number of clients, even. The first half are small.
        beta: Skew of the sizes, in [0, 1). Zero gives all clients the same size.
        kappa: Skew of the labels. Below zero, the share of positive labels is larger at small clients than overall.

    Returns:
        Client name -> row indices.

    Raises:
        ValueError: If beta or kappa is out of range, or there are too few labels of one kind.

    Example:
        >>> labels = np.arange(100) % 4 == 0
        >>> parts = size_and_label_skew(np.random.default_rng(0), labels, num_clients=2, beta=0.6, kappa=-1.0)
        >>> {name: (len(rows), float(labels[rows].mean())) for name, rows in parts.items()}
        {'client-00': (20, 0.5), 'client-01': (80, 0.1875)}
    """
    positive = _positive(labels)
    num_rows, half = len(positive), num_clients // 2
    _check_num_clients(num_clients, num_rows)
    if num_clients % 2:
        raise ValueError(f"num_clients must be even (half small, half large); it is {num_clients}")
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1); it is {beta}")
    eta = positive.mean()
    if not 1 - 1 / eta - _ROUNDING <= kappa <= 1:
        raise ValueError(f"kappa must be in [{1 - 1 / eta:.4g}, 1] if {eta:.1%} are positive; it is {kappa}")

    num_small = int(np.floor(num_rows / num_clients * (1 - beta) + _ROUNDING))
    num_large = int(np.floor(num_rows / num_clients * (1 + beta) + _ROUNDING))
    if num_small == 0:
        raise ValueError(
            f"beta = {beta} leaves small clients no row, with {num_rows / num_clients:g} rows per client on average"
        )
    num_negative = int(np.floor(num_small * (1 - eta * (1 - kappa)) + _ROUNDING))
    num_positive = num_small - num_negative

    positives = rng.permutation(np.flatnonzero(positive))
    negatives = rng.permutation(np.flatnonzero(~positive))
    for kind, rows, needed in (("positive", positives, num_positive), ("negative", negatives, num_negative)):
        if half * needed > len(rows):
            raise ValueError(
                f"not enough {kind} labels: {half} small clients need {needed} each, there are {len(rows)}. "
                f"Use a beta above {beta}, or a kappa closer to zero than {kappa}"
            )
    positives, other_positives = np.split(positives, [half * num_positive])
    negatives, other_negatives = np.split(negatives, [half * num_negative])
    small = np.hstack([positives.reshape(half, num_positive), negatives.reshape(half, num_negative)])
    others = rng.permutation(np.concatenate([other_positives, other_negatives]))
    return _named([*small, *others[: half * num_large].reshape(half, num_large)])


def label_shards(rng: np.random.Generator, labels: np.ndarray, num_clients: int, shards_per_client: int) -> Partition:
    """Sort rows by label, cut them into equal shards, and give each client some shards at random.

    The scheme of McMahan et al. (2017). A shard may contain two labels, so a client with two shards has mostly two
    labels, and sometimes three or four. Labels may be of any type that can be sorted.

    Args:
        rng: Source of randomness.
        labels: One per row, shape [n].
        num_clients: Number of clients.
        shards_per_client: Number of shards of each client.

    Returns:
        Client name -> row indices.

    Example:
        >>> labels = np.repeat([3, 5, 7, 9], 10)
        >>> parts = label_shards(np.random.default_rng(0), labels, num_clients=2, shards_per_client=2)
        >>> [len(np.unique(labels[rows])) for rows in parts.values()]
        [2, 2]
    """
    labels = _one_dimensional(labels)
    _check_num_clients(num_clients, len(labels))
    num_shards = num_clients * shards_per_client
    if not 1 <= num_shards <= len(labels):
        raise ValueError(f"{len(labels)} rows cannot make {num_clients} x {shards_per_client} shards; use fewer")
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(by_label, num_shards)
    dealt = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return _named([np.concatenate([shards[i] for i in hand]) for hand in dealt])


def dirichlet(rng: np.random.Generator, labels: np.ndarray, num_clients: int, concentration: float) -> Partition:
    """Clients of equal size (to within one row), each with shares of labels from a Dirichlet distribution.

    The scheme of Hsu et al. (2019): client m draws pi_m ~ Dirichlet(concentration * p), with p the shares of labels in
    the data set, and takes rows whose labels follow pi_m, without replacement. When no rows of a label are left, the
    label is removed from pi_m, which is renormalised; the shares of the last clients are therefore less variable. With
    a concentration near zero a client has a single label; with a large one the division is homogeneous.

    Args:
        rng: Source of randomness.
        labels: One per row, shape [n].
        num_clients: Number of clients.
        concentration: Of the Dirichlet distribution; positive and finite.

    Returns:
        Client name -> row indices.

    Example:
        >>> labels = np.repeat([0, 1], 50)
        >>> parts = dirichlet(np.random.default_rng(0), labels, num_clients=4, concentration=0.5)
        >>> [len(rows) for rows in parts.values()]
        [25, 25, 25, 25]
    """
    labels = _one_dimensional(labels)
    _check_num_clients(num_clients, len(labels))
    if not 0 < concentration < np.inf:
        raise ValueError(f"concentration must be positive and finite; it is {concentration}")
    _, codes, left = np.unique(labels, return_inverse=True, return_counts=True)
    whole = left / len(labels)
    pools = [rng.permutation(np.flatnonzero(codes == code)) for code in range(len(left))]
    parts = []
    for part in np.array_split(np.arange(len(labels)), num_clients):
        counts = _label_counts(rng, rng.dirichlet(concentration * whole), left, len(part))
        taken = [pool[n - c : n] for pool, n, c in zip(pools, left, counts, strict=True)]
        parts.append(np.concatenate(taken))
        left = left - counts
    return _named(parts)


def _label_counts(rng: np.random.Generator, shares: np.ndarray, left: np.ndarray, size: int) -> np.ndarray:
    """Number of rows of each label for a client of `size` rows, where `left` rows of each label are available."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        weights = np.where(counts < left, shares, 0.0)
        if weights.sum() == 0:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, weights / weights.sum()), left)
    return counts


def k_means(rng: np.random.Generator, features: np.ndarray, num_clients: int) -> Partition:
    """One client for each k-means cluster of the standardised features, shape [n, p]. Needs scikit-learn.

    Constant columns are ignored. The sizes are those of the clusters.

    Args:
        rng: Source of randomness.
        features: Shape [n, p], without missing values.
        num_clients: Number of clients.

    Returns:
        Client name -> row indices.

    Example:
        >>> features = np.array([[0.0], [0.1], [5.0], [5.1]])
        >>> parts = k_means(np.random.default_rng(0), features, num_clients=2)
        >>> sorted(rows.tolist() for rows in parts.values())
        [[0, 1], [2, 3]]
    """
    from sklearn.cluster import KMeans

    features = _features(features)
    _check_num_clients(num_clients, len(np.unique(features, axis=0)), rows="distinct rows")
    standardised = _standardised(features)
    seed = int(rng.integers(2**31))
    clusters = KMeans(num_clients, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    nearest = clusters.fit_predict(standardised)
    return _named([np.flatnonzero(nearest == i) for i in range(num_clients)])


def along_component(features: np.ndarray, num_clients: int) -> Partition:
    """Rows in the order of the first principal component of the standardised features [n, p], cut into equal parts.

    The inhomogeneous counterpart of `homogeneous`: sizes differ by at most one row, and each client has its own range
    of the inputs. Nothing is random. The sign of the component makes its largest weight positive.

    Args:
        features: Shape [n, p], without missing values.
        num_clients: Number of clients.

    Returns:
        Client name -> row indices.

    Example:
        >>> features = np.array([[0.0, 1.0], [3.0, 7.0], [1.0, 3.0], [2.0, 5.0]])
        >>> {name: rows.tolist() for name, rows in along_component(features, num_clients=2).items()}
        {'client-00': [0, 2], 'client-01': [1, 3]}
    """
    features = _features(features)
    _check_num_clients(num_clients, len(features))
    standardised = _standardised(features)
    _, vectors = np.linalg.eigh(standardised.T @ standardised)  # ascending
    component = vectors[:, -1] * np.sign(vectors[np.argmax(np.abs(vectors[:, -1])), -1])
    order = np.argsort(standardised @ component, kind="stable")
    return _named(np.array_split(order, num_clients))


def by_blocks(places: np.ndarray, num_clients: int) -> Partition:
    """Clients as blocks of neighbouring places [n, d], such as longitude and latitude, by repeated cuts in two.

    A block for m clients is cut across its longest side, in the units of `places`, so that the numbers of rows on the
    two sides are as close as possible to the ratio of floor(m / 2) to ceil(m / 2). Sizes are therefore about
    n / num_clients. Rows at the same place stay together. Nothing is random.

    Args:
        places: Coordinates, shape [n, d], without missing values.
        num_clients: Number of clients.

    Returns:
        Client name -> row indices.

    Example:
        >>> places = np.array([[0.0, 0.0], [9.0, 0.0], [1.0, 0.0], [8.0, 3.0], [0.0, 0.0], [9.0, 1.0]])
        >>> {name: rows.tolist() for name, rows in by_blocks(places, num_clients=2).items()}
        {'client-00': [0, 2, 4], 'client-01': [1, 3, 5]}
    """
    distinct, codes, counts = np.unique(_features(places), axis=0, return_inverse=True, return_counts=True)
    _check_num_clients(num_clients, len(distinct), rows="distinct places")
    blocks = _cut(np.arange(len(distinct)), num_clients, distinct, counts)
    return _named([np.flatnonzero(np.isin(codes.ravel(), block)) for block in blocks])


def _cut(members: np.ndarray, num_blocks: int, places: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Blocks of `members`, which are indices of places; `counts` has the number of rows at each place."""
    if num_blocks == 1:
        return [members]
    longest = np.argmax(np.ptp(places[members], axis=0))
    members = members[np.argsort(places[members, longest], kind="stable")]
    few = num_blocks // 2
    rows_before = np.cumsum(counts[members])
    # every block on either side needs at least one place
    ends = np.arange(few, len(members) - (num_blocks - few) + 1)
    wanted = rows_before[-1] * few / num_blocks
    end = ends[np.argmin(np.abs(rows_before[ends - 1] - wanted))]
    return [
        *_cut(members[:end], few, places, counts),
        *_cut(members[end:], num_blocks - few, places, counts),
    ]


def by_column(values: ArrayLike) -> Partition:
    """One client for each value of a column (such as the hospital of a patient), named `str(value)`, sorted by name.

    Args:
        values: One per row, shape [n], without missing values.

    Returns:
        Client name -> row indices.

    Example:
        >>> {name: rows.tolist() for name, rows in by_column(["york", "leeds", "york"]).items()}
        {'leeds': [1], 'york': [0, 2]}
    """
    column = _one_dimensional(values)
    names, codes = np.unique([str(value) for value in column], return_inverse=True)
    if num_missing := sum(value is None or str(value) in ("", "nan", "NaT", "<NA>") for value in column):
        raise ValueError(f"the column has {num_missing} missing values; name the client of these rows, or drop them")
    return {str(name): np.flatnonzero(codes == code) for code, name in enumerate(names)}


def select(batch: Batch, indices: Mapping[str, np.ndarray]) -> dict[str, Batch]:
    """The rows of each client from `batch`, an array or a pytree of arrays with rows along the first axis.

    Args:
        batch: Arrays with n rows each.
        indices: Client name -> row indices.

    Returns:
        Client name -> its rows, in the form of `batch`.

    Example:
        >>> x, y = np.arange(6).reshape(3, 2), np.array([10, 11, 12])
        >>> select({"x": x, "y": y}, {"leeds": np.array([0, 2])})["leeds"]["y"]
        array([10, 12])
    """
    import jax

    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(
            f"the arrays of a batch must have the same length along the first axis; the lengths are {sorted(lengths)}"
        )
    ((num_rows,),) = lengths
    for name, rows in indices.items():
        # JAX would clamp an index that is out of bounds, and repeat the last row.
        if len(rows) and not 0 <= np.min(rows) <= np.max(rows) < num_rows:
            raise IndexError(f"client {name!r}: rows {np.min(rows)} to {np.max(rows)} of a batch of {num_rows}")
    return {name: jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch) for name, rows in indices.items()}


def _named(parts: Sequence[np.ndarray]) -> Partition:
    width = max(2, len(str(len(parts) - 1)))
    return {f"client-{i:0{width}d}": np.sort(part) for i, part in enumerate(parts)}


def _one_dimensional(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"values must have shape [n], one per row; the shape is {array.shape}")
    return array


def _features(values: np.ndarray) -> np.ndarray:
    features = np.asarray(values, dtype=np.float64)
    if features.ndim != 2:
        raise ValueError(f"features must have shape [n, p]; they have {features.shape}")
    if num_bad := np.sum(~np.isfinite(features)):
        raise ValueError(f"features have {num_bad} missing or infinite values; drop or impute them first")
    return features


def _standardised(features: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1; constant columns become 0."""
    varies = np.ptp(features, axis=0) > 0
    return np.where(varies, features - features.mean(axis=0), 0.0) / np.where(varies, features.std(axis=0), 1.0)


def _positive(labels: np.ndarray) -> np.ndarray:
    labels = _one_dimensional(labels)
    values = np.unique(labels)
    if len(values) != 2 or values.dtype.kind not in "biuf" or not values[0] <= 0 < values[1]:
        raise ValueError(f"labels must have two values, only one of them above zero; they have {values[:5].tolist()}")
    return labels > 0


def _check_num_clients(num_clients: int, num_rows: int, rows: str = "rows") -> None:
    if not 1 <= num_clients <= num_rows:
        raise ValueError(f"num_clients must be in [1, {num_rows}], the number of {rows}; it is {num_clients}")
