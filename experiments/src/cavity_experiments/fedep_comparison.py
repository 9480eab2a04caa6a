"""Ten methods on the same image clients: tables, thresholds and figures that FedEP's experiments share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cavity.models.neural.network import NetworkModel
from cavity.reporting import plots
from cavity.reporting.plots.style import axes_or_new, colour, marker
from cavity_experiments import fedep_methods as methods
from cavity_experiments.fedep_methods import FEDAVG, FEDPA, METHODS, SMALL_STEPS, STATEFUL, VARIANTS, Setting
from cavity_experiments.fedep_scores import MARGINALISED, NUM_DRAWS, Images, Looks, averaged, probabilities, rounds_to
from cavity_experiments.runner import Journal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = list[dict[str, Any]]
CALIBRATION = {
    "confidence": "confidence", "ece_equal_count": "ece equal count", "log_likelihood": "log likelihood",
    "brier": "brier",
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One federation.

    Attributes:
        model: a network for its images.
        clients: name -> images and labels.
        validation: images for choices.
        test: images for the reported scores.
        setting: how the methods are run.
        every: rounds between two evaluations.
        window: evaluations that are averaged.
        thresholds: accuracies in per cent; the table has the first round that reaches each.
        seed: of the runs.
    """

    model: NetworkModel
    clients: Mapping[str, Images]
    validation: Images
    test: Images
    setting: Setting
    every: int
    window: int
    thresholds: tuple[float, float]
    seed: int

    @property
    def num_rows(self) -> int:
        """Of all clients."""
        return sum(len(labels) for _, labels in self.clients.values())


@dataclass(frozen=True)
class Outcome:
    """The result of a method.

    Attributes:
        records: of all evaluations, those during the burn-in first.
        scores: means over the last evaluations.
        posterior: the last one.
    """

    records: Records
    scores: dict[str, float]
    posterior: Any


def run_all(
    journal: Journal, seeds: Sequence[int], federation: Callable[[int], Task], label: str, *, judged: bool
) -> None:
    """The comparison for each seed; then the thresholds over all seeds, and the figures."""
    tasks, found = [], []
    for seed in seeds:
        tasks.append(federation(seed))
        found.append(compare(journal, tasks[-1]))
    judge(journal, found, label, judged=judged)
    journal.figure("rounds", lambda: draw_rounds(found, tasks[-1].setting))
    journal.figure("reliability", lambda: draw_reliability(found, tasks[-1]))


def settings(setting: Setting, every: int, window: int) -> dict[str, Any]:
    """The settings that are needed to repeat the experiment, besides the data and the network."""
    return {
        "rounds": f"{setting.burn_in} of FedAvg, {setting.rounds} of each; {setting.clients_per_round} clients in each",
        "client": f"{setting.num_epochs} epochs, batch {setting.batch_size}, momentum {methods.MOMENTUM}",
        "server": f"descent on natural parameters, momentum {methods.MOMENTUM}",
        "looks": f"every {every} rounds; figures are means over {window} of them; {NUM_DRAWS} draws",
        "choices": {name: vars(choice) for name, choice in setting.choices.items()},
    }


def compare(journal: Journal, task: Task) -> dict[str, Outcome]:
    """All methods from one burn-in, each as a row of two tables, whose "averaged" columns are over draws."""
    total = task.setting.burn_in + task.setting.rounds

    def looks(name: str) -> Looks:
        def say(seen: Mapping[str, Any]) -> None:
            ended = seen["round"] == total or seen["round"] == task.setting.burn_in
            if ended or seen["round"] % (5 * task.every) == 0:
                journal.say(f"seed {task.seed}, {name}: round {seen['round']}, {seen['accuracy']:.1f} % right")

        closely_from = total - (task.window - 1) * task.every
        return Looks(task.model, task.validation, task.test, task.every, closely_from, say)

    began, first = time.monotonic(), looks("burn-in")
    burnt = methods.burn_in(task.model, task.clients, task.setting, task.seed, [first])
    journal.say(f"seed {task.seed}: {task.setting.burn_in} rounds of burn-in took {time.monotonic() - began:.0f} s")
    outcomes = {}
    for name in METHODS:
        began, these = time.monotonic(), looks(name)
        fit = methods.continue_run(name, burnt, task.setting, task.num_rows, [these])
        records = first.records + these.records
        outcomes[name] = outcome = Outcome(records, averaged(records, task.window), fit.posterior)
        refused = sum(record["refused"] for record in fit.history)
        _record(journal, task, name, outcome, refused, time.monotonic() - began)
    journal.put(f"looks of seed {task.seed}", {name: outcome.records for name, outcome in outcomes.items()})
    return outcomes


