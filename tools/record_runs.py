"""Record posteriors, histories and predictions of small runs of every kind, and compare later code with them.

    python tools/record_runs.py record runs.npz
    python tools/record_runs.py compare runs.npz              # run again, and compare with the record
    python tools/record_runs.py compare runs.npz later.npz    # compare two records

A change that moves or renames code must leave all of these numbers as they are. Everything is computed in double
precision. For each run, `compare` prints the largest difference of an array relative to its largest number, in which
array that is, the largest absolute difference there, and the largest difference of a posterior mean in posterior
standard deviations. The exit code is 1 if a relative difference is above the tolerance.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

jax.config.update("jax_enable_x64", True)

import cavity  # noqa: E402
from cavity import divergences, losses, models, schedules, solvers  # noqa: E402
from cavity.algorithms import InducingAverage  # noqa: E402
from cavity.solvers.shared_descent import SharedDescent  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent))

from network_runs import network_runs  # noqa: E402
from run_differences import MEAN, SD, Numbers, by_run, compare  # noqa: E402

NAMES = ("leeds", "york", "hull")
HISTORY = ("gap", "free_energy")


def rows(outcome: Callable[[np.random.Generator, np.ndarray], np.ndarray], num_features: int = 2) -> dict[str, Any]:
    """Three clients of unequal sizes."""
    rng = np.random.default_rng(0)
    clients = {}
    for name, num_rows in zip(NAMES, (23, 40, 31), strict=True):
        x = rng.normal(size=(num_rows, num_features))
        clients[name] = (x, outcome(rng, x))
    return clients


def binary() -> dict[str, Any]:
    """0 or 1."""
    return rows(lambda rng, x: (rng.random(len(x)) < 1 / (1 + np.exp(0.5 - x[:, 0]))).astype(int))


def real() -> dict[str, Any]:
    """Real numbers."""
    return rows(lambda rng, x: 1.0 + x @ [0.5, -1.0] + 0.7 * rng.normal(size=len(x)))


def counts() -> dict[str, Any]:
    """Counts."""
    return rows(lambda rng, x: rng.poisson(np.exp(0.3 + 0.4 * x[:, 0])))


def classes() -> dict[str, Any]:
    """Three classes."""
    return rows(lambda rng, x: rng.integers(0, 3, len(x)))


def numbers_of(fit: Any, new: Any = None) -> Numbers:
    """Posterior, history and predictions of a fit, as arrays by name."""
    leaves = [leaf for leaf in jax.tree.leaves(fit.posterior) if np.asarray(leaf).dtype.kind in "biuf"]
    found = {f"posterior/{i}": np.asarray(leaf, float) for i, leaf in enumerate(leaves)}
    for key in HISTORY:
        values = [record[key] for record in fit.history if key in record]
        if values:
            found[f"history/{key}"] = np.asarray(values, float)
    summary = fit.summary()
    found |= {key: np.asarray([getattr(row, key.split("/")[1]) for row in summary], float) for key in (MEAN, SD)}
    if new is not None:
        prediction = fit.predict(new)
        found |= {"mean": np.asarray(prediction.mean, float), "sd": np.asarray(prediction.sd, float)}
    return found


def regression_runs() -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """Likelihoods, families, solvers, losses and divergences, schedules and engines, with PVI and FedGVI."""
    new = np.array([[0.5, -0.2], [1.5, 0.3]])
    logistic = models.logistic_regression(2)

    def ran(algorithm: Any, clients: dict[str, Any], **options: Any) -> Callable[[], Numbers]:
        settings = {"rounds": 3, "tolerance": 0.0} | options
        return lambda: numbers_of(cavity.run(algorithm, clients, **settings), new)

    yield "family logistic", ran(cavity.PVI(logistic), binary())
    yield "family probit", ran(cavity.PVI(models.probit_regression(2)), binary())
    yield "family softmax", ran(cavity.PVI(models.softmax_regression(2, 3)), classes())
    yield "family poisson", ran(cavity.PVI(models.poisson_regression(2)), counts())
    yield "family linear", ran(cavity.PVI(models.linear_regression(2)), real())
    yield "family linear, noise known", ran(cavity.PVI(models.linear_regression(2, noise_sd=0.7)), real())
    diagonal = models.logistic_regression(2, covariance="diagonal")
    yield "covariance diagonal", ran(cavity.PVI(diagonal), binary())
    with_shrinkage_prior = models.with_shrinkage_prior(logistic, models.Horseshoe(0.5))
    yield "prior horseshoe", ran(cavity.PVI(with_shrinkage_prior), binary())
    yield "model mlp", ran(cavity.PVI(models.mlp_classifier(2, (4,), 3)), classes(), rounds=2)

    adam = solvers.Gradient(optax.adam, 0.02, num_steps=60, batch_size=None)
    yield "solver adam", ran(cavity.PVI(logistic, solver=adam), binary())
    yield "solver lbfgs", ran(cavity.PVI(logistic, solver=solvers.LBFGS()), binary())
    yield "solver laplace", ran(cavity.PVI(logistic, solver=solvers.Laplace()), binary())
    yield "solver fixed point", ran(cavity.PVI(logistic, solver=solvers.FixedPoint()), binary())
    yield "solver power ep", ran(cavity.PVI(logistic, solver=solvers.PowerEP()), binary())

    yield "fedgvi beta", ran(cavity.FedGVI(logistic, losses.Beta(0.3)), binary())
    yield "fedgvi renyi", ran(cavity.FedGVI(logistic, losses.Gamma(1.2), divergences.Renyi(0.5)), binary())
    server = divergences.Renyi(0.5)
    yield "fedgvi server", ran(cavity.FedGVI(logistic, losses.Beta(0.3), server_divergence=server), binary())

    for name, schedule in {
        "sequential": schedules.Sequential(),
        "shuffled": schedules.SequentialShuffled(),
        "largest first": schedules.SequentialLargestFirst(),
        "sampled count": schedules.SampledCount(2),
        "sampled share": schedules.SampledShare(0.6),
        "asynchronous": schedules.Asynchronous(),
    }.items():
        yield f"schedule {name}", ran(cavity.PVI(logistic), binary(), schedule=schedule)

    yield "engine block", ran(cavity.PVI(logistic), binary(), rounds_per_block=3)
    yield "engine held by clients", ran(cavity.PVI(logistic), binary(), factors="clients")

    def streamed() -> Numbers:
        clients = binary()

        class Source(cavity.ClientSource):
            names = NAMES

            def load(self, names: Any) -> list[Any]:
                return [clients[name] for name in names]

        return numbers_of(cavity.run(cavity.PVI(logistic), Source(), rounds=3, tolerance=0.0, chunk=2), new)

    yield "engine streaming", streamed

    def changed() -> Numbers:
        fit = cavity.run(cavity.PVI(logistic), binary(), rounds=4)
        without = numbers_of(fit.withdraw("york"), new)
        influence = np.array([fit.influence()[name].kl for name in NAMES])
        return {f"without/{name}": value for name, value in without.items()} | {"influence": influence}

    yield "withdrawal and influence", changed

    def resumed() -> Numbers:
        with tempfile.TemporaryDirectory() as folder:
            algorithm = cavity.PVI(logistic)
            cavity.run(algorithm, binary(), rounds=2, tolerance=0.0, directory=folder, checkpoint_seconds=0.0)
            return numbers_of(cavity.resume(folder, binary(), rounds=4, tolerance=0.0), new)

    yield "resume", resumed


def method_runs() -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """The other methods."""
    flat = models.linear_regression(2, noise_sd=0.7, covariance="diagonal")
    descent = solvers.Gradient(optax.adam, 0.02, num_steps=60, batch_size=None)
    settings: dict[str, Any] = {"rounds": 3, "tolerance": 0.0}
    yield "fedep", lambda: numbers_of(cavity.run(cavity.FedEP(flat, solver=descent), real(), **settings))
    yield "fedep, default solver", lambda: numbers_of(cavity.run(cavity.FedEP(flat), real(), **settings))
    yield "fedsep", lambda: numbers_of(cavity.run(cavity.FedSEP(flat), real(), **settings))
    yield "fedpa", lambda: numbers_of(cavity.run(cavity.FedPA(flat), real(), **settings))
    yield "fedavg", lambda: numbers_of(cavity.run(cavity.FedAvg(flat), real(), **settings))

    def mixed() -> tuple[Any, dict[str, Any]]:
        import numpyro
        from numpyro import distributions as dist

        def levels(ward: Any, dose: Any, outcome: Any, num_wards: Any) -> None:
            mu = numpyro.sample("mu", dist.Normal(0, 2))
            between = numpyro.sample("between", dist.HalfNormal(1))
            with numpyro.plate("wards", num_wards):
                level = numpyro.sample("level", dist.Normal(mu, between))
            numpyro.sample("y", dist.Normal(level[ward] + 0.3 * dose, 1), obs=outcome)

        rng = np.random.default_rng(1)
        clients = {
            name: {
                "ward": np.repeat(wards, 8),
                "dose": rng.normal(size=8 * len(wards)),
                "outcome": rng.normal(size=8 * len(wards)),
            }
            for name, wards in {"leeds": ["L1", "L2"], "york": ["Y1", "Y2", "Y3"]}.items()
        }
        return models.numpyro_model(levels, clients["leeds"], unit="ward", num_units="num_wards"), clients

    def sfvi() -> Numbers:
        model, clients = mixed()
        return numbers_of(cavity.run(cavity.SFVI(model, num_steps=20), clients))

    def sfvi_avg() -> Numbers:
        model, clients = mixed()
        return numbers_of(cavity.run(cavity.SFVIAvg(model, total=5, num_rounds=2, local_steps=10), clients))

    yield "sfvi", sfvi
    yield "sfvi-avg", sfvi_avg

    def process(make: Callable[[Any], Any]) -> Numbers:
        rng = np.random.default_rng(2)
        clients = {}
        for name in NAMES:
            x = rng.uniform(-2, 2, (15, 1))
            clients[name] = (x, np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=15))
        model = models.sparse_gp(1, num_inducing=4, seed=1)
        fit = cavity.run(make(model), clients, rounds=1, tolerance=0.0)
        return numbers_of(fit, np.array([[0.0], [1.0]]))

    def average(model: Any) -> Any:
        return InducingAverage(model, 45, solver=SharedDescent(optax.adam, num_steps=50, point=True))

    yield "sparse gaussian process", lambda: process(cavity.HierarchicalPVI)
    yield "gaussian process average", lambda: process(average)


STUDY = """\
name = "A trial"
id = "trial-1"
clients = ["leeds", "york", "hull"]
{top}
[model]
{family}
formula = "{outcome} ~ rx * age"

