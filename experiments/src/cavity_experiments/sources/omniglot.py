"""Omniglot's two small background sets: characters of eight alphabets, each drawn once by twenty people."""

from dataclasses import dataclass

import numpy as np

from cavity_experiments.sources.reading import check, local_file, npz_file

_DRAWERS = 20
_ALPHABETS = ("Balinese", "Early_Aramaic", "Greek", "Japanese_(katakana)", "Korean", "Latin", "Sanskrit", "Tagalog")
_CHARACTERS = (24, 22, 24, 47, 40, 26, 42, 17)  # of each alphabet
_IMAGES = _DRAWERS * sum(_CHARACTERS)


@dataclass(frozen=True, eq=False)
class Omniglot:
    """Drawings of characters.

    Attributes:
        x: Ink in [0, 1], float32, shape [4840, 28, 28].
        y: The character, 0 to 241; those of an alphabet are neighbours.
        alphabet: Name of the alphabet, shape [4840].
        drawer: Who drew it, "Greek-07" for the seventh drawer of Greek, shape [4840]; `partition.by_column` makes
            160 clients of them. Numbers are per alphabet: two drawers of one number need not be one person.
    """

    x: np.ndarray
    y: np.ndarray
    alphabet: np.ndarray
    drawer: np.ndarray


def omniglot_small() -> Omniglot:
    """242 characters of eight alphabets, each drawn once by each of the alphabet's twenty drawers.

    The drawings of 105 by 105 pixels are averaged down to 28 by 28.

    Returns:
        Images, characters, alphabets and drawers.

    Raises:
        DataUnavailable: If the file is missing, or CAVITY_DATA is not set.
        ValueError: If the file is not the expected one.
    """
    path = local_file("omniglot_small", "omniglot_small/omniglot_small.npz")
    shapes: dict[str, tuple[int, ...]] = {"x28": (_IMAGES, 28, 28), "alphabet_names": (len(_ALPHABETS),)}
    shapes |= dict.fromkeys(("drawer", "alphabet", "character"), (_IMAGES,))
    raw = npz_file(path, shapes, on_openml=False)
    check(path, "the alphabets", tuple(raw["alphabet_names"].tolist()), _ALPHABETS)
    alphabet, y = raw["alphabet"].astype(np.int64), raw["character"].astype(np.int64)
    characters = tuple(len(np.unique(y[alphabet == a])) for a in range(len(_ALPHABETS)))
    check(path, "the number of characters of each alphabet", characters, _CHARACTERS)
    drawn = len(np.unique(y * _DRAWERS + raw["drawer"] - 1))
    check(path, "the number of pairs of a character and a drawer", drawn, _IMAGES)
    names = np.array(_ALPHABETS)[alphabet]
    drawer = np.array([f"{name}-{number:02d}" for name, number in zip(names, raw["drawer"], strict=True)])
    return Omniglot(raw["x28"].astype(np.float32) / 255, y, names, drawer)
