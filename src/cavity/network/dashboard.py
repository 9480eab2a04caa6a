"""A page about a running study, for the person at the server: clients, rounds, estimates, log and estimated end.

It listens on the loopback address, answers `GET /` only, changes nothing, and loads nothing from elsewhere. The page is
written at each request, from the files of the run's folder and the posteriors of the rounds so far, and reloads
itself. A request whose `Host` is not this address is refused, so that no other website can read the page through a
browser.
"""

from __future__ import annotations

import html
import json
import math
import threading
from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from cavity.core import Algorithm
from cavity.core.messages import ServerState
from cavity.distributions.gaussian import gaussian_or_none
from cavity.errors import CavityError, printable
from cavity.io.checkpoints import HISTORY
from cavity.network.run_directory import read_status
from cavity.reporting.page import POLICY, STYLE
from cavity.reporting.tables import Table
from cavity.study.schema import Study
from cavity.training import Record

HOST = "127.0.0.1"
RELOAD = 3  # seconds
TAIL = 20  # lines of the log
MOST_SHOWN = 60  # coefficients
MOST_ROUNDS = 200  # of which estimates are kept
WIDTH, HEIGHT = 120, 22  # of a small curve, in pixels


class Dashboard:
    """The page of one run.

    Args:
        study: what was agreed.
        directory: of the run.
        log: the server's log file.
        port: to listen on; 0 takes a free one.
    """

    def __init__(self, study: Study, directory: Path, log: Path, port: int = 0):
        self._study, self._directory, self._log = study, directory, log
        self._estimates: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=MOST_ROUNDS)
        self._names: tuple[str, ...] = ()
        handler = _handler(self)
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError:
            raise CavityError(f"the port {port} is in use; give another with --dashboard-port") from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        """For a browser on this machine."""
        return f"http://{HOST}:{self.port}/"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def watch(self, algorithm: Algorithm, server: ServerState) -> None:
        """Keep the estimates of a round.

        Args:
            algorithm: with its model.
            server: its state after the round.
        """
        if gaussian_or_none(server.posterior) is None or len(algorithm.model.parameter_names) > MOST_SHOWN:
            return
        mean, covariance = algorithm.model.reported_moments(server.posterior)
        if np.isfinite(mean).all():
            self._names = algorithm.model.parameter_names
            self._estimates.append((np.asarray(mean), np.sqrt(np.diag(covariance))))

    def page(self) -> str:
        """The page as it is now."""
        try:
            status = read_status(self._directory)
        except CavityError:
            status = {"state": "starting"}
        history = _history(self._directory / HISTORY)
        tolerance = self._study.run.tolerance
        state, line = (html.escape(printable(status.get(key, ""))) for key in ("state", "line"))
        parts = [
            f"<p><b>{state}</b>: {line}</p>",
            f"<p>{html.escape(estimated_end(history, tolerance))}</p>",
            "<h2>Clients</h2>",
            self._clients(status.get("connected", []), history).to_html(),
            "<h2>Largest change by round</h2>",
            _gaps(history, tolerance),
            "<h2>Estimates</h2>",
            self._table(),
            "<h2>Log</h2>",
            f"<pre>{html.escape(_tail(self._log))}</pre>",
        ]
        title = html.escape(self._study.name)
        return (
            f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta http-equiv="refresh" content="{RELOAD}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE} pre {{ overflow-x: auto; font-size: .8rem; }} svg {{ overflow: visible; }}"
            " polyline { fill: none; stroke: #0072b2; stroke-width: 1.5; }"
            " .bar { stroke: #8c8c8c; stroke-dasharray: 4 3; }"
            f"</style></head><body><h1>{title}</h1>{''.join(parts)}</body></html>"
        )

    def _clients(self, connected: object, history: Sequence[Record]) -> Table:
        online = set(connected) if isinstance(connected, list) else set()
        gaps = history[-1].get("gaps", {}) if history else {}
        refusals = history[-1].get("refusals", {}) if history else {}
        rows = [
            (
                printable(name),
                "connected" if name in online else "not connected",
                f"{gaps[name]:.1e}" if isinstance(gaps.get(name), float) else "",
                printable(refusals.get(name, "")),
            )
            for name in self._study.clients
        ]
        return Table("", ("client", "state", "last change (nats)", "last refusal"), tuple(rows), num_text=2)

    def _table(self) -> str:
        estimates = list(self._estimates)
        if not estimates:
            return "<p>None yet.</p>"
        mean, sd = estimates[-1]
        before = estimates[-2][0] if len(estimates) > 1 else mean
        curves = np.array([each for each, _ in estimates])
        rows = "".join(
            f"<tr><td>{html.escape(printable(name))}</td><td class='number'>{mean[i]:.4g}</td>"
            f"<td class='number'>{sd[i]:.3g}</td><td class='number'>{(mean[i] - before[i]) / sd[i]:+.1e}</td>"
            f"<td>{_curve(curves[:, i])}</td></tr>"
            for i, name in enumerate(self._names)
        )
        head = "".join(f"<th>{t}</th>" for t in ("parameter", "mean", "sd", "last change (sd)", "by round"))
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def estimated_end(history: Sequence[Record], tolerance: float) -> str:
    """When the run will end, if its gaps go on falling as in the last rounds.

    Args:
        history: one record per round.
        tolerance: at which the run ends.
    """
    gaps = [(record["round"], record["gap"], record["seconds"]) for record in history if _is_positive(record["gap"])]
    if not history:
        return "No round is complete yet."
    if gaps and gaps[-1][1] < tolerance:
        return f"Round {history[-1]['round']}: the largest change is below the tolerance."
    if len(gaps) < 3 or gaps[-1][1] >= gaps[-3][1]:
        return f"Round {history[-1]['round']}; too early to say when it ends."
    (first, high, start), (last, low, now) = gaps[-3], gaps[-1]
    rate = math.log(high / low) / (last - first)
    rounds = math.ceil(math.log(low / tolerance) / rate)
    seconds = rounds * (now - start) / (last - first)
    time = f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
    return f"Round {last}; about {rounds} more, {time}."


