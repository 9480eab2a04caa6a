"""`cavity demo`: a real clinical trial of hospitals that do not pool their data, in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import Level, level_or_default, start_jax

if TYPE_CHECKING:
    from rich.console import Console

    from cavity.reporting.indomethacin import Comparison

PICTURE = "indomethacin.png"


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the figure; created if missing.")] = Path("cavity-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed; this fit is deterministic.")] = 0,
    level: Level = None,
) -> None:
    """Fit a clinical trial of four hospitals, three of which take part, without pooling, and compare with pooling.

    Does rectal indomethacin prevent pancreatitis after ERCP? The trial has 602 patients of four hospitals. One is left
    out because it has only 3 patients, so three hospitals with 599 patients take part. A Bayesian logistic regression
    by partitioned variational inference. Nothing is downloaded; it takes seconds.

    Example: `cavity demo --output pictures`
    """
    start_jax()
    probability = level_or_default(level)
    import matplotlib  # noqa: F401  (a missing package is reported before the work, not after)
    from rich.console import Console

    from cavity.reporting import indomethacin

    console = Console(highlight=False)
    hospitals, left_out = indomethacin.admitted()
    output.mkdir(parents=True, exist_ok=True)
    _introduce(console, {name: len(y) for name, (_, y) in hospitals.items()}, left_out)
    console.print("\n[bold]Rounds[/bold] (the first one includes compilation)")
    comparison = indomethacin.compare(
        hospitals,
        seed=seed,
        observers=[
            lambda record, server: console.print(
                f"  round {record['round']}: change {record['gap']:.1e} nats, {record['bytes'] / 1000:.1f} kB exchanged"
            )
        ],
    )
    _tabulate(console, comparison, probability)
    _conclude(console, comparison, probability)
    indomethacin.figure(comparison, probability).savefig(output / PICTURE, dpi=150)
    console.print(f"Figure: {output / PICTURE}", soft_wrap=True)


def _introduce(console: Console, sizes: dict[str, int], left_out: dict[str, int]) -> None:
    from cavity.reporting.indomethacin import FEATURES, MIN_ROWS, PRIOR_SCALE, UNITS

    console.print("[bold]Does indomethacin prevent pancreatitis after ERCP?[/bold] (a randomised trial of 2012)")
    patients = ", ".join(f"{name} {size}" for name, size in (sizes | left_out).items())
    total, hospitals = sum((sizes | left_out).values()), len(sizes | left_out)
    console.print(f"{total} patients of {hospitals} hospitals: {patients}. Each hospital keeps its data.")
    for name, size in left_out.items():
        console.print(
            f"{name} is left out: it has only {size} patients, and the study requires {MIN_ROWS}. A hospital sends a "
            f"summary of its rows; with {size} rows for {len(FEATURES) + 1} coefficients its patients could be "
            "identified."
        )
    if left_out:
        console.print(f"So {len(sizes)} hospitals with {sum(sizes.values())} patients take part.")
    console.print(
        f"Model: logistic regression, prior N(0, {PRIOR_SCALE}²) on each coefficient; {UNITS}. These units are fixed "
        "beforehand, so no statistic of the data is shared for scaling."
    )


def _tabulate(console: Console, comparison: Comparison, level: float) -> None:
    from rich import box
    from rich.table import Table

    from cavity.core.intervals import percent

    fits = {
        "federated": comparison.federated.summary(level),
        "pooled": comparison.pooled.summary(level),
        f"{comparison.largest} alone": comparison.alone.summary(level),
    }
    table = Table(title="\nLog odds ratios of pancreatitis", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("coefficient", "fit", "mean", "sd", f"{percent(level)} interval"):
        table.add_column(column, justify="left" if column in ("coefficient", "fit") else "right")
    for name in (estimate.name for estimate in fits["federated"]):
        for i, (fit, summary) in enumerate(fits.items()):
            e = summary[name]
            cells = (f"{e.mean:+.3f}", f"{e.sd:.3f}", f"{e.lower:+.3f} to {e.upper:+.3f}")
            style = "bold" if i == 0 else "dim" if i == 2 else ""
            table.add_row(name if i == 0 else "", fit, *cells, style=style, end_section=i == 2)
    console.print(table)


def _conclude(console: Console, comparison: Comparison, level: float) -> None:
    from cavity.core.intervals import percent
    from cavity.reporting.indomethacin import odds_ratio

    last, ratio = comparison.history[-1], odds_ratio(comparison.federated, level=level)
    console.print(
        f"[bold]Treatment:[/bold] indomethacin multiplies the odds of pancreatitis by {ratio.median:.2f} (odds "
        f"ratio, {percent(level)} interval {ratio.lower:.2f} to {ratio.upper:.2f}). The probability that the odds "
        f"ratio is below 1 is {100 * ratio.below_one:.1f} %."
    )
    console.print(
        f"[bold]Against pooling:[/bold] KL(federated : pooled) is {last['kl']:.1e} nats. (This demo can pool for "
        "comparison, since the data are public. A study cannot; it monitors the gap instead.)"
    )
    console.print(
        f"[bold]Is a Gaussian good enough?[/bold] The approximation is {comparison.federated.verdict}. Each hospital "
        "sends one number per draw for this."
    )
    visits = last["communications"]
    console.print(
        f"[bold]Exchanged:[/bold] {last['round']} rounds, {visits} messages to hospitals and {visits} replies, "
        f"{last['bytes'] / 1000:.1f} kB in total: posteriors and factors. No patient's data left a hospital. (In this "
        "demo all hospitals run in one process; the client part of each uses its own rows only.)"
    )
