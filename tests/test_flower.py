"""Real processes on this machine: Flower between them, TLS and keys, kills; each process is ended by the test."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cavity.engines.processes import free_port
from cavity.study import parse_study
from cavity.study.keys import make_keys
from cavity.study.running import run_study
from cavity.study.table import as_table
from tests.studies import FEDERATED, patients, write_csv

pytest.importorskip("flwr")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(560)]

CAVITY = str(Path(sys.executable).with_name("cavity"))
NAMES = ("leeds", "york", "hull", "bath")


def study_text(num_clients, extra=""):
    names = ", ".join(f'"{name}"' for name in NAMES[:num_clients])
    return FEDERATED.replace('["leeds", "york"]', f"[{names}]") + extra


class Network:
    """A study in folders that share nothing but a port."""

    def __init__(self, folder, text):
        self.folder, self.text, self.study, self.port = folder, text, parse_study(text), free_port()
        self.tables = {name: patients(60 + 10 * i, i) for i, name in enumerate(self.study.clients)}
        self.processes = {}
        keys = folder / "keys"
        make_keys(self.study, keys, ["127.0.0.1"])
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

    def start(self, who, *words, keys="keys"):
        home = self.folder / (who if who == "server" else who.split("/")[0])
        if who == "server":
            command = ["server", "study.toml", "--keys", keys, "--host", "127.0.0.1", "--port", str(self.port)]
            command += ["--output", "run"]
        else:
            command = ["client", "study.toml", "--name", who.split("/")[0], "--data", "mine.csv", "--keys", keys]
            command += ["--server", f"127.0.0.1:{self.port}", "--output", "site"]
        with open(self.folder / f"{who.replace('/', '-')}.out", "a") as output:
            self.processes[who] = subprocess.Popen(
                [CAVITY, *command, *words], cwd=home, stdout=output, stderr=subprocess.STDOUT
            )

    def start_all(self, *words):
        for who in ("server", *self.study.clients):
            self.start(who, *words)

    def kill(self, who):
        self.processes[who].kill()
        self.processes[who].wait()

    def said(self, who="server"):
        file = self.folder / f"{who}.out"
        return file.read_text() if file.exists() else ""

    def wait_for(self, words, who="server", seconds=240.0, times=1):
        deadline = time.monotonic() + seconds
        while self.said(who).count(words) < times:
            ended = self.processes[who].poll()
            if (ended is not None and self.said(who).count(words) < times) or time.monotonic() > deadline:
                raise AssertionError(f"{who} did not say {words!r}; it said:\n{self.said(who)[-3000:]}")
            time.sleep(0.2)

    def superlink(self):
        """The process number of the server's SuperLink."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.processes["server"].pid)], capture_output=True, text=True, check=True
        )
        (number,) = found.stdout.split()
        return int(number)

    def posterior(self, file="server/run/posterior.npz"):
        return dict(np.load(self.folder / file))

    def gap(self):
        """From the run in one process: of the means in posterior sd, and KL(network : one process)."""
        tables = {name: as_table(columns) for name, columns in self.tables.items()}
        reference = run_study(self.study, tables).reported
        mean, covariance = np.asarray(reference.mean), np.asarray(reference.covariance)
        found = self.posterior()
        difference, sd = found["mean"] - mean, np.sqrt(np.diag(covariance))
        ratio = np.linalg.solve(covariance, found["covariance"])
        kl = 0.5 * (
            np.trace(ratio)
            - len(mean)
            - np.linalg.slogdet(ratio)[1]
            + difference @ np.linalg.solve(covariance, difference)
        )
        return np.max(np.abs(difference) / sd), kl


METHODS = {
    "pvi": "",
    "fedgvi": '[algorithm]\nmethod = "fedgvi"\nloss = { beta = 0.2 }\n',
    "sequential": "",
    "sampled": "",
}
RUNS = {
    "sequential": 'schedule = "sequential"\nrounds = 3\n',
    "sampled": "schedule = { sampled-count = 1 }\nrounds = 6\n",
}


@pytest.mark.parametrize(("method", "num_clients"), [("pvi", 4), ("fedgvi", 2), ("sequential", 2), ("sampled", 2)])
def test_the_same_posterior_as_in_one_process(tmp_path, method, num_clients):
    run = "[run]\n" + RUNS.get(method, "rounds = 4\n")
    with Network(tmp_path, study_text(num_clients, METHODS[method] + run)) as network:
        network.start_all()
        network.wait_for("Results:")
        assert network.gap()[0] < 1e-6
        for name in network.study.clients:
            network.wait_for("Results:", name)
            copy = network.posterior(f"{name}/site/results/posterior.npz")
            assert (copy["mean"] == network.posterior()["mean"]).all()