def _is_positive(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value > 0


def _history(path: Path) -> list[Record]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return []  # it is being written


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    except OSError:
        return ""
    return "\n".join(printable(line, 300) for line in lines)


def _curve(values: np.ndarray) -> str:
    low, high = float(values.min()), float(values.max())
    across = np.linspace(0, WIDTH, len(values)) if len(values) > 1 else np.array([WIDTH])
    up = HEIGHT - HEIGHT * (values - low) / ((high - low) or 1.0)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
    return f'<svg width="{WIDTH}" height="{HEIGHT}" role="img"><polyline points="{points}"/></svg>'


def _gaps(history: Sequence[Record], tolerance: float) -> str:
    found = [(record["round"], record["gap"]) for record in history if _is_positive(record["gap"])]
    if not found:
        return "<p>None yet.</p>"
    width, height = 560, 160
    logs = np.log10([gap for _, gap in found])
    low, high = min(logs.min(), math.log10(tolerance)) - 0.3, logs.max() + 0.3
    across = np.linspace(0, width, len(found)) if len(found) > 1 else np.array([0.0])
    points = " ".join(f"{x:.1f},{height * (high - y) / (high - low):.1f}" for x, y in zip(across, logs, strict=True))
    bar = height * (high - math.log10(tolerance)) / (high - low)
    text = "".join(
        f'<text x="{x:.0f}" y="{height + 16}" font-size="11" fill="currentColor">{number}</text>'
        for x, (number, _) in list(zip(across, found, strict=True))[:: max(1, len(found) // 10)]
    )
    caption = f"{found[-1][1]:.1e} nats after round {found[-1][0]}; the run ends below {tolerance:g}"
    return (
        f'<svg viewBox="0 0 {width} {height + 20}" width="100%" style="max-width:{width}px" role="img" '
        f'aria-label="{caption}"><polyline points="{points}"/>'
        f'<line class="bar" x1="0" x2="{width}" y1="{bar:.1f}" y2="{bar:.1f}"/>{text}</svg>'
        f'<p class="note">{caption}.</p>'
    )


def _handler(dashboard: Dashboard) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "Cavity", ""

        def do_GET(self) -> None:
            """The page."""
            if self.headers.get("Host") not in (f"{HOST}:{dashboard.port}", f"localhost:{dashboard.port}"):
                self.send_error(HTTPStatus.FORBIDDEN, "Open the address that the server printed")
                return
            if self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            content = dashboard.page().encode()
            self.send_response(HTTPStatus.OK)
            headers = {
                "Content-Type": "text/html; charset=utf-8",
                "Content-Length": str(len(content)),
                "Content-Security-Policy": POLICY,
                "Cache-Control": "no-store",
                "X-Frame-Options": "DENY",
                "X-Content-Type-Options": "nosniff",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    return Handler
