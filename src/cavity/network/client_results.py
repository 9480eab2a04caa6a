"""What a client writes when a study ends: the results of all, and its own, which it computes and does not send.

The effects of its groups are computed here from the shared posterior and the client's rows. The report is a page that
this client makes, from the sections of the server's report and its own.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from jaxtyping import PyTree

from cavity import ledger
from cavity.core import Algorithm, Data
from cavity.core.client_data import unit_labels
from cavity.errors import CavityError, ProtocolError
from cavity.fit.fit import Fit
from cavity.fit.method import marginal_or_none
from cavity.fit.summary import Summary
from cavity.io.checkpoints import HISTORY, write_atomically
from cavity.io.versions import versions
from cavity.network.protocol import check_like
from cavity.reporting import parts_file
from cavity.reporting.facts import ClientRows, Sent, shown_count
from cavity.reporting.page import Paragraph, Section, page
from cavity.reporting.report import REPORT, lead, table_files
from cavity.reporting.sections.local_results import effects
from cavity.reporting.tables import Table
from cavity.schedules import Synchronous
from cavity.study.run import COVARIANCE, POSTERIOR, REPORT_PARTS, STUDY, SUMMARY, VERSIONS

FILES = (POSTERIOR, SUMMARY, COVARIANCE, HISTORY, STUDY, VERSIONS)  # the server does not choose others
LOCAL = "local.csv"


def local_summary(algorithm: Algorithm, name: str, data: Data, raw: PyTree, posterior: PyTree) -> Summary | None:
    """The effects of a client's groups given the shared posterior; None where the model has none.

    Args:
        algorithm: the study's method.
        name: of the client.
        data: of the client, prepared.
        raw: the same before it was prepared, with the names of groups.
        posterior: of the shared parameters, as the server sent it.

    Raises:
        ProtocolError: the posterior is not one of this model.
    """
    if marginal_or_none(algorithm) is None:
        return None
    check_like("the posterior", posterior, algorithm.prior)
    if not ledger.is_proper(posterior):
        raise ProtocolError("the posterior is improper")
    server = ledger.open_ledger(algorithm, [name], 0)
    labels = unit_labels(algorithm.model, {name: raw})
    server = replace(server, posterior=posterior)
    return Fit(algorithm, server, [], "rounds", Synchronous(), {name: data}, labels=labels).local(name).summary()


def write_results(
    folder: Path,
    name: str,
    files: dict[str, bytes],
    rows: ClientRows,
    local: Callable[[], Summary | None],
    notify: Callable[[str], None],
) -> None:
    """Write all results of a study.

    Args:
        folder: for the results.
        name: of the client.
        files: from the server.
        rows: of this client.
        local: computes the effects of the client's groups.
        notify: called with lines about the progress.
    """
    for file in FILES:
        if file in files:
            write_atomically(folder / file, files[file])
    own: list[Section] = [_own_rows(name, rows, folder.parent / "sent.jsonl")]
    try:
        if (summary := local()) is not None:
            write_atomically(folder / LOCAL, _csv(summary).encode())
            own.append(effects(name, summary))
    except CavityError as error:
        notify(f"the effects of this client's groups are not known: {error}")
    if REPORT_PARTS in files:
        try:
            title, shared = parts_file.read(files[REPORT_PARTS])
        except CavityError as error:  # the other results are valid, and the study is over
            notify(f"the server sent no report that can be used: {error}")
            title, shared = f"Results of {name}", ()
        sections = [*shared, *own]
        page_text = page(title, lead(versions()["cavity"], name, over_network=True), sections)
        for file, content in {REPORT: page_text.encode(), **table_files(sections)}.items():
            write_atomically(folder / file, content)


def _own_rows(name: str, rows: ClientRows, log: Path) -> Section:
    counts = Paragraph(f"Rows used: {shown_count(rows.used)}; dropped: {shown_count(rows.dropped)}.")
    sent = _sent(log)
    cells = tuple((each.what, f"{each.count:,}", f"{each.num_bytes:,}") for each in sent)
    table = Table(f"Sent by {name}; sent.jsonl has every message", ("messages", "number", "bytes"), cells, name="sent")
    return Section(f"At {name}", (counts, table))


def _sent(log: Path) -> list[Sent]:
    """What this client has sent, by kind."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    if log.is_file():
        for line in log.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            count[entry["kind"]] += 1
            size[entry["kind"]] += entry["bytes"]
    return [Sent(kind, count[kind], size[kind]) for kind in count]


def _csv(summary: Summary) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["effect", "mean", "sd", "lower", "upper", "level"])
    for e in summary:
        writer.writerow([e.name, e.mean, e.sd, e.lower, e.upper, summary.level])
    return text.getvalue()
