"""Studies over Flower on this machine: all sides as processes with their own folders, or all but Flower in one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from cavity.network import keys as key_files
from cavity.network.flower import LOOPBACK, ServerSide
from cavity.network.flower_node import ClientSide
from cavity.network.processes import free_port
from cavity.network.server import ServerConfig
from cavity.study import parse_study
from cavity.study.run import run_study
from cavity.study.table import as_table
from cavity_experiments.loopback import Loopback
from tests.studies import FEDERATED, kl, patients, write_csv

NAMES = ("leeds", "york", "hull", "bath")
OUTSIDE = "127.0.0.2" if sys.platform == "linux" else LOOPBACK  # the address for clients; the SuperLink is at .1
CAVITY = str(Path(sys.executable).with_name("cavity"))


def study_text(num_clients, extra="", text=FEDERATED):
    names = ", ".join(f'"{name}"' for name in NAMES[:num_clients])
    return text.replace('["leeds", "york"]', f"[{names}]") + extra


class Rig:
    """Flower's SuperLink and a SuperNode per client, with TLS and keys; server and clients are threads of this process.

    Attributes:
        workers: client -> what responds to its messages; each study puts its workers here.
    """

    def __init__(self, folder):
        self.keys, self.workers = folder / "keys", dict.fromkeys(NAMES, bytes)
        key_files.make_keys(parse_study(study_text(4)), self.keys, [OUTSIDE])
        self.port, own = free_port(), self.keys / "server"
        public = key_files.client_public_keys(own, parse_study(study_text(4)))
        server = ServerSide(
            OUTSIDE,
            self.port,
            folder / "flower",
            own / key_files.CERTIFICATE,
            own / key_files.KEY,
            own / key_files.AUTHORITY,
            public,
        )
        clients = {
            name: ClientSide(
                f"{OUTSIDE}:{self.port}", folder / name, home / key_files.CLIENT_KEY, home / key_files.AUTHORITY
            )
            for name, home in ((name, self.keys / "clients" / name) for name in NAMES)
        }
        self.verify = {name: key_files.client_verifier(key) for name, key in public.items()}
        self.loopback = Loopback(server, clients, self.workers)

    def config(self, **parts):
        return ServerConfig(
            report=False,
            round_timeout=60.0,
            sign=key_files.server_signer(self.keys / "server"),
            verify=self.verify,
            **parts,
        )

    def signatures(self, name):
        """How a client signs, and how it checks signatures."""
        folder = self.keys / "clients" / name
        return {"sign": key_files.client_signer(folder), "verify": key_files.server_verifier(folder)}


class Network:
    """A study in folders that share nothing but a port; all processes end with the `with` block."""

    def __init__(self, folder, text):
        self.folder, self.text, self.study, self.port = folder, text, parse_study(text), free_port()
        self.tables = {name: patients(60 + 10 * i, i) for i, name in enumerate(self.study.clients)}
        self.processes = {}
        keys = folder / "keys"
        key_files.make_keys(self.study, keys, [LOOPBACK])
        for name, columns in self.tables.items():
            (folder / name).mkdir()
            (folder / name / "study.toml").write_text(text)
            write_csv(folder / name / "mine.csv", columns)
            os.rename(keys / "clients" / name, folder / name / "keys")
        (folder / "server").mkdir()
        (folder / "server" / "study.toml").write_text(text)
        os.rename(keys / "server", folder / "server" / "keys")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def start(self, who, *options, keys="keys", program=(CAVITY,)):
        """Start the server or a client; a client may have a second name after a slash."""
        home = self.folder / (who if who == "server" else who.split("/")[0])
        if who == "server":
            command = ["server", "study.toml", "--keys", keys, "--host", LOOPBACK, "--port", str(self.port)]
            command += ["--output", "run"]
        else:
            command = ["client", "study.toml", "--name", who.split("/")[0], "--data", "mine.csv", "--keys", keys]
            command += ["--server", f"{LOOPBACK}:{self.port}", "--output", "site"]
        with open(self.folder / f"{who.replace('/', '-')}.out", "a") as output:
            self.processes[who] = subprocess.Popen(
                [*program, *command, *options], cwd=home, stdout=output, stderr=subprocess.STDOUT
            )

    def start_all(self, *options):
        for who in ("server", *self.study.clients):
            self.start(who, *options)

    def kill(self, who):
        self.processes[who].kill()
        self.processes[who].wait()

    def output(self, who="server"):
        file = self.folder / f"{who.replace('/', '-')}.out"
        return file.read_text() if file.exists() else ""

    def wait_for(self, text, who="server", seconds=240.0, times=1):
        """Wait until a text is in the output of a process so many times."""
        deadline = time.monotonic() + seconds
        while self.output(who).count(text) < times:
            ended = self.processes[who].poll()
            if (ended is not None and self.output(who).count(text) < times) or time.monotonic() > deadline:
                raise AssertionError(f"{who} did not print {text!r}; its output:\n{self.output(who)[-3000:]}")
            time.sleep(0.2)

    def superlink(self):
        """The process id of the server's SuperLink."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.processes["server"].pid), "-f", "flower-superlink"],
            capture_output=True,
            text=True,
            check=True,
        )
        (number,) = found.stdout.split()
        return int(number)

    def posterior(self, file="server/run/posterior.npz"):
        return dict(np.load(self.folder / file))

    def kl(self):
        """The KL to the posterior of a run in one process."""
        tables = {name: as_table(self.tables[name]) for name in self.study.clients}
        found = self.posterior()
        return kl(found["mean"], found["covariance"], run_study(self.study, tables).reported)
