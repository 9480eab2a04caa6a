"""Mortality in intensive care (Ashman et al., 2022, section 5.2 and appendix E.2), on the eICU demo.

The paper's MIMIC-III is not public. We use the eICU demo instead: 2,179 stays at 186 hospitals of the United States,
35 features of the first day, 9 % die in hospital. Two partitions: by k-means on the inputs into five, as in the paper,
and by hospital. Three models: logistic regression with full covariance, the same in mean field (the paper's
family), both with N(0, 1) on every coefficient, and a perceptron with two hidden layers of 50 in mean field. Its
weights are N(0, 0.3^2): with the paper's N(0, 1) scales need about ten thousand steps to converge, and validation is no
better.

All methods are choices of parts (docs/methods.md). Global VI is the same solver with all rows at one client; in a
federation each of its gradient steps would be an exchange with every client, which is how it is drawn.

Stays are split by patient: three fifths to train, one fifth to validate, one fifth to test. Missing values become the
mean of the training stays that have one, with a 0/1 column beside, and columns are standardised by the training stays.
Settings were chosen on the validation stays of seed 0; test stays are evaluated with the final settings only, at the
last round. Since one in eleven dies, the error is not informative: predicting no death has an error of 9 %.

Regressions are fitted without noise, by natural gradients. The perceptron takes gradient steps as `images.py` has them:
a narrow start that is the same for all clients, larger steps for scales, and steps that decrease to zero by the end of
a solve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cavity.aggregation import Adaptive, Fixed
from cavity.algorithms import PVI
from cavity.core import Damping, PredictiveModel, Solver
from cavity.datasets import partition
from cavity.distributions import DiagonalGaussian
from cavity.evaluation import metrics
from cavity.fit.run import Fit, run
from cavity.models import MLP, logistic_regression, mlp_classifier
from cavity.reporting.plots.style import axes_or_new, colour, marker
from cavity.schedules import Synchronous
from cavity.solvers import Gradient, NaturalGradient
from cavity.solvers.start import Tight
from cavity_experiments import sources
from cavity_experiments.images import JITTER, PRIOR_SCALE, SCALES_FASTER, STEP_SIZE, TIGHT, annealed
from cavity_experiments.runner import Journal, Size
from cavity_experiments.schemes import schemes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = tuple[np.ndarray, np.ndarray]
Clients = Mapping[str, Rows]
Histories = dict[str, list[dict[str, Any]]]  # method -> a record per round
Found = dict[tuple[str, str], list[Histories]]  # (model, partition) -> one per seed

SHARES = (0.6, 0.8)  # of the patients: to train up to the first, to validate up to the second
NUM_CLUSTERS, HIDDEN, NUM_DRAWS, FULL_SEEDS = 5, (50, 50), 100, 5
K_MEANS, HOSPITALS = PARTITIONS = ("k-means", "hospitals")
FULL_COVARIANCE, MEAN_FIELD, NETWORK = MODELS = ("logistic regression", "logistic regression, mean field", "perceptron")
GLOBAL, SYNCHRONOUS, SEQUENTIAL = "global VI", "PVI, synchronous", "PVI, sequential"
METHODS = (GLOBAL, SYNCHRONOUS, SEQUENTIAL, "BCM (same)", "BCM (split)", "VCL", "streaming VB")
BARS = {FULL_COVARIANCE: 1e-3, NETWORK: 0.02}  # nats per stay
SCORES = {
    "log_likelihood": metrics.log_likelihood,
    "brier": metrics.brier,
    "auc": metrics.auc,
    "error": metrics.error_rate,
}


@dataclass(frozen=True)
class Setting:
    """How a model is fitted under a partition.

    Attributes:
        synchronous: damping of synchronous PVI.
        rounds: of synchronous PVI.
        sequential: damping of sequential PVI.
        passes: of sequential PVI and of streaming VB.
        steps: gradient steps per visit, where the solver takes such; None where it solves to a tolerance.
        batch_size: stays per gradient step; None takes all of a client's.
    """

    synchronous: Damping
    rounds: int
    sequential: Damping
    passes: int
    steps: int | None = None
    batch_size: int | None = None


SETTINGS = {
    (FULL_COVARIANCE, K_MEANS): Setting(Adaptive(), 12, Adaptive(), 6),
    (FULL_COVARIANCE, HOSPITALS): Setting(Adaptive(), 10, Adaptive(), 3),
    (MEAN_FIELD, K_MEANS): Setting(Fixed(0.4), 40, Fixed(1.0), 10),
    (MEAN_FIELD, HOSPITALS): Setting(Fixed(0.1), 40, Fixed(0.5), 10),
    (NETWORK, K_MEANS): Setting(Fixed(0.4), 20, Fixed(1.0), 10, 300, 128),
    (NETWORK, HOSPITALS): Setting(Fixed(0.2), 24, Fixed(1.0), 10, 100, None),
}
OFF = r"$\downarrow$"  # marks what lies below the panel
BELOW, ABOVE = 0.12, 0.03  # nats around global VI that are drawn
QUICK_CASES = ((FULL_COVARIANCE, K_MEANS), (NETWORK, K_MEANS))
GLOBAL_ROUNDS, GLOBAL_STEPS, GLOBAL_BATCH = 12, 500, 128


def pvi_icu(journal: Journal, size: Size, seed: int) -> None:
    """Every method for every model and partition; with five seeds where all is asked."""
    seeds = range(seed, seed + (FULL_SEEDS if size is Size.FULL else 1))
    settings = {case: in_small(setting) for case, setting in SETTINGS.items() if case in QUICK_CASES}
    settings = settings if size is Size.QUICK else SETTINGS
    table = sources.eicu_demo()
    journal.settings(
        data="eICU demo 2.0.1, 2,179 stays at 186 hospitals, in place of MIMIC-III, which is not public",
        split="by patient, 60 % to train, 20 % to validate, 20 % to test",
        missing="mean of the training stays that have it, and a 0/1 column; standardised by the training stays",
        models=f"coefficients N(0, 1); perceptron with 50 and 50 hidden units, N(0, {PRIOR_SCALE}^2), mean field",
        regression_solver="natural gradient, to 1e-4 nats; up to the given number of rounds, or to a gap of 1e-6 nats",
        perceptron_solver=f"Adam {STEP_SIZE} (scales x {SCALES_FASTER:g}), cosine decay in each visit; "
        f"the first starts at sd {TIGHT}, means in +-{JITTER}; predictions of {NUM_DRAWS} draws",
        global_vi=f"the same solver with all rows at one client; perceptron: {GLOBAL_ROUNDS} times "
        f"{GLOBAL_STEPS} steps, batch {GLOBAL_BATCH}",
        settings={" by ".join(case): _in_words(setting) for case, setting in settings.items()},
        seeds=list(seeds),
    )
    found: Found = {}
    for current in seeds:
        data = split(table, current)
        shares = {by: clients_of(data, by, current) for by in PARTITIONS}
        for by, clients in shares.items():
            _describe(journal, current, by, clients)
        together: dict[str, list[dict[str, Any]]] = {}
        for (name, by), setting in settings.items():
            model, clients = make_model(name, data.columns), shares[by]
            if name not in together:
                together[name] = fit_global(model, data, setting, current, small=size is Size.QUICK)
            fits = {GLOBAL: as_exchanges(together[name], len(clients))}
            for method, history in _others(model, data, clients, setting, current):
                fits[method] = history
                gap = history[-1]["test_log_likelihood"] - fits[GLOBAL][-1]["test_log_likelihood"]
                journal.say(
                    f"seed {current}, {name} by {by}, {method}: {gap:+.4f} nats, {history[-1]['seconds']:.0f} s"
                )
            found.setdefault((name, by), []).append(fits)
            _record(journal, {"seed": current, "model": name, "partition": by}, fits)
    for letter, ((model, by), bar) in zip("abcd", bars(), strict=True):
        name = f"pvi-icu-{letter} {model} by {by}: largest |test log likelihood of PVI - global VI|, nats per stay"
        gap = largest_gap(found[model, by]) if (model, by) in found else None
        holds = None if gap is None or size is Size.QUICK else gap <= bar
        journal.check(name, gap, f"<= {bar:g}", holds)
    journal.figure("communications", lambda: picture(found, "communications", "communications (client visits)"))
    by_steps = {case: seeds for case, seeds in found.items() if case[0] == NETWORK}
    journal.figure("gradient_steps", lambda: picture(by_steps, "steps", "sequential gradient steps"))


def make_model(name: str, columns: Sequence[str]) -> PredictiveModel:
    """The model of that name."""
    if name == NETWORK:
        return mlp_classifier(len(columns), HIDDEN, 2, prior_scale=PRIOR_SCALE)
    return logistic_regression(columns, prior_scale=1.0, covariance=DiagonalGaussian if name == MEAN_FIELD else None)


def make_solver(steps: int | None, batch_size: int | None) -> Solver:
    """Gradient steps, a fixed number per visit; or natural gradients to within 1e-4 nats of a client's optimum."""
    if steps is None:
        return NaturalGradient(tolerance=1e-4)
    start = Tight(TIGHT, JITTER, first_only=True)
    return Gradient(annealed(steps), STEP_SIZE, steps, batch_size=batch_size, start=start)


