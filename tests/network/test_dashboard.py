"""The page about a running study: what it shows, and that other requests and other hosts are refused."""

import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from cavity.errors import CavityError
from cavity.network.dashboard import Dashboard, estimated_end
from cavity.study import parse_study
from tests.network.test_protocol import STUDY, SimulatedStudy

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def dashboard(tmp_path):
    (tmp_path / "server.log").write_text("12:00 <script>alert(1)</script>\n")
    found = Dashboard(parse_study(STUDY), tmp_path, tmp_path / "server.log")
    yield found
    found.close()


def get(dashboard, path="/", **headers):
    request = urllib.request.Request(dashboard.address.rstrip("/") + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return response.read().decode(), response.headers


def test_before_the_first_round(dashboard):
    page, headers = get(dashboard)
    assert "No round is complete yet." in page
    assert "not connected" in page
    assert "<script>" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_it_listens_on_the_loopback_address_only(dashboard):
    assert dashboard.address.startswith("http://127.0.0.1:")
    with pytest.raises(CavityError, match="give another with --dashboard-port"):
        Dashboard(parse_study(STUDY), dashboard._directory, dashboard._log, dashboard.port)


@pytest.mark.parametrize(
    ("path", "headers", "code"),
    [("/../../etc/passwd", {}, 404), ("/server.log", {}, 404), ("/", {"Host": "evil.example"}, 403)],
)
def test_other_requests_are_refused(dashboard, path, headers, code):
    with pytest.raises(urllib.error.HTTPError) as error:
        get(dashboard, path, **headers)
    error.value.close()
    assert error.value.code == code


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_is_read_only(dashboard, method):
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=10) as connection:
        connection.sendall(f"{method} / HTTP/1.0\r\nHost: 127.0.0.1:{dashboard.port}\r\n\r\n".encode())
        assert b" 501 " in connection.recv(1000)


def record(number, gap):
    return {"round": number, "gap": gap, "seconds": 2.0 * number}


def test_the_estimated_end():
    history = [record(1, 1.0), record(2, 1e-1), record(3, 1e-2)]
    assert estimated_end(history, 1e-5) == "Round 3; about 3 more, 6 seconds."
    assert "too early" in estimated_end(history[:2], 1e-5)
    assert "too early" in estimated_end([*history, record(4, 5.0)], 1e-5)
    assert "below the tolerance" in estimated_end(history, 0.1)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian's package chromium)")
def test_a_study_in_a_browser(tmp_path):
    (tmp_path / "run").mkdir()
    found = Dashboard(parse_study(STUDY), tmp_path / "run", tmp_path / "run" / "server.log")
    try:
        SimulatedStudy(tmp_path, STUDY, watch=found.watch).run()
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        command += ["--dump-dom", found.address]
        page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    finally:
        found.close()
    assert page.count("<polyline") >= 3
    assert "below the tolerance" in page
    for name in parse_study(STUDY).clients:
        assert name in page
    assert "intercept" in page
