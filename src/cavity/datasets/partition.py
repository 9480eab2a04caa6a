"""How experiments split one data set among clients.

Every function but `select` returns a partition: from client name to that client's row indices, ascending.
Clients are disjoint and together hold every row; `size_and_label_skew` alone leaves a few rows out, and says
so. Names are padded with zeros (`client-00`, `client-01`, ...), so that sorting them keeps their order.
`rng` is the only source of randomness, `labels` has one entry a row, and what cannot be split as asked is a
ValueError: no client is ever left without rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Batch = TypeVar("Batch")
Partition = dict[str, np.ndarray]

# Sizes are floors of products such as 10 * (1 - 0.9), which float64 computes as 0.9999999999999998.
_ROUNDING = 1e-9


def homogeneous(rng: np.random.Generator, num_rows: int, num_clients: int) -> Partition:
    """Rows dealt out at random, in parts of equal size (to within one row).

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
    """Half of the clients small, half large, and the small ones with their own share of positive labels.

    The scheme of Partitioned Variational Inference (Ashman et al., 2022), appendix E.1. With N rows, M
    clients, and eta the share of positive labels among all rows,

        N_small = floor(N / M * (1 - beta)),    N_large = floor(N / M * (1 + beta))     (75)
        eta_small = eta * (1 - kappa),          kappa in [1 - 1 / eta, 1]               (76)

    The paper misprints (76), its range and the words after it; this is what its table 2 follows. With
    kappa = 1 small clients have only negative labels, with kappa = 1 - 1 / eta only positive ones. A small
    client's number of negative rows is rounded down. What remains is shuffled and dealt to the large clients,
    whose label shares therefore differ by chance (table 2 gives one draw). The floors in (75) leave fewer
    than M rows over, which are in no client.

    Args:
        rng: Source of randomness.
        labels: Two values, the positive one above zero (0 and 1, -1 and 1, or booleans). Shape [n].
        num_clients: Number of clients, even. The first half are the small ones.
        beta: Skew of the sizes, in [0, 1). Zero makes all clients equally large.
        kappa: Skew of the labels. Below zero, small clients have more positive labels than the whole.

    Raises:
        ValueError: If beta or kappa is out of range, or the data have too few labels of one kind.

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
        raise ValueError(f"num_clients must be even, half small and half large; it is {num_clients}")
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1); it is {beta}")
    eta = positive.mean()
    if not 1 - 1 / eta - _ROUNDING <= kappa <= 1:
        raise ValueError(f"kappa must be in [{1 - 1 / eta:.4g}, 1] if {eta:.1%} are positive; it is {kappa}")

    num_small = int(np.floor(num_rows / num_clients * (1 - beta) + _ROUNDING))
    num_large = int(np.floor(num_rows / num_clients * (1 + beta) + _ROUNDING))
    if num_small == 0:
        raise ValueError(f"beta = {beta} leaves small clients no row, for {num_rows / num_clients:g} on average")
    num_negative = int(np.floor(num_small * (1 - eta * (1 - kappa)) + _ROUNDING))
    num_positive = num_small - num_negative

    positives = rng.permutation(np.flatnonzero(positive))
    negatives = rng.permutation(np.flatnonzero(~positive))
    for kind, rows, needed in (("positive", positives, num_positive), ("negative", negatives, num_negative)):
        if half * needed > len(rows):
            raise ValueError(
                f"not enough {kind} labels: {half} small clients need {needed} each, there are {len(rows)}. "
                f"Take a larger beta than {beta}, or a kappa nearer to zero than {kappa}"
            )
    positives, other_positives = np.split(positives, [half * num_positive])
    negatives, other_negatives = np.split(negatives, [half * num_negative])
    small = np.hstack([positives.reshape(half, num_positive), negatives.reshape(half, num_negative)])
    others = rng.permutation(np.concatenate([other_positives, other_negatives]))
    return _named([*small, *others[: half * num_large].reshape(half, num_large)])


def label_shards(rng: np.random.Generator, labels: np.ndarray, num_clients: int, shards_per_client: int) -> Partition:
    """Rows sorted by label and cut into equal shards, of which each client is dealt some at random.

    The scheme of McMahan et al. (2017). A shard may straddle two labels, so a client with two shards mostly
    has two labels, and at times three or four. Labels may be of any type that sorts.

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
        raise ValueError(f"{len(labels)} rows cannot make {num_clients} x {shards_per_client} shards")
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shards = np.array_split(by_label, num_shards)
    dealt = rng.permutation(num_shards).reshape(num_clients, shards_per_client)
    return _named([np.concatenate([shards[i] for i in hand]) for hand in dealt])


def dirichlet(rng: np.random.Generator, labels: np.ndarray, num_clients: int, concentration: float) -> Partition:
    """Clients of equal size (to within one row), each with label shares from a Dirichlet distribution.

    The scheme of Hsu et al. (2019): client m draws pi_m ~ Dirichlet(concentration * p), with p the label
    shares of the whole, and takes rows whose labels follow pi_m, without replacement. A label that has run
    out leaves pi_m, which is renormalised, so the last clients are less free than the first. Near a
    concentration of zero a client has a single label; towards infinity the split is homogeneous.

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
    """How many rows of each label make up a client of `size` rows, where `left` rows of each can be had."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        weights = np.where(counts < left, shares, 0.0)
        if weights.sum() == 0:
            weights = (left - counts).astype(np.float64)
        counts = np.minimum(counts + rng.multinomial(missing, weights / weights.sum()), left)
    return counts


