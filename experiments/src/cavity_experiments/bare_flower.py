"""A round trip of plain Flower: its own executors and an app that echoes messages, without Cavity.

Flower starts a new interpreter for every message, and its server app looks for replies every three seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from cavity.errors import CavityError
from cavity.network.flower import LOOPBACK, QUIET, STARTING
from cavity.network.processes import Child, free_port, wait_for_port

PROJECT = """\
[project]
name = "echo"
version = "1.0.0"
description = "Answers what it is asked."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "cavity"
[tool.flwr.app.components]
serverapp = "echo:server"
clientapp = "echo:client"
"""
ECHO = """\
import json, os, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client, server = ClientApp(), ServerApp()

@client.query()
def echo(message, context):
    return Message(message.content, reply_to=message)

@server.main()
def main(grid, context):
    file, rounds, clients = os.environ["ECHO_FILE"], int(os.environ["ECHO_ROUNDS"]), int(os.environ["ECHO_CLIENTS"])
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        record = RecordDict({"echo": ConfigRecord({"content": b"?"})})
        replies = list(grid.send_and_receive([Message(record, node, "query") for node in nodes]))
        assert len(replies) == clients and not any(reply.has_error() for reply in replies)
        seconds.append(time.perf_counter() - began)
    with open(file + ".new", "w") as out:
        json.dump(seconds, out)
    os.replace(file + ".new", file)
"""


def echo_seconds(folder: Path, num_clients: int, num_rounds: int, patience: float = 600.0) -> list[float]:
    """The seconds of each round, in which every client responds once."""
    folder.mkdir(parents=True, exist_ok=True)
    port, found = free_port(), folder / "seconds.json"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # it starts its executors
    environment = QUIET | {"FLWR_HOME": str(folder / "home"), "PATH": path}
    environment |= {"ECHO_FILE": str(found), "ECHO_ROUNDS": str(num_rounds), "ECHO_CLIENTS": str(num_clients)}
    with ExitStack() as ending:
        link = Child(
            ["flower-superlink", "--insecure", "--host", LOOPBACK, "--port", str(port)],
            folder / "link.log",
            environment,
        )
        ending.callback(link.end)
        wait_for_port(link, LOOPBACK, port, STARTING, "Flower's SuperLink")
        for number in range(num_clients):
            command = ["flower-supernode", "--insecure", "--superlink", f"{LOOPBACK}:{port}"]
            command += ["--host", LOOPBACK, "--port", str(free_port())]
            ending.callback(Child(command, folder / f"node{number}.log", environment).end)
        version = RuntimeVersionHttpInterceptor(component_name="cavity")
        control = ControlHttpClient.from_server_address(f"{LOOPBACK}:{port}", True, None, [version])
        ending.callback(control.close)
        bundle, _ = build_fab_from_files({"pyproject.toml": PROJECT.encode(), "echo.py": ECHO.encode()})
        control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", bundle, {}))))
        deadline = time.monotonic() + patience
        while not found.exists():
            if time.monotonic() > deadline or not link.running:
                raise CavityError(f"Flower's own round trips did not come to an end; see the logs in {folder}")
            time.sleep(0.5)
    return json.loads(found.read_text())
