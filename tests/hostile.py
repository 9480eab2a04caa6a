"""A hostile server with the study's key, which chooses posteriors so as to read single patients.

It sends tight posteriors around theta = s (-t, w). The larger s is, the nearer the slope of the likelihood in a
client's update is to the sum over rows of (y - [w . x > t]) x, so the difference of two updates is the sum of the rows
x between two thresholds, and its first entry counts them. Intervals are halved until one row is left, which is read.
"""

from dataclasses import replace

import numpy as np

from cavity import ledger
from cavity.distributions import FullGaussian
from cavity.network import protocol
from cavity.network.client import site_of
from cavity.network.client_state import ClientStore, SentLog
from cavity.network.protocol import Envelope, Kind, RunConfig, decode, encode
from cavity.network.worker import Worker
from cavity.study import parse_study
from cavity.study.building import study_algorithm, study_scaling
from cavity.study.scaling import ScaledColumn, Scaling
from cavity.study.table import as_table

STUDY = """\
name = "Two sites"
id = "two-1"
clients = ["leeds", "york"]
max_total_rows = 10_000
scaling = "none"

[model]
family = "logistic"
formula = "died ~ age + bmi + sex"

[columns.died]
type = "boolean"

[columns.age]
type = "integer"
range = [18, 95]
scaling = { centre = 55.0, scale = 20.0 }

[columns.bmi]
type = "number"
range = [15, 50]
scaling = { centre = 27.0, scale = 5.0 }

[columns.sex]
type = "boolean"

[run]
rounds = 100
"""
DIRECTION = np.array([1.0, 0.37, 0.11])
EXACT = 0.01  # tolerance for a count of one row between two thresholds


def patients(num_rows=100, seed=0):
    rng = np.random.default_rng(seed)
    age, bmi = rng.integers(18, 95, num_rows), rng.normal(27, 5, num_rows).clip(15, 50).round(1)
    sex = rng.integers(0, 2, num_rows)
    died = rng.random(num_rows) < 1 / (1 + np.exp(1 - (age - 55) / 20 - 0.3 * (bmi - 27) / 5))
    return {"died": died.astype(int), "age": age, "bmi": bmi, "sex": sex}


class HostileServer:
    """Sends messages to one client, signed as by the study's server.

    Args:
        folder: of the client.
        limited: whether the client checks the messages; otherwise it answers all of them.
        text: the study.
    """

    def __init__(self, folder, *, limited=True, text=STUDY):
        self.study, self.columns = parse_study(text), patients()
        self.scaling = study_scaling(self.study)
        self.algorithm = study_algorithm(self.study, self.scaling)
        site = site_of(self.study, "leeds", as_table(self.columns), folder, lambda line: None)
        if not limited:
            config = site.client_config
            unlimited = {"problem_with": lambda message: None, "max_messages": 10**9}
            site = replace(site, client_config=lambda run_config: replace(config(run_config), **unlimited))
        self.worker = Worker(site, ClientStore(folder), SentLog(folder / "sent.jsonl"))
        self.run, self.sequence, self.answered, self.refusals = "run", 0, 0, []

    def ask(self, posterior, entry=None, *, version=0, scaling=None, sequence=None):
        """The client's delta; None if it refuses."""
        self.sequence = self.sequence + 1 if sequence is None else sequence
        server = ledger.open_ledger(self.algorithm, ["leeds"])
        _, (message,) = ledger.dispatch(self.algorithm, server, ["leeds"])
        entry = message.inputs.entry if entry is None else entry
        inputs = replace(message.inputs, posterior=posterior, entry=entry)
        message = replace(message, inputs=inputs, version=version, sequence=self.sequence)
        body = {"message": message, "run_config": RunConfig(scaling or self.scaling), "notice": ""}
        envelope = Envelope(Kind.WORK.value, self.study.hash, self.run, "leeds", body)
        response = decode(self.worker.handle(encode(envelope, protocol.unsigned)), protocol.unverified)
        if response.kind != Kind.REPLY:
            self.refusals.append(response.body.get("reason", response.kind))
            return None
        self.answered += 1
        return response.body["reply"].update.delta

    def slope(self, theta, precision, *, by_entry=False):
        """The slope of the client's log likelihood at theta; None if it refuses.

        `by_entry` hides the tight distribution in the cavity, posterior / entry, with the prior as posterior.
        """
        tight = FullGaussian(precision * theta, precision * np.eye(4))
        prior = ledger.to_host(self.algorithm.prior)
        delta = self.ask(prior, prior / tight) if by_entry else self.ask(tight)
        if delta is None:
            return None
        site = delta * (prior / tight) if by_entry else delta
        return site.precision_mean - site.precision @ theta  # h = H theta + slope

    def read_patients(self, steepness, precision, budget, between=(-3.0, 5.0), **how):
        """The patients between two thresholds that are read exactly, with at most `budget` messages."""
        slopes, found = {}, set()

        def slope(threshold):
            if threshold not in slopes and self.sequence < budget:
                slopes[threshold] = self.slope(steepness * np.r_[-threshold, DIRECTION], precision, **how)
            return slopes.get(threshold)

        intervals = [between]
        while intervals:
            low, high = intervals.pop(0)
            if slope(low) is None or slope(high) is None:
                continue
            rows = slope(high) - slope(low)
            if abs(rows[0] - 1) < EXACT:
                found.add(self._patient(rows / rows[0]))
            elif rows[0] > EXACT and high - low > 1e-4:
                middle = (low + high) / 2
                intervals += [(low, middle), (middle, high)]
        return found & {*zip(*(self.columns[name].tolist() for name in ("age", "bmi", "sex")), strict=True)}

    def _patient(self, x):
        return round(x[1] * 20 + 55), round(x[2] * 5 + 27, 1), round(x[3])

    def tiny_scaling(self):
        """The same centres with scales divided by 1000, so that slopes within the prior are steep."""
        return Scaling(tuple(ScaledColumn(c.name, c.centre, c.scale / 1000) for c in self.scaling.columns))
