"""The report in a real browser: it is laid out, it loads without a network, and it prints."""

import shutil
import subprocess

import pytest

import cavity
from tests.reporting.test_report import frame

pytest.importorskip("matplotlib")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (Debian's package chromium)"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    frames = {"leeds": frame(0, 150), "york": frame(1, 90), "hull": frame(2, 200)}
    cavity.regression("died ~ age + rx", frames).report(folder / "report.html")
    return folder


def browse(folder, *options):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", *options]
    command += [(folder / "report.html").as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_it_prints(folder):
    browse(folder, f"--print-to-pdf={folder / 'report.pdf'}", "--no-pdf-header-footer")
    assert (folder / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (1280, True)])
def test_it_is_drawn(folder, width, dark):
    image = pytest.importorskip("matplotlib.image")
    options = ["--blink-settings=preferredColorScheme=0"] if dark else []
    browse(folder, f"--screenshot={folder / 'shot.png'}", f"--window-size={width},3000", *options)
    pixels = image.imread(folder / "shot.png")[..., :3]
    assert pixels.shape[1] >= width
    background = pixels[5, 5]
    assert (background.mean() < 0.2) if dark else (background.mean() > 0.95)
    blue = (pixels[..., 2] > 0.6) & (pixels[..., 0] < 0.2)  # the marks of the forest plot
    assert blue.sum() > 100
    text = pixels.mean(axis=-1)
    assert ((text > 0.7) if dark else (text < 0.3)).sum() > 5_000


def test_no_part_is_wider_than_a_narrow_screen(folder):
    page = (
        (folder / "report.html")
        .read_text()
        .replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    )
    probe = "<script>document.title = document.documentElement.scrollWidth + ' ' + innerWidth</script></body>"
    (folder / "report.html").write_text(page.replace("</body>", probe))
    dom = browse(folder, "--dump-dom", "--window-size=500,900").stdout
    scroll, inner = map(int, dom.split("<title>")[1].split("</title>")[0].split())
    assert scroll <= inner
