"""Write requirements.lock: one version of every package, for all extras and the build, with the hashes of its files.

The hashes are those of all wheels and source archives of a version, so that one file fits every platform and every
Python that Cavity supports. uv resolves, which Flower installs; the file names no index.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HEADER = "# Written by `make lock`. Install with: pip install --require-hashes -r requirements.lock\n"


def main() -> None:
    """Resolve all versions again; options are passed on to uv, for instance `--constraint FILE`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = project["project"]["requires-python"].removeprefix(">=")
    with tempfile.TemporaryDirectory() as folder:
        build, found = Path(folder) / "build.in", Path(folder) / "found.txt"
        build.write_text("\n".join(project["build-system"]["requires"]))
        command = [Path(sys.executable).with_name("uv"), "pip", "compile", "pyproject.toml", build, "--extra", "dev"]
        command += ["--universal", "--python-version", oldest, "--generate-hashes", "--quiet"]
        command += ["--no-annotate", "--no-header", "--output-file", found, *sys.argv[1:]]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "UV_NO_CONFIG": "1"})
        text = found.read_text()
    if "://" in text:
        sys.exit("the lock would name an address; nothing was written")
    LOCK.write_text(HEADER + text)
    print(f"{sum(not line.startswith((' ', '#')) for line in text.splitlines())} packages pinned")


if __name__ == "__main__":
    main()
