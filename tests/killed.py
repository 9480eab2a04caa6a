"""The command `cavity`, which kills itself (`kill -9`) at a moment that cannot be hit from outside.

    python killed.py MOMENT COUNT server study.toml ...

kills at the COUNT-th time of `computed` (a client has its reply, and has written what belongs to it, but has not sent
it), `received` (the server has absorbed replies in its ledger, but has not written it) or `noted` (the server has
written the messages that it is about to send).
"""

import os
import signal
import sys

from cavity import ledger
from cavity.cli.main import main
from cavity.io.checkpoints import RunDirectory
from cavity.network.client_state import SentLog
from cavity.network.protocol import Kind

MOMENTS = {"computed": (SentLog, "note"), "received": (ledger, "receive"), "noted": (RunDirectory, "write")}


def kill_after(owner, name, count):
    """Kill this process after the `count`-th call; of messages that a client sends, replies count."""
    function, calls = getattr(owner, name), []

    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        if owner is not SentLog or args[1] == Kind.REPLY.value:
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
