"""`cavity demo`: a real trial over hospitals that do not pool their patients, in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import start_jax

if TYPE_CHECKING:
    from rich.console import Console

    from cavity.reporting.indomethacin import Comparison

PICTURE = "indomethacin.png"


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the picture; it is made.")] = Path("cavity-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness; this fit is deterministic.")] = 0,
) -> None:
    """Fit a clinical trial over three hospitals, and compare with what pooling their patients gives.

    Does rectal indomethacin prevent pancreatitis after ERCP? 602 patients of four hospitals, a Bayesian logistic
    regression, partitioned variational inference. Nothing is downloaded; it takes seconds.

    Example: `cavity demo --out pictures`
    """
    start_jax()
    import matplotlib  # noqa: F401  (a missing package is told before the work, not after)
    from rich.console import Console

    from cavity.reporting import indomethacin

    console = Console(highlight=False)
    hospitals, left_out = indomethacin.admitted()
    out.mkdir(parents=True, exist_ok=True)
    _introduce(console, {name: len(y) for name, (_, y) in hospitals.items()}, left_out)
    console.print("\n[bold]The federation at work[/bold] (the first round includes compilation)")
    comparison = indomethacin.compare(
        hospitals,
        seed=seed,
        observers=[
            lambda record, server: console.print(
                f"  round {record['round']}: the posterior still moves by {record['gap']:.1e} nats, "
                f"{record['bytes'] / 1000:.1f} kB exchanged"
            )
        ],
    )
    _tabulate(console, comparison)
    _conclude(console, comparison)
    indomethacin.figure(comparison).savefig(out / PICTURE, dpi=150)
    console.print(f"Picture: {out / PICTURE}", soft_wrap=True)


def _introduce(console: Console, sizes: dict[str, int], left_out: dict[str, int]) -> None:
    from cavity.reporting.indomethacin import FEATURES, MIN_ROWS, PRIOR_SCALE, UNITS

    console.print("[bold]Does indomethacin prevent pancreatitis after ERCP?[/bold] (a randomised trial of 2012)")
    patients = ", ".join(f"{name} {size}" for name, size in sizes.items())
    console.print(f"Patients: {patients}. Each hospital keeps its own.")
    for name, size in left_out.items():
        console.print(
            f"{name} is left out: {size} patients, and the study asks for {MIN_ROWS}. What a hospital sends is a "
            f"summary of its rows, and with {size} rows for {len(FEATURES) + 1} coefficients it would nearly give "
            "them away."
        )
    console.print(
        f"Model: logistic regression, prior N(0, {PRIOR_SCALE}²) on each coefficient; {UNITS}: fixed beforehand, so "
        "that no statistic of the data has to be shared for scaling."
    )


def _tabulate(console: Console, comparison: Comparison) -> None:
    from rich import box
    from rich.table import Table

    fits = {
        "federated": comparison.federated.summary(level=0.9),
        "pooled": comparison.pooled.summary(level=0.9),
        f"{comparison.largest} alone": comparison.alone.summary(level=0.9),
    }
    table = Table(title="\nLog odds ratios of pancreatitis", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("coefficient", "fit", "mean", "sd", "90 % interval"):
        table.add_column(column, justify="left" if column in ("coefficient", "fit") else "right")
    for name in (estimate.name for estimate in fits["federated"]):
        for i, (fit, summary) in enumerate(fits.items()):
            e = summary[name]
            cells = (f"{e.mean:+.3f}", f"{e.sd:.3f}", f"{e.lower:+.3f} to {e.upper:+.3f}")
            style = "bold" if i == 0 else "dim" if i == 2 else ""
            table.add_row(name if i == 0 else "", fit, *cells, style=style, end_section=i == 2)
    console.print(table)


def _conclude(console: Console, comparison: Comparison) -> None:
    from cavity.reporting.indomethacin import odds_ratio

    last, ratio = comparison.history[-1], odds_ratio(comparison.federated)
    console.print(
        f"[bold]Treatment:[/bold] indomethacin multiplies the odds of pancreatitis by {ratio.median:.2f} (odds "
        f"ratio, 90 % interval {ratio.lower:.2f} to {ratio.upper:.2f}). The probability that the odds ratio is below 1 "
        f"is {100 * ratio.below_one:.1f} %."
    )
    console.print(
        f"[bold]Against pooling:[/bold] KL(federated : pooled) is {last['kl']:.1e} nats. (This demo may pool, to "
        "compare: the data are public. A study cannot, and watches the residual instead.)"
    )
    console.print(
        f"[bold]Is a Gaussian good enough?[/bold] The approximation is {comparison.federated.verdict}. This takes one "
        "number per hospital and draw."
    )
    visits = last["communications"]
    console.print(
        f"[bold]Exchanged:[/bold] {last['round']} rounds, {visits} messages to hospitals and {visits} replies, "
        f"{last['bytes'] / 1000:.1f} kB in all: posteriors and factors. No row left a hospital. (All of them run in "
        "this process here; each one's half sees its own rows only.)"
    )