@dataclass(frozen=True)
class Data:
    """Encoded stays, and their division into training, validation and test."""

    columns: tuple[str, ...]
    hospital: np.ndarray
    train: Rows
    validation: Rows
    test: Rows


def split(table: sources.HospitalTable, seed: int) -> Data:
    """Patients, with all their stays, to train, validate and test."""
    assert table.patient is not None
    patients = np.random.default_rng([seed, 0]).permutation(np.unique(table.patient))
    cuts = [round(share * len(patients)) for share in SHARES]
    parts = [np.isin(table.patient, some) for some in np.split(patients, cuts)]
    encoded = sources.imputed(table, parts[0])
    train, validation, test = ((encoded.x[part], encoded.y[part].astype(float)) for part in parts)
    return Data(encoded.columns, table.hospital[parts[0]], train, validation, test)


def clients_of(data: Data, by: str, seed: int) -> dict[str, Rows]:
    """The training stays of each client."""
    if by == HOSPITALS:
        parts = partition.by_column(data.hospital)
    else:
        parts = partition.k_means(np.random.default_rng([seed, 1]), data.train[0], NUM_CLUSTERS)
    return partition.select(data.train, parts)


def in_small(setting: Setting) -> Setting:
    """A few rounds of a few steps."""
    if setting.steps is None:
        return replace(setting, rounds=4, passes=2)
    return replace(setting, rounds=2, passes=2, steps=10)


