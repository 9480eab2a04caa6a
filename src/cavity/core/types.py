"""Types that several contracts share."""

from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    Leaf = jax.Array | np.ndarray
else:  # numpy's scalars have the interface of arrays without axes, which its types do not say
    Leaf = jax.Array | np.ndarray | np.generic
