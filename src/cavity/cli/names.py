"""The words of the command line and what they mean: the only place where a string selects an object."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity.experiments.runner import Experiment

# word -> module:function, imported only when it is asked for
REPRODUCE = {
    "pvi-adult": "cavity.experiments.pvi_adult:pvi_adult",
    "pvi-uci": "cavity.experiments.pvi_uci:pvi_uci",
    "pvi-heart": "cavity.experiments.pvi_heart:pvi_heart",
    "pvi-icu": "cavity.experiments.pvi_icu:pvi_icu",
    "pvi-mnist": "cavity.experiments.pvi_mnist:pvi_mnist",
    "bnn-mnist": "cavity.experiments.bnn_mnist:bnn_mnist",
    "fedgvi-mnist": "cavity.experiments.fedgvi_images:fedgvi_mnist",
    "fedgvi-fashion": "cavity.experiments.fedgvi_images:fedgvi_fashion",
    "fedgvi-covertype": "cavity.experiments.fedgvi_covertype:fedgvi_covertype",
    "fedgvi-heart": "cavity.experiments.fedgvi_heart:fedgvi_heart",
    "fedgvi-toys": "cavity.experiments.fedgvi_toys:fedgvi_toys",
    "fedep-toy": "cavity.experiments.fedep_toy:fedep_toy",
    "fedep-images": "cavity.experiments.fedep_images:fedep_images",
    "fedep-omniglot": "cavity.experiments.fedep_omniglot:fedep_omniglot",
    "sgp-synthetic": "cavity.experiments.sgp_synthetic:sgp_synthetic",
    "sgp-uci": "cavity.experiments.sgp_uci:sgp_uci",
    "sgp-uci-large": "cavity.experiments.sgp_uci:sgp_uci_large",
    "sgp-weather": "cavity.experiments.sgp_weather:sgp_weather",
    "sgp-banana": "cavity.experiments.sgp_banana:sgp_banana",
    "sfvi-cities": "cavity.experiments.sfvi_cities:sfvi_cities",
    "sfvi-radon": "cavity.experiments.sfvi_radon:sfvi_radon",
    "sfvi-softmax": "cavity.experiments.sfvi_softmax:sfvi_softmax",
    "sfvi-bnn": "cavity.experiments.sfvi_bnn:sfvi_bnn",
    "sfvi-topics": "cavity.experiments.sfvi_topics:sfvi_topics",
}
BENCH = {
    "core": "cavity.experiments.bench_core:bench_core",
    "fedep": "cavity.experiments.bench_fedep:bench_fedep",
    "fedgvi": "cavity.experiments.bench_fedgvi:bench_fedgvi",
    "gp": "cavity.experiments.bench_gp:bench_gp",
    "network": "cavity.experiments.bench_network:bench_network",
    "scale": "cavity.experiments.bench_scale:bench_scale",
}


def find(words: Mapping[str, str], name: str) -> Experiment:
    """The experiment of that name; an unknown one gives the list of those that there are."""
    if name not in words:
        raise CavityError(f"there is no {name!r}; there is: {', '.join(words)}")
    module, function = words[name].split(":")
    return getattr(importlib.import_module(module), function)
