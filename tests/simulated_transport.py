"""A simulated transport within one process: it loses, repeats, delays, reorders and damages messages, by a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cavity.network.transport import Delivery, Transport, TransportLost


@dataclass
class Faults:
    """The probability of each fault, per message or per call."""

    drop: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    damage: float = 0.0
    lost: float = 0.0
    client_crash: float = 0.0
    absent: float = 0.0


@dataclass
class SimulatedTransport(Transport):
    """A transport whose addresses are the names of clients.

    Attributes:
        workers: address -> what responds; replaced by `restart` when a client crashes.
        restart: name -> a new worker, which has the client's disk only.
        faults: the probabilities of faults.
        seed: of the faults.
        knows: whether the client of each address is known.
        now: the simulated time in seconds.
        seen: how often each fault has happened.
    """

    workers: dict[str, Callable[[bytes], bytes]]
    restart: Callable[[str], Callable[[bytes], bytes]] | None = None
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    knows: bool = True
    now: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self._under_way, self._numbers, self._responses = [], 0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0.05)

    def reachable(self):
        self._happens("lost", TransportLost("lost on purpose"))
        present = [name for name in self.workers if not self._happens("absent")]
        return {name: name if self.knows else None for name in present}

    def send(self, messages, seconds):
        sent = {}
        for address, content in messages.items():
            self._numbers += 1
            sent[address] = str(self._numbers)
            if not self._happens("drop"):
                due = self.now + (self.random.uniform(0, 2 * seconds) if self._happens("delay") else 0.1)
                self._under_way.append((due, sent[address], address, content))
        return sent

    def fetch(self, numbers):
        self._happens("lost", TransportLost("lost on purpose"))
        due = [message for message in self._under_way if message[0] <= self.now]
        self._under_way = [message for message in self._under_way if message[0] > self.now]
        self.random.shuffle(due)
        for message in due:
            self._deliver(message)
        numbers = set(numbers)
        wanted = [delivery for delivery in self._responses if delivery.number in numbers]
        self._responses = [d for d in self._responses if d.number not in numbers or self._happens("repeat")]
        return wanted

    def _deliver(self, message):
        _, number, address, content = message
        if self._happens("client_crash"):  # before it has computed anything
            self.workers[address] = self.restart(address)
            return
        response = self.workers[address](content)
        if self._happens("repeat"):  # the message arrives twice, and the second response is the one that is returned
            response = self.workers[address](content)
        if self._happens("client_crash"):  # after it has written, before it has sent
            self.workers[address] = self.restart(address)
            return
        if self._happens("damage"):
            place = self.random.randrange(len(response))
            response = response[:place] + bytes([response[place] ^ 0xFF]) + response[place + 1 :]
        if not self._happens("drop"):
            self._responses.append(Delivery(number, response))

    def _happens(self, what, error=None):
        happens = self.random.random() < getattr(self.faults, what)
        self.seen[what] = self.seen.get(what, 0) + happens
        if happens and error is not None:
            self._under_way, self._responses = [], []
            raise error
        return happens
