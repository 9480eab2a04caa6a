"""Images of ten classes, 28 by 28 pixels: MNIST and its like."""

import numpy as np

from cavity_experiments.sources.reading import Table, check, data_directory, idx_file, openml

# Images of each class.
_MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
_MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)
_FASHION_TRAIN = (6000,) * 10
_FASHION_TEST = (1000,) * 10


def mnist() -> Table:
    """MNIST handwritten digits.

    Returns:
        A table with x the pixels in [0, 1], float32, shape [70000, 784], row by row from the top left; y the
        digit; and the official split, 60,000 training images before 10,000 test images.

    Raises:
        DataUnavailable: If the files are missing and OpenML cannot be reached.
        ValueError: If a file is not the expected one.
    """
    return _images("mnist", "mnist_784", _MNIST_TRAIN, _MNIST_TEST)


def fashion_mnist() -> Table:
    """Fashion-MNIST: articles of clothing, a harder set in the shape of MNIST.

    Returns:
        A table with x the pixels in [0, 1], float32, shape [70000, 784], row by row from the top left; y the
        class (T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot, from 0); and
        the official split, 60,000 training images before 10,000 test images.

    Raises:
        DataUnavailable: If the files are missing and OpenML cannot be reached.
        ValueError: If a file is not the expected one.
    """
    return _images("fashion_mnist", "Fashion-MNIST", _FASHION_TRAIN, _FASHION_TEST)


def _images(name: str, openml_name: str, train: tuple[int, ...], test: tuple[int, ...]) -> Table:
    """The set in the folder `name`, or on OpenML, with so many training and test images of each class."""
    directory = data_directory()
    if directory is None:
        bunch = openml(openml_name, version=1, as_frame=False)
        images, labels = np.asarray(bunch.data), np.asarray(bunch.target).astype(np.int64)
        origin = f"OpenML's {openml_name}"
    else:
        folder = directory / name
        origin = str(folder)
        sizes = {"train": 60_000, "t10k": 10_000}
        labels = [idx_file(folder / f"{part}-labels-idx1-ubyte.gz", (n,)) for part, n in sizes.items()]
        images = [idx_file(folder / f"{part}-images-idx3-ubyte.gz", (n, 28, 28)) for part, n in sizes.items()]
        images = np.concatenate(images).reshape(-1, 784)
        labels = np.concatenate(labels).astype(np.int64)
    check(origin, "the shape of the images", images.shape, (70_000, 784))
    for part, rows, expected in (("training", slice(60_000), train), ("test", slice(60_000, None), test)):
        counts = tuple(np.bincount(labels[rows], minlength=10).tolist())
        check(origin, f"the count of each class in the {part} part", counts, expected)
    pixels = images.astype(np.float32)
    pixels /= 255
    return Table(
        name=name,
        x=pixels,
        y=labels,
        columns=tuple(f"pixel_{i:03d}" for i in range(784)),
        train=np.arange(60_000),
        test=np.arange(60_000, 70_000),
    )
