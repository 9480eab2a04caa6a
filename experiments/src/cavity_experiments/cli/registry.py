"""The names of experiments and benchmarks on the command line, and the functions that they run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cavity.errors import CavityError

if TYPE_CHECKING:
    from cavity_experiments.runner import Experiment

# word -> module:function, imported only when it is asked for
REPRODUCE = {
    "pvi-adult": "cavity_experiments.pvi_adult:pvi_adult",
    "pvi-uci": "cavity_experiments.pvi_uci:pvi_uci",
    "pvi-heart": "cavity_experiments.pvi_heart:pvi_heart",
    "pvi-icu": "cavity_experiments.pvi_icu:pvi_icu",
    "pvi-mnist": "cavity_experiments.pvi_mnist:pvi_mnist",
    "bnn-mnist": "cavity_experiments.bnn_mnist:bnn_mnist",
    "fedgvi-mnist": "cavity_experiments.fedgvi_images:fedgvi_mnist",
    "fedgvi-fashion": "cavity_experiments.fedgvi_images:fedgvi_fashion",
    "fedgvi-covertype": "cavity_experiments.fedgvi_covertype:fedgvi_covertype",
    "fedgvi-heart": "cavity_experiments.fedgvi_heart:fedgvi_heart",
    "fedgvi-toys": "cavity_experiments.fedgvi_toys:fedgvi_toys",
    "fedep-toy": "cavity_experiments.fedep_toy:fedep_toy",
    "fedep-images": "cavity_experiments.fedep_images:fedep_images",
    "fedep-omniglot": "cavity_experiments.fedep_omniglot:fedep_omniglot",
    "sgp-synthetic": "cavity_experiments.sgp_synthetic:sgp_synthetic",
    "sgp-uci": "cavity_experiments.sgp_uci:sgp_uci",
    "sgp-uci-large": "cavity_experiments.sgp_uci:sgp_uci_large",
    "sgp-weather": "cavity_experiments.sgp_weather:sgp_weather",
    "sgp-banana": "cavity_experiments.sgp_banana:sgp_banana",
    "sfvi-cities": "cavity_experiments.sfvi_cities:sfvi_cities",
    "sfvi-radon": "cavity_experiments.sfvi_radon:sfvi_radon",
    "sfvi-softmax": "cavity_experiments.sfvi_softmax:sfvi_softmax",
    "sfvi-bnn": "cavity_experiments.sfvi_bnn:sfvi_bnn",
    "mixed-models": "cavity_experiments.marginal_models:marginal_models",
    "families": "cavity_experiments.families:families",
    "sfvi-topics": "cavity_experiments.sfvi_topics:sfvi_topics",
}
BENCH = {
    "core": "cavity_experiments.bench_core:bench_core",
    "fedep": "cavity_experiments.bench_fedep:bench_fedep",
    "fedgvi": "cavity_experiments.bench_fedgvi:bench_fedgvi",
    "gp": "cavity_experiments.bench_gp:bench_gp",
    "mixed": "cavity_experiments.bench_mixed:bench_mixed",
    "network": "cavity_experiments.bench_network:bench_network",
    "scale": "cavity_experiments.bench_scale:bench_scale",
}


def find(words: Mapping[str, str], name: str) -> Experiment:
    """The experiment of that name; an error lists all names if there is none."""
    if name not in words:
        raise CavityError(f"there is no {name!r}; there is: {', '.join(words)}")
    module, function = words[name].split(":")
    return getattr(importlib.import_module(module), function)
