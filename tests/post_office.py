"""A post in this process for the tests of the network: it loses, repeats, delays, re-orders and garbles, by a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from cavity.network.transport import Delivery, PostLost, Transport


@dataclass
class Faults:
    """The probability of each per letter, or per look."""

    drop: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0
    garble: float = 0.0
    lost: float = 0.0
    client_crash: float = 0.0
    absent: float = 0.0


@dataclass
class PostOffice(Transport):
    """Letters by name.

    Attributes:
        workers: address -> what answers; made anew by `restart` when a client crashes.
        restart: name -> a new worker with nothing but its disk.
        faults: their probabilities.
        seed: of the faults.
        knows: whether addresses are known to be the clients'.
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
        self._under_way, self._numbers, self._answered = [], 0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0.05)

    def reachable(self):
        self._happens("lost", PostLost("lost on purpose"))
        here = [name for name in self.workers if not self._happens("absent")]
        return {name: name if self.knows else None for name in here}

    def send(self, envelopes, seconds):
        sent = {}
        for address, content in envelopes.items():
            self._numbers += 1
            sent[address] = str(self._numbers)
            if not self._happens("drop"):
                due = self.now + (self.random.uniform(0, 2 * seconds) if self._happens("delay") else 0.1)
                self._under_way.append((due, sent[address], address, content))
        return sent

    def fetch(self, envelopes):
        self._happens("lost", PostLost("lost on purpose"))
        due = [envelope for envelope in self._under_way if envelope[0] <= self.now]
        self._under_way = [envelope for envelope in self._under_way if envelope[0] > self.now]
        self.random.shuffle(due)
        for envelope in due:
            self._deliver(envelope)
        envelopes = set(envelopes)
        wanted = [delivery for delivery in self._answered if delivery.envelope in envelopes]
        self._answered = [d for d in self._answered if d.envelope not in envelopes or self._happens("repeat")]
        return wanted

    def _deliver(self, envelope):
        _, number, address, content = envelope
        if self._happens("client_crash"):  # before it has done anything
            self.workers[address] = self.restart(address)
            return
        update = self.workers[address](content)
        if self._happens("repeat"):  # the same letter comes again, and the second answer is the one that arrives
            update = self.workers[address](content)
        if self._happens("client_crash"):  # after it has written, before it has sent
            self.workers[address] = self.restart(address)
            return
        if self._happens("garble"):
            place = self.random.randrange(len(update))
            update = update[:place] + bytes([update[place] ^ 0xFF]) + update[place + 1 :]
        if not self._happens("drop"):
            self._answered.append(Delivery(number, update))

    def _happens(self, what, error=None):
        happens = self.random.random() < getattr(self.faults, what)
        self.seen[what] = self.seen.get(what, 0) + happens
        if happens and error is not None:
            self._under_way, self._answered = [], []
            raise error
        return happens
