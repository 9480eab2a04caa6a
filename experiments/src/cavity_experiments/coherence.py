"""Whether the words of a topic occur together: the coherence of topic models.

Mimno, Wallach, Talley, Leenders and McCallum 2011, "Optimizing semantic coherence in topic models". With
v_1, ..., v_M the M words of a topic in descending order of weight, D(v) the number of documents that contain v, and
D(v, v') the number of those that contain both,

    coherence = sum_{m=2}^M sum_{l<m} log((D(v_m, v_l) + 1) / D(v_l))

Larger, that is closer to zero, is better. A topic's coherence depends on M, so compare equal numbers of words. The
documents may be those of training or others, such as documents held out or all clients' together.
"""

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from cavity.distributions.natural import ArrayLike


def top_words(weights: Num[ArrayLike, "topics words"], num_words: int) -> Int[np.ndarray, "topics {num_words}"]:
    """The words of largest weight in each topic, in descending order; of equal ones the first.

    Args:
        weights: Weight of each word in each topic, on any scale that increases with it, shape [topics, words].
        num_words: How many words to take.

    Returns:
        Indices of words, shape [topics, num_words].

    Example:
        >>> top_words(np.array([[0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]), 2).tolist()
        [[1, 2], [0, 2]]
    """
    weights = np.asarray(weights, np.float64)
    if not 1 <= num_words <= weights.shape[1]:
        raise ValueError(f"num_words must be from 1 to {weights.shape[1]}, the number of words; it is {num_words}")
    if np.any(np.isnan(weights)):
        raise ValueError(f"weights have {np.sum(np.isnan(weights))} NaN among {weights.size} values")
    return np.argsort(-weights, axis=1, kind="stable")[:, :num_words]


def umass_coherence(
    topics: Int[ArrayLike, "topics top"], counts: Shaped[ArrayLike, "documents words"], mean: bool = False
) -> Float[np.ndarray, " topics"]:
    """UMass coherence of each topic, in nats: the sum of the module's docstring. Larger is better.

    Some programs (gensim among them) report the mean over the M (M - 1) / 2 pairs instead of the sum; `mean=True`
    does. The added one makes a pair that never occurs together finite, and a pair that always does slightly positive.

    Args:
        topics: Indices of each topic's words in descending order of weight, as from `top_words`, shape [topics, top].
        counts: How often each word is in each document, shape [documents, words]; only whether it is there matters.
        mean: The mean over pairs rather than the sum.

    Returns:
        One number per topic, shape [topics].

    Raises:
        ValueError: If a word is in no document, or no word, or in a topic twice.

    Example:
        >>> counts = np.array([[2, 1, 0], [1, 0, 1], [3, 1, 0]])
        >>> np.round(umass_coherence(np.array([[0, 1], [1, 2]]), counts), 4).tolist()
        [0.0, -0.6931]
    """
    topics, counts = np.asarray(topics), np.asarray(counts)
    num_top = topics.shape[1]
    if num_top < 2:
        raise ValueError(f"coherence is of pairs of words; each topic has {num_top}")
    if np.any((topics < 0) | (topics >= counts.shape[1])):
        wrong = np.unique(topics[(topics < 0) | (topics >= counts.shape[1])])[:5].tolist()
        raise ValueError(f"words must be indices from 0 to {counts.shape[1] - 1}; topics contain {wrong}")
    for topic, words in enumerate(topics):
        if len(np.unique(words)) < num_top:
            raise ValueError(f"topic {topic} has a word twice: {words.tolist()}")
    words, places = np.unique(topics, return_inverse=True)
    places = places.reshape(topics.shape)
    used = counts[:, words]
    if not np.all(used >= 0):
        raise ValueError("counts must be non-negative numbers; those of the topics' words are not")
    # of 0 and 1, in a floating-point type: exact, and the only product that is fast
    occurs = (used > 0).astype(np.float64)
    together = occurs.T @ occurs
    alone = np.diagonal(together)
    if not np.all(alone > 0):
        raise ValueError(
            f"words {words[alone == 0].tolist()} are in no document, so their coherence is not defined; "
            "leave them out of the topics or count in documents that have them"
        )
    later, earlier = np.tril_indices(num_top, -1)
    pairs = np.log((together[places[:, later], places[:, earlier]] + 1) / alone[places[:, earlier]])
    return pairs.mean(axis=1) if mean else pairs.sum(axis=1)