def test_an_asynchronous_run_comes_to_the_same_end(tmp_path):
    run = '[algorithm]\ndamping = { fixed = 0.7 }\n[run]\nschedule = "asynchronous"\ntolerance = 1e-12\n'
    with Network(tmp_path, study_text(2, run)) as network:
        network.start_all()
        network.wait_for("Results:", seconds=400)
        assert network.gap()[1] < 1e-8


def test_whoever_is_killed(tmp_path):
    """A client in a round, its disk wiped; Flower's SuperLink; the server. Nothing counts twice, nothing is lost."""
    with Network(tmp_path, study_text(2, "[run]\ntolerance = 1e-20\nrounds = 60\n")) as network:
        network.start_all()
        network.wait_for("round 2,")
        network.kill("york")
        subprocess.run(["rm", "-rf", str(tmp_path / "york" / "site")], check=True)
        network.start("york")
        network.wait_for("round 3,")
        os.kill(network.superlink(), signal.SIGKILL)
        network.wait_for("starting it again")
        network.wait_for("round 5,")
        network.kill("server")
        network.start("server")
        network.wait_for("going on after round")
        network.wait_for("Results:", seconds=400)
        assert network.gap()[1] < 1e-8
        network.wait_for("Results:", "york")


def test_strangers_are_kept_out(tmp_path):
    """A key that nobody registered, and a server whose certificate another authority has signed."""
    with Network(tmp_path, study_text(2, "[run]\nrounds = 5\n")) as network:
        make_keys(network.study, tmp_path / "others", ["127.0.0.1"])
        theirs = tmp_path / "others" / "clients" / "york"
        mixed = tmp_path / "mixed"
        mixed.mkdir()
        for file in ("ca.pem", "server.pem"):
            (mixed / file).write_bytes((tmp_path / "york" / "keys" / file).read_bytes())
        (mixed / "client.key").write_bytes((theirs / "client.key").read_bytes())
        network.start("server")
        network.start("york/unregistered", "--output", "unregistered", keys=str(mixed))
        network.start("york/authority", "--output", "authority", keys=str(theirs))
        network.start("leeds")
        network.wait_for("leeds is connected")
        time.sleep(20)  # enough to connect, if they could
        assert "york is connected" not in network.said()
        network.start("york")
        network.wait_for("Results:")
        assert network.gap()[0] < 1e-5
        for who in ("unregistered", "authority"):
            assert not (tmp_path / "york" / who / "sent.jsonl").exists()
            assert network.processes[f"york/{who}"].poll() is None


def test_without_keys_on_this_machine(tmp_path):
    """And there a second client of one name is refused."""
    with Network(tmp_path, study_text(2, "[run]\nrounds = 5\n")) as network:
        network.start("server", "--insecure")
        network.start("leeds", "--insecure")
        network.wait_for("leeds is connected")
        network.start("leeds/second", "--insecure", "--output", "second")
        assert network.processes["leeds/second"].wait(60) == 2
        assert "a second one is refused" in network.said("leeds-second")
        network.start("york", "--insecure")
        network.wait_for("Results:")
        assert network.gap()[0] < 1e-5


def test_withdrawn_and_joined_while_it_runs(tmp_path):
    """One is forgotten and one comes late: the posterior is that of a study with those who are left."""
    run = "[algorithm]\ndamping = { fixed = 0.5 }\n[run]\ntolerance = 1e-12\n"
    text = study_text(3, run).replace('scaling = "federated"\n', "")
    with Network(tmp_path, text) as network:
        for who in ("leeds", "york"):
            network.start(who)
        network.start("server", "--min-clients", "2")
        network.wait_for("round 1,")
        network.start("hull")
        network.wait_for("hull has joined")
        request = [CAVITY, "withdraw", "york", "study.toml", "--output", "run"]
        subprocess.run(request, cwd=tmp_path / "server", check=True)
        network.wait_for("york is withdrawn")
        network.wait_for("Results:", seconds=300)
        del network.tables["york"]
        network.study = replace(network.study, clients=("leeds", "hull"))
        assert network.gap()[1] < 1e-6
