"""Types that several contracts share."""

import jax
import numpy as np

Leaf = jax.Array | np.ndarray | np.generic
