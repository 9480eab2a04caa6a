"""Run the tutorials of docs/tutorials, and compare what they print with the output in their text.

A tutorial is a MyST notebook: Markdown with code cells. The output of a cell is the block of text after it, so that the
page is complete without being run, here and on GitHub. A line `...` in it stands for any lines. Numbers may differ by
two in the last digit that is shown, since machines round differently. `--write` replaces the output in the text, except
where it has such a line.

Each tutorial runs in a process and a folder of its own. Files that it writes and whose names stand in a link
`pictures/NAME` are copied to docs/tutorials/pictures by `--write`.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "docs" / "tutorials"
CELL = re.compile(r"```\{code-cell\} ipython3\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", re.IGNORECASE)
# Their programs are small: most take longer to compile well than to run (as in conftest.py).
QUICK = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
PICTURE = re.compile(r"\]\(pictures/([\w.-]+)\)")


@dataclass(frozen=True)
class Cell:
    """A code cell and the output that the text shows for it; empty if it shows none."""

    code: str
    output: str


def tutorials() -> list[Path]:
    """All notebooks among the pages."""
    return sorted(path for path in TUTORIALS.glob("*.md") if "file_format: mystnb" in path.read_text()[:200])


def cells(text: str) -> list[Cell]:
    """The code cells of a notebook."""
    return [Cell(match["code"], match["output"] or "") for match in CELL.finditer(text)]


def run_cells(codes: list[str]) -> list[str]:
    """Run cells in order as a notebook does, in this process; the printed text of each. Raises at the first error."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    printed = []
    for code in codes:
        with capture_output(stderr=False, display=False) as captured:
            result = shell.run_cell(code)
        if not result.success:
            print(captured.stdout, file=sys.stderr)
        result.raise_error()
        printed.append("".join(line.rstrip() + "\n" for line in captured.stdout.strip("\n").splitlines()))
    return printed


def run(path: Path, folder: Path) -> tuple[list[str], float, float]:
    """Run a notebook in a process of its own: the outputs, and its seconds of CPU and of time."""
    text = path.read_text()
    job, outputs = folder / "cells.json", folder / "outputs.json"
    job.write_text(json.dumps([cell.code for cell in cells(text)]))
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    settings = {"PATH": os.pathsep.join(places), "MPLBACKEND": "agg", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **QUICK, **settings}
    command = [sys.executable, __file__, "--cells", str(job), str(outputs)]
    process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
    try:
        if process.wait() != 0:
            raise RuntimeError(f"{path.name} failed; the traceback is above")
    finally:  # also what its cells have started
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return json.loads(outputs.read_text()), cpu, time.perf_counter() - start


def differs(shown: str, printed: str) -> str | None:
    """The first line of the text that the output does not have; None where they agree."""
    lines = printed.splitlines()
    position, anywhere = 0, False
    for line in shown.splitlines():
        if line.strip() == "...":
            anywhere = True
            continue
        places = range(position, len(lines)) if anywhere else range(position, min(position + 1, len(lines)))
        found = next((place for place in places if same(line, lines[place])), None)
        if found is None:
            return line
        position, anywhere = found + 1, False
    return None if anywhere or position == len(lines) else f"(nothing, but printed was) {lines[position]}"


def same(shown: str, printed: str) -> bool:
    """Whether two lines agree but for white space and two units of the last digit of each number."""
    numbers, others = NUMBER.findall(shown), NUMBER.findall(printed)
    if " ".join(NUMBER.sub("#", shown).split()) != " ".join(NUMBER.sub("#", printed).split()):
        return False
    return len(numbers) == len(others) and all(map(_close, numbers, others))


def _close(shown: str, printed: str) -> bool:
    mantissa, _, exponent = shown.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals)
    exact = decimals == 0 and not exponent
    return float(shown) == float(printed) if exact else abs(float(shown) - float(printed)) <= 2.001 * unit


def with_outputs(text: str, printed: list[str]) -> str:
    """The text of a notebook with these outputs, except where its own has a line `...`."""
    outputs = iter(printed)

    def cell(match: re.Match[str]) -> str:
        new = next(outputs)
        if re.search(r"^\.\.\.$", match["output"] or "", re.MULTILINE):
            return match[0]
        return f"```{{code-cell}} ipython3\n{match['code']}```\n" + (f"\n```text\n{new}```\n" if new else "")

    return CELL.sub(cell, text)


def check(path: Path, write: bool) -> bool:
    """Run one notebook and say whether its output is that of the text, or write it there."""
    with tempfile.TemporaryDirectory() as name:
        printed, cpu, seconds = run(path, Path(name))
        text = path.read_text()
        if write:
            path.write_text(with_outputs(text, printed))
            for picture in PICTURE.findall(text):
                if (Path(name) / picture).exists():
                    (TUTORIALS / "pictures").mkdir(exist_ok=True)
                    shutil.copy(Path(name) / picture, TUTORIALS / "pictures" / picture)
    wrong = [differs(cell.output, new) for cell, new in zip(cells(path.read_text()), printed, strict=True)]
    wrong = [line for line in wrong if line is not None]
    print(f"{path.stem}: {cpu:.0f} s of CPU, {seconds:.0f} s", *(f"\n  not printed: {line}" for line in wrong))
    return not wrong


def main() -> None:
    """Check the named tutorials, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="tutorials, without .md; all by default")
    parser.add_argument("--write", action="store_true", help="write the outputs into the text")
    parser.add_argument("--cells", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cells:
        job, outputs = options.cells
        outputs.write_text(json.dumps(run_cells(json.loads(job.read_text()))))
        return
    chosen = [path for path in tutorials() if not options.names or path.stem in options.names]
    agree = [check(path, options.write) for path in chosen]
    if not all(agree):
        sys.exit(1)


if __name__ == "__main__":
    main()
