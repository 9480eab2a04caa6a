"""What a client would send, before it sends anything: names, shapes and sizes, and no values."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from cavity.core.messages import Report
from cavity.fit import method
from cavity.io import serialization
from cavity.study.building import study_algorithm
from cavity.study.scaling import Scaling
from cavity.study.schema import Study


@dataclass(frozen=True)
class Disclosure:
    """One kind of message.

    Attributes:
        when: "once" or "each round".
        what: the numbers in it, by name and shape.
        num_numbers: how many.
        num_bytes: of these numbers, without headers.
    """

    when: str
    what: str
    num_numbers: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.when}: {self.what} ({self.num_numbers} numbers, {self.num_bytes} bytes)"


def disclosures(study: Study) -> list[Disclosure]:
    """Everything that a client of this study sends."""
    found = []
    size = "n" if study.model.weights is None else "sum of weights"
    if columns := study.summed_columns:
        count = 1 + 2 * len(columns)
        scaled, levels = ", ".join(study.federated_columns), ", ".join(study.needed_levels)
        what = f"{size}, sum and sum of squares of {scaled}" if scaled else size
        what += f"; whether it has the levels {levels} (1 or 0, no counts)" if levels else ""
        found.append(Disclosure("once", what, count, 8 * count))
    algorithm = study_algorithm(study, Scaling())
    if study.scales_design:
        names = study.design_names
        count = 1 + 2 * len(names)
        what = f"{size}, sum and sum of squares of the columns of the formula's matrix: {', '.join(names)}"
        found.append(Disclosure("once", what, count, 8 * count))
    report = Report(0.0, 0.0, 0, True)
    arrays = [
        f"{jax.tree_util.keystr(path).lstrip('.')} {list(np.shape(leaf))}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(algorithm.prior)[0]
    ]
    what = "the change of its factor" if method.structured_or_none(algorithm) is None else "the change of the globals"
    sent = (algorithm.prior, report)
    sizes = [np.size(leaf) for leaf in jax.tree.leaves(algorithm.prior)]
    text = f"{what}, {len(arrays)} arrays ({' + '.join(map(str, sizes))} numbers): {', '.join(arrays)}; and 4 numbers "
    text += "about the solve (gap, free energy, steps, converged)"
    found.append(Disclosure("each round", text, sum(sizes) + 4, serialization.num_bytes(sent)))
    return found