[columns.{outcome}]
{type}

[columns.rx]
type = "category"
levels = ["placebo", "drug"]

[columns.age]
type = "number"
range = [18, 110]
"""


def study_runs() -> Iterator[tuple[str, Callable[[], Numbers]]]:
    """Regressions by formula and study files, in one process."""
    from cavity.study.run import run_study

    rng = np.random.default_rng(3)
    tables = {}
    for name, num_rows in zip(NAMES, (60, 80, 70), strict=True):
        age, rx = rng.normal(60, 12, num_rows).clip(20, 100).round(1), rng.choice(["placebo", "drug"], num_rows)
        died = rng.random(num_rows) < 1 / (1 + np.exp(0.5 - (age - 60) / 12 + (rx == "drug")))
        cost = 12000 + 100 * age + 2000 * (rx == "drug") + 900 * rng.normal(size=num_rows)
        visits = rng.poisson(np.exp(0.02 * age))
        tables[name] = {"died": died, "rx": rx, "age": age, "cost": cost, "visits": visits}
    new = {"rx": ["drug", "placebo"], "age": [70.0, 40.0]}
    for family, outcome, of_type in (
        ("logistic", "died", 'type = "boolean"'),
        ("linear", "cost", 'type = "number"\nrange = [0, 100000]'),
        ("poisson", "visits", 'type = "integer"\nrange = [0, 1000]'),
    ):
        columns = {name: {key: table[key] for key in (outcome, "rx", "age")} for name, table in tables.items()}

        def by_formula(family: str = family, outcome: str = outcome, columns: Any = columns) -> Numbers:
            fit = cavity.regression(f"{outcome} ~ rx * age", columns, family=family, rounds=4)
            return numbers_of(fit, new)

        def by_study(
            family: str = family, outcome: str = outcome, of_type: str = of_type, columns: Any = columns
        ) -> Numbers:
            text = STUDY.format(top="", family=f'family = "{family}"', outcome=outcome, type=of_type)
            fit = run_study(
                cavity.study.parse_study(text), {name: cavity.study.as_table(table) for name, table in columns.items()}
            )
            return numbers_of(fit, new)

        yield f"formula {family}", by_formula
        yield f"study {family}", by_study


def all_runs() -> dict[str, Callable[[], Numbers]]:
    """Every run by its name."""
    networks = [(name, lambda run=run: numbers_of(*run())) for name, run in network_runs()]
    return dict([*regression_runs(), *method_runs(), *study_runs(), *networks])


def main(arguments: list[str] | None = None) -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path, help="the record to write, or to compare with")
    parser.add_argument("later", type=Path, nargs="?", help="a later record; without it, everything is run again")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    options = parser.parse_args(arguments)
    if options.what == "record" and options.later is not None:
        parser.error("`record` takes one file")
    if options.later is None:
        runs = ((name, run()) for name, run in all_runs().items() if options.only in name)
    else:
        runs = ((name, found) for name, found in by_run(dict(np.load(options.later))).items() if options.only in name)
    if options.what == "compare":
        recorded = by_run(dict(np.load(options.file)))
        return int(not compare(runs, {name: found for name, found in recorded.items() if options.only in name}))
    arrays = {}
    for name, found in runs:
        arrays |= {f"{name}|{key}": value for key, value in found.items()}
        print(f"{name:32} {len(found)} arrays", flush=True)
    np.savez(options.file, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
