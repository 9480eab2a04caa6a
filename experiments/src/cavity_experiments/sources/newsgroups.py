"""Counts of words in posts to twenty newsgroups, for topic models."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cavity_experiments.sources.reading import _require, check, local_file, npz_file

_POSTS, _TEST_POSTS, _WORDS, _GROUPS = 18_846, 7_532, 9_260, 20
# Pairs of a post and a word in it, and words in all posts, each as often as it occurs.
_PAIRS, _TOKENS = 897_015, 1_339_525


@dataclass(frozen=True, eq=False)
class Newsgroups:
    """Posts as counts of words.

    Attributes:
        counts: How often each word occurs in each post, uint16, shape [n, vocabulary]. Sums of it need a
            wider type: numpy takes one of its own accord, JAX does not.
        words: The words, from the most frequent in the training part to the least.
        newsgroup: Name of each post's newsgroup, shape [n]; `partition.by_column` makes clients of them.
        train: Row indices of the training part.
        test: Row indices of the test part.
    """

    counts: np.ndarray
    words: tuple[str, ...]
    newsgroup: np.ndarray
    train: np.ndarray
    test: np.ndarray


def newsgroups(vocabulary: int = 2000) -> Newsgroups:
    """20 Newsgroups, split by date: how often does each word occur in each post?

    18,846 posts, 11,314 for training before 7,532 later ones for test, of which those without any word of the
    vocabulary are left out: 110 and 96 for 2,000 words. Headers, quotations, signatures, and scikit-learn's
    318 English stop words are gone already; words have at least three letters, and are in at least ten
    training posts and at most a quarter of them. These are not the words of papers on neural topic models, so
    neither is the perplexity to be compared with theirs.

    The most frequent word, `max`, is not one: it comes from a few posts that are encoded binaries, where it
    occurs up to 800 times. Leave the column out, or cap the counts, for topics that mean something.

    Args:
        vocabulary: How many words to keep, the most frequent of the training part, up to 9,260. An array of
            counts for 2,000 takes 75 MB, for all of them 349 MB.

    Returns:
        Counts, words, newsgroups, and the split, with the training posts before the test posts.

    Raises:
        DataUnavailable: If a file is missing, or CAVITY_DATA is not set.
        ValueError: If a file is not the expected one, or there are not so many words.
    """
    if not 1 <= vocabulary <= _WORDS:
        raise ValueError(f"vocabulary is {vocabulary}; the data set has {_WORDS} words, so take 1 to {_WORDS} of them")
    path = local_file("newsgroups", "newsgroups20/20news_bow.npz")
    folder = path.parent
    words = np.array(_lines(folder / "vocab.txt", _WORDS))
    names = np.array(_lines(folder / "group_names.txt", _GROUPS))
    _require(path, on_openml=False)
    shapes = {"indptr": (_POSTS + 1,), "indices": (_PAIRS,), "data": (_PAIRS,), "vocab_rank": (_WORDS,)}
    raw = npz_file(path, shapes | {"label": (_POSTS,), "is_test": (_POSTS,)})
    rank, is_test = raw["vocab_rank"], raw["is_test"] == 1
    check(path, "the number of words in all posts", int(raw["data"].sum()), _TOKENS)
    check(path, "whether ranks are 0 to 9259", bool(np.all(np.sort(rank) == np.arange(_WORDS))), True)
    check(path, "the number of test posts at the end", int(is_test[-_TEST_POSTS:].sum()), _TEST_POSTS)
    check(path, "the number of test posts", int(is_test.sum()), _TEST_POSTS)

    # A word's column is its rank.
    row, column = np.repeat(np.arange(_POSTS), np.diff(raw["indptr"])), rank[raw["indices"]]
    kept = column < vocabulary
    # New numbers for the posts that keep a word.
    posts, row = np.unique(row[kept], return_inverse=True)
    counts = np.zeros((len(posts), vocabulary), dtype=np.uint16)
    counts[row, column[kept]] = raw["data"][kept]
    return Newsgroups(
        counts=counts,
        words=tuple(words[np.argsort(rank)[:vocabulary]].tolist()),
        newsgroup=names[raw["label"][posts]],
        train=np.flatnonzero(~is_test[posts]),
        test=np.flatnonzero(is_test[posts]),
    )


def _lines(path: Path, number: int) -> list[str]:
    _require(path, on_openml=False)
    lines = path.read_text(encoding="utf-8").splitlines()
    check(path, "the number of lines", len(lines), number)
    return lines