def _record(journal: Journal, task: Task, name: str, outcome: Outcome, refused: int, seconds: float) -> None:
    scores, who = outcome.scores, {"seed": task.seed, "method": name}
    to = {f"rounds_to_{t:g}": rounds_to(outcome.records, t, task.window) for t in task.thresholds}
    cells = {
        "accuracy": scores["accuracy"], "averaged_accuracy": scores.get(f"{MARGINALISED}accuracy"),
        "ece": scores["ece"], "averaged_ece": scores.get(f"{MARGINALISED}ece"),
        "validation": scores["validation accuracy"],
    }  # fmt: skip
    journal.row("methods", **who, **to, **cells, refused=refused, seconds=seconds)
    cells = {}
    for column, score in CALIBRATION.items():
        cells[column], cells[f"averaged_{column}"] = scores[score], scores.get(f"{MARGINALISED}{score}")
    journal.row("calibration", **who, **cells)


def mean_over_seeds(found: Sequence[Mapping[str, Outcome]], name: str, score: str) -> float:
    """Of a method's score."""
    return float(np.mean([outcomes[name].scores[score] for outcomes in found]))


def best_by_validation(found: Sequence[Mapping[str, Outcome]]) -> str:
    """The FedEP variant with the highest validation accuracy over all seeds."""
    return max(STATEFUL, key=lambda name: mean_over_seeds(found, name, "validation accuracy"))


def judge(journal: Journal, found: Sequence[Mapping[str, Outcome]], label: str, *, judged: bool) -> None:
    """Check whether FedEP is more accurate than FedAvg, with half its calibration error.

    Its variant is chosen by validation.
    """
    best = best_by_validation(found)
    journal.put("best FedEP by validation", best)
    gain = mean_over_seeds(found, best, "accuracy") - mean_over_seeds(found, FEDAVG, "accuracy")
    journal.check(f"{label}a points of accuracy that {best} is above FedAvg", gain, "> 0", gain > 0 if judged else None)
    ours, theirs = mean_over_seeds(found, best, f"{MARGINALISED}ece"), mean_over_seeds(found, FEDAVG, "ece")
    holds = ours <= theirs / 2 if judged else None
    journal.check(f"{label}b ECE of {best}, marginalised, over FedAvg's", ours / theirs, "<= 0.5", holds)
    ratio = mean_over_seeds(found, best, "ece") / theirs
    journal.check(f"{label}c ECE of {best}, point, over FedAvg's", ratio, "<= 0.5", ratio <= 0.5 if judged else None)


def draw_rounds(found: Sequence[Mapping[str, Outcome]], setting: Setting) -> Figure:
    """Accuracy by round from the end of the burn-in on, a mean over the seeds: FedEP left, FedSEP right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for kind, axes in zip(("FedEP", "FedSEP"), panels, strict=True):
        axes_or_new(axes, 5.2, 4.4)
        for i, name in enumerate((FEDAVG, SMALL_STEPS, FEDPA, *(f"{kind} {variant}" for variant in VARIANTS))):
            rounds = np.array([record["round"] for record in found[0][name].records])
            accuracy = np.mean([[r["accuracy"] for r in outcomes[name].records] for outcomes in found], axis=0)
            shown = rounds >= setting.burn_in
            axes.plot(rounds[shown], accuracy[shown], color=colour(i), marker=marker(i), markersize=4, linewidth=1.3,
                      label=name)  # fmt: skip
        axes.grid(color="#e6e6e6", linewidth=0.8)
        axes.set_xlabel("round")
        axes.legend(frameon=False, loc="lower right", fontsize="small")
    panels[0].set_ylabel("test accuracy, %")
    return figure


def draw_reliability(found: Sequence[Mapping[str, Outcome]], task: Task) -> Figure:
    """Confidence against accuracy of the last posteriors: FedAvg, and the best FedEP in both ways."""
    best = best_by_validation(found)
    x, labels = task.test
    cases: dict[str, tuple[str, int | None]] = {
        FEDAVG: (FEDAVG, None), f"{best}, point": (best, None), f"{best}, marginalised": (best, NUM_DRAWS),
    }  # fmt: skip
    last: Callable[[str], Any] = lambda name: found[-1][name].posterior  # noqa: E731
    predictions = {label: probabilities(task.model, last(name), x, draws) for label, (name, draws) in cases.items()}
    return plots.reliability(predictions, labels)
