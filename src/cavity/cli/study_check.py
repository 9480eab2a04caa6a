"""`cavity study check`: everything that is wrong with a study file or a site's data, before the site joins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cavity.cli.session import AllowModel, start_jax
from cavity.errors import StudyError

if TYPE_CHECKING:
    from cavity.study.findings import Finding
    from cavity.study.schema import Study

REFUSED = 2


def check(
    file: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file.")],
    data: Annotated[Path | None, typer.Option(help="Your CSV file; it is only read, and nothing is sent.")] = None,
    name: Annotated[str | None, typer.Option(help="Your name in the study's list of clients.")] = None,
    allow_model: AllowModel = None,
) -> None:
    """List everything that is wrong with a study file and with your data, and what would be sent.

    Rows are numbered as in the file, the header being line 1. The exit code is 2 if something is wrong.

    Example: `cavity study check study.toml --data mine.csv --name leeds`
    """
    start_jax()
    from cavity.study.checks import check as find
    from cavity.study.checks import name_findings
    from cavity.study.reader import read_study
    from cavity.study.table import read_csv

    try:
        study = read_study(file, allow_models=allow_model or ())
        introduction = [*_introduction(study), *_disclosures(study)]
    except StudyError as error:
        for problem in error.problems:
            typer.echo(f"error: {file}: {problem.removeprefix(f'{file}: ')}")
        raise typer.Exit(REFUSED) from None
    findings: Sequence[Finding] = []
    if data is not None:
        findings = find(study, read_csv(data), name)
    elif name is not None:
        findings = list(name_findings(study, name))
    for line in introduction:
        typer.echo(line)
    for finding in findings:
        typer.echo(f"{finding.severity}: {finding}")
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        typer.echo(f"{data or file}: {errors} {'error' if errors == 1 else 'errors'} to fix before you join")
        raise typer.Exit(REFUSED)
    if data is None:
        typer.echo(f"{file}: no problems found")
        return
    warnings = sum(finding.severity == "warning" for finding in findings)
    consider = f", after you have considered {warnings} warning{'' if warnings == 1 else 's'}" if warnings else ""
    typer.echo(f"{data}: ready to join{consider}")


def _introduction(study: Study) -> list[str]:
    from cavity.study.models import describe

    return [
        f"{study.name} ({study.id}), {len(study.clients)} clients: {', '.join(study.clients)}",
        f"model: {describe(study.model)}",
        f"hash: {study.hash}",
    ]


def _disclosures(study: Study) -> list[str]:
    from cavity.study.disclosure import disclosures

    return ["what a client sends:", *(f"  {disclosure}" for disclosure in disclosures(study))]