def k_means(rng: np.random.Generator, features: np.ndarray, num_clients: int) -> Partition:
    """One client for each k-means cluster of the standardised features, shape [n, p]. Needs scikit-learn.

    Columns that are constant do not count. Sizes are as the clusters happen to be.

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

    The inhomogeneous counterpart of `homogeneous`: sizes differ by one row at most, and each client sees its own
    stretch of the inputs. Nothing is random. The component points to where its largest weight is positive.

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

    A block for m clients is cut across its longest side, in the units of `places`, where the rows on either side
    are nearest in the ratio of floor(m / 2) to ceil(m / 2), so sizes are about n / num_clients. Rows at one place
    stay together. Nothing is random.

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
    """Blocks of `members`, indices of places, of which each stands for some rows."""
    if num_blocks == 1:
        return [members]
    longest = np.argmax(np.ptp(places[members], axis=0))
    members = members[np.argsort(places[members, longest], kind="stable")]
    few = num_blocks // 2
    rows_before = np.cumsum(counts[members])
    # every block needs a place of its own, on both sides
    ends = np.arange(few, len(members) - (num_blocks - few) + 1)
    wanted = rows_before[-1] * few / num_blocks
    end = ends[np.argmin(np.abs(rows_before[ends - 1] - wanted))]
    return [
        *_cut(members[:end], few, places, counts),
        *_cut(members[end:], num_blocks - few, places, counts),
    ]


def by_column(values: Sequence[Any] | np.ndarray) -> Partition:
    """One client for each value of a column (a patient's hospital, say), named `str(value)`, sorted by name.

    Example:
        >>> {name: rows.tolist() for name, rows in by_column(["york", "leeds", "york"]).items()}
        {'leeds': [1], 'york': [0, 2]}
    """
    column = _one_dimensional(values)
    names, codes = np.unique([str(value) for value in column], return_inverse=True)
    if num_missing := sum(value is None or str(value) in ("", "nan", "NaT", "<NA>") for value in column):
        raise ValueError(f"the column has {num_missing} missing values; give those rows a client or drop them")
    return {str(name): np.flatnonzero(codes == code) for code, name in enumerate(names)}


def select(batch: Batch, indices: Mapping[str, np.ndarray]) -> dict[str, Batch]:
    """Each client's rows of `batch`, an array or a pytree of arrays whose first axes are the rows.

    Example:
        >>> x, y = np.arange(6).reshape(3, 2), np.array([10, 11, 12])
        >>> select({"x": x, "y": y}, {"leeds": np.array([0, 2])})["leeds"]["y"]
        array([10, 12])
    """
    import jax

    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(lengths) != 1 or lengths == {()}:
        raise ValueError(f"the arrays of a batch must share their first axis; theirs are {sorted(lengths)}")
    ((num_rows,),) = lengths
    for name, rows in indices.items():
        # JAX would clamp an index that is out of bounds, and count the last row again.
        if len(rows) and not 0 <= np.min(rows) <= np.max(rows) < num_rows:
            raise IndexError(f"client {name!r}: rows {np.min(rows)} to {np.max(rows)} of a batch of {num_rows}")
    return {name: jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch) for name, rows in indices.items()}


def _named(parts: Sequence[np.ndarray]) -> Partition:
    width = max(2, len(str(len(parts) - 1)))
    return {f"client-{i:0{width}d}": np.sort(part) for i, part in enumerate(parts)}


def _one_dimensional(values: Sequence[Any] | np.ndarray) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"one value a row is needed, of shape [n]; the shape is {array.shape}")
    return array


def _features(values: np.ndarray) -> np.ndarray:
    features = np.asarray(values, dtype=np.float64)
    if features.ndim != 2:
        raise ValueError(f"features must have shape [n, p]; they have {features.shape}")
    if num_bad := np.sum(~np.isfinite(features)):
        raise ValueError(f"features have {num_bad} missing or infinite values; drop or impute them first")
    return features


def _standardised(features: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1, and of 0 where they are constant."""
    varies = np.ptp(features, axis=0) > 0
    return np.where(varies, features - features.mean(axis=0), 0.0) / np.where(varies, features.std(axis=0), 1.0)


def _positive(labels: np.ndarray) -> np.ndarray:
    labels = _one_dimensional(labels)
    values = np.unique(labels)
    if len(values) != 2 or values.dtype.kind not in "biuf" or not values[0] <= 0 < values[1]:
        raise ValueError(f"labels must have two values, one of them above zero; they have {values[:5].tolist()}")
    return labels > 0


def _check_num_clients(num_clients: int, num_rows: int, rows: str = "rows") -> None:
    if not 1 <= num_clients <= num_rows:
        raise ValueError(f"num_clients must be in [1, {num_rows}], the number of {rows}; it is {num_clients}")
