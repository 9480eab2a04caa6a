"""Types that several packages share."""

from __future__ import annotations

import jax
import numpy as np

Leaf = jax.Array | np.ndarray