def _in_words(setting: Setting) -> str:
    solves = "" if setting.steps is None else f"; {setting.steps} steps per visit, batch {setting.batch_size or 'all'}"
    return (
        f"synchronous {_damping_in_words(setting.synchronous)}, {setting.rounds} rounds; "
        f"sequential {_damping_in_words(setting.sequential)}, {setting.passes} passes{solves}"
    )


def _damping_in_words(damping: Damping) -> str:
    return f"damped by {damping.exponent:g}" if isinstance(damping, Fixed) else "with adaptive damping"


def bars() -> list[tuple[tuple[str, str], float]]:
    """The thresholds: a model and a partition, with the largest allowed gap in nats."""
    return [((model, by), bar) for model, bar in BARS.items() for by in PARTITIONS]


def largest_gap(seeds: Sequence[Histories]) -> float:
    """Between either PVI and global VI at the last round, over seeds; NaN where a run broke down."""
    last = [{name: history[-1]["test_log_likelihood"] for name, history in fits.items()} for fits in seeds]
    return float(np.max([abs(one[name] - one[GLOBAL]) for one in last for name in (SYNCHRONOUS, SEQUENTIAL)]))


def fit_global(model: PredictiveModel, data: Data, setting: Setting, seed: int, *, small: bool) -> list[dict[str, Any]]:
    """All rows at one client, with a budget of its own for gradient steps."""
    if setting.steps is None:
        steps, rounds = None, setting.rounds
    else:
        steps, rounds = (setting.steps, setting.rounds) if small else (GLOBAL_STEPS, GLOBAL_ROUNDS)
    algorithm = PVI(model, solver=make_solver(steps, GLOBAL_BATCH), damping=Fixed(1.0))
    fit = run(
        algorithm,
        {"pooled": data.train},
        rounds=rounds,
        tolerance=_tolerance(steps),
        seed=seed,
        metrics=_scores(model, data),
    )
    return _records(fit, steps, 1)


