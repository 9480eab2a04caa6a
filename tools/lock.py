"""Write constraints.txt: the versions that a fresh resolution of all extras chooses today."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Resolve in a dry run, which installs nothing, and pin every package but Cavity itself."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        venv = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        command = [str(venv / "bin/pip"), "install", "--quiet", "--dry-run", "--report", str(report), f"{ROOT}[dev]"]
        subprocess.run(command, check=True)
        packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = sorted(
        f"{package['name'].lower()}=={package['version']}" for package in packages if package["name"] != "cavity"
    )
    header = "# Written by `make lock`: one set of versions for all extras.\n"
    (ROOT / "constraints.txt").write_text(header + "\n".join(pins) + "\n")
    print(f"{len(pins)} packages pinned")


if __name__ == "__main__":
    main()
