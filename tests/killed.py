"""The command `cavity`, which ends itself by `kill -9` at a moment that nobody could hit from outside.

    python killed.py MOMENT COUNT server study.toml ...

kills after COUNT times of `computed` (a client has its reply, and has written what belongs to it, but has not sent it),
`received` (the server has taken replies into its ledger, but has not written it down) or `noted` (the server has
written down the messages that it is about to send).
"""

import os
import signal
import sys

from cavity import ledger
from cavity.cli.main import main
from cavity.io.checkpoints import RunDirectory
from cavity.network.worker import Worker

MOMENTS = {"computed": (Worker, "_answered"), "received": (ledger, "receive"), "noted": (RunDirectory, "write")}


def kill_after(owner, name, count):
    function, calls = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    moment, count = sys.argv[1:3]
    kill_after(*MOMENTS[moment], int(count))
    sys.argv = ["cavity", *sys.argv[3:]]
    main()