def as_exchanges(history: Sequence[Mapping[str, Any]], num_clients: int) -> list[dict[str, Any]]:
    """Global VI in a federation: each of its gradient steps asks every client; solves at one place have no count."""
    return [dict(r) | {"communications": r["steps"] and num_clients * r["steps"]} for r in history]


def _others(
    model: PredictiveModel, data: Data, clients: Clients, setting: Setting, seed: int
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """All methods but global VI; what is kept of each."""
    solver, scores = make_solver(setting.steps, setting.batch_size), _scores(model, data)
    chosen = schemes(len(data.train[1]), setting.rounds, setting.passes, setting.synchronous, setting.sequential)
    for name, scheme in chosen.items():
        fit = run(
            PVI(model, solver=solver, **scheme.options),
            clients,
            schedule=scheme.schedule,
            rounds=scheme.rounds,
            tolerance=_tolerance(setting.steps),
            seed=seed,
            metrics=scores,
        )
        yield name, _records(fit, setting.steps, 1 if isinstance(scheme.schedule, Synchronous) else len(clients))


def _tolerance(steps: int | None) -> float:
    """The gap of a stochastic solver never vanishes."""
    return 1e-6 if steps is None else 0.0


def _records(fit: Fit, steps: int | None, visits_in_turn: int) -> list[dict[str, Any]]:
    """What is kept of a history, and gradient steps as time goes: those of clients at work together count once."""
    entries = ("round", "gap", "exponent", "communications", "bytes", "seconds", "validation_log_likelihood")
    kept = [{e: record[e] for e in (*entries, *(f"test_{name}" for name in SCORES))} for record in fit.history]
    return [r | {"steps": None if steps is None else steps * visits_in_turn * r["round"]} for r in kept]


def _scores(model: PredictiveModel, data: Data) -> dict[str, Callable[[Any], float]]:
    """Log likelihood (nats per stay) and others of the held-out parts, for the history."""
    num_draws = NUM_DRAWS if isinstance(model, MLP) else None

    def score(measure: Callable, part: Rows) -> Callable[[Any], float]:
        x, y = part

        @jax.jit  # compiled once for all rounds
        def risk(q: Any) -> Any:
            found = model.predict(q, x, key=jax.random.key(0), num_draws=num_draws).mean
            return found[:, 1] if found.ndim == 2 else found

        return lambda posterior: float(measure(risk(jax.tree.map(jnp.asarray, posterior)), y.astype(int)))

    of_test = {f"test_{name}": score(measure, data.test) for name, measure in SCORES.items()}
    return {"validation_log_likelihood": score(metrics.log_likelihood, data.validation)} | of_test


def _describe(journal: Journal, seed: int, by: str, clients: Clients) -> None:
    """Sizes and shares of deaths, as in the paper's table 3."""
    sizes = [len(y) for _, y in clients.values()]
    shares = [float(np.mean(y)) for _, y in clients.values()]
    shown = {"sizes": sizes, "deaths": shares} if len(sizes) <= NUM_CLUSTERS else {}
    journal.row(
        "partitions", seed=seed, partition=by, clients=len(sizes), smallest=min(sizes), largest=max(sizes), **shown,
    )  # fmt: skip


def _record(journal: Journal, who: Mapping[str, Any], fits: Histories) -> None:
    """Record the cost of each method, and its scores at the last round and at the round chosen by validation."""
    reference = fits[GLOBAL][-1]["test_log_likelihood"]
    for method, history in fits.items():
        last = history[-1]
        chosen = max(history, key=lambda record: record["validation_log_likelihood"])
        journal.row(
            "scores",
            **who,
            method=method,
            **{name: last[f"test_{name}"] for name in SCORES},
            above_global=last["test_log_likelihood"] - reference,
            chosen_round=chosen["round"],
            chosen_log_likelihood=chosen["test_log_likelihood"],
        )
        journal.row(
            "runs",
            **who,
            method=method,
            rounds=last["round"],
            visits=last["communications"],
            steps=last["steps"],
            smallest_exponent=min(record["exponent"] for record in history),
            MB=round(last["bytes"] / 1e6, 2),
            seconds=round(last["seconds"], 1),
        )
    journal.put("histories " + ", ".join(str(value) for value in who.values()), fits)


def picture(found: Found, against: str, label: str) -> Figure:
    """Test log likelihood against cost: a row of panels per model, a column per partition."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(model for model, _ in found))
    columns = list(dict.fromkeys(by for _, by in found))
    figure = Figure(figsize=(4.6 * len(columns) + 1.8, 2.9 * len(names) + 0.4), layout="constrained")
    grid: Any = figure.subplots(len(names), len(columns), squeeze=False)
    for (model, by), seeds in found.items():
        axes = axes_or_new(grid[names.index(model)][columns.index(by)], 4.6, 2.9)
        _panel(axes, seeds, against)
        axes.set_title(f"{model}, {by}", fontsize="medium")
        axes.set_ylabel("test log likelihood, nats" if by == columns[0] else "")
        axes.set_xlabel(label if model == names[-1] else "")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def _panel(axes: Axes, seeds: Sequence[Histories], against: str) -> None:
    """Means over seeds, with their standard deviation as a band; what lies far below is drawn at the lower edge."""
    from matplotlib.ticker import LogLocator, NullLocator

    end = float(np.mean([fits[GLOBAL][-1]["test_log_likelihood"] for fits in seeds]))
    bottom, top = end - BELOW, end + ABOVE
    for i, method in enumerate(METHODS):
        if seeds[0][method][0][against] is None:  # global VI by a solve at one place: the line that is drawn below
            axes.plot([], [], color=colour(i), label=method)
            continue
        length = min(len(fits[method]) for fits in seeds)  # runs that settled early are shorter
        x = np.array([record[against] for record in seeds[0][method][:length]], float)
        values = np.array([[r["test_log_likelihood"] for r in fits[method][:length]] for fits in seeds], float)
        values = np.clip(np.nan_to_num(values, nan=-np.inf), bottom, top)
        mean, spread = values.mean(0), values.std(0)
        if length == 1:
            style: dict[str, Any] = {"marker": OFF if mean[0] == bottom else marker(i), "markersize": 8, "zorder": 4}
        else:
            style = {"linewidth": 1.6}
        axes.plot(x, mean, color=colour(i), label=method, clip_on=False, **style)
        if len(seeds) > 1 and length > 1:
            axes.fill_between(x, mean - spread, mean + spread, color=colour(i), alpha=0.15, linewidth=0)
    axes.axhline(end, color=colour(0), linewidth=1, linestyle="--", zorder=1)
    axes.set_xscale("log")
    narrow = axes.get_xlim()[1] < 100 * axes.get_xlim()[0]
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axes.xaxis.set_major_formatter(lambda x, place: f"{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom, top)
    axes.grid(color="#e6e6e6", linewidth=0.8)
