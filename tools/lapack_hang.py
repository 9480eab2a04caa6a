"""Find out whether batched LAPACK calls of the installed JAX hang on a CPU.

    .venv/bin/python tools/lapack_hang.py [--devices 1 2 4 8] [--repetitions 50] [--seconds 30]

JAX 0.10.0 to 0.11.0 split a batched LAPACK call of at least 200,000 operations into tasks for XLA's pool of threads. A
call that itself runs on a thread of the pool waits for those tasks; where every thread waits, no task starts and the
program never ends. Whether that happens depends on timing, so each case is repeated. A child process runs the cases; it
is ended when it has neither reported progress nor used the processor for some time. Prints one line per number of
devices: for each case the seconds that it took, or "HANG". The exit code is 1 if anything hung or failed.

The cases: `vmap` of a decomposition on four independent batches in one program (once, in a loop, and from four
threads), split over the devices; and Cavity's own fits of 2, 16 and 64 clients with a full covariance.
"""

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

SHAPES = ((2, 4), (8, 40), (16, 24), (64, 40))  # matrices in a batch, rows of a matrix
CLIENTS = (2, 16, 64)
IDLE = 5  # ticks of 10 ms that a waiting process may use
FLAG = "--xla_force_host_platform_device_count"


def decompositions() -> dict[str, Callable]:
    """Functions of one positive definite matrix, by name; each calls LAPACK on a CPU."""
    import jax.numpy as jnp
    from jax.scipy.linalg import cho_solve, solve_triangular

    return {
        "cholesky": jnp.linalg.cholesky,
        "cho_solve": lambda a: cho_solve((jnp.linalg.cholesky(a), True), a),
        "triangular": lambda a: solve_triangular(a, a, lower=True),
        "solve": lambda a: jnp.linalg.solve(a, a),
        "inv": jnp.linalg.inv,
        "eigh": lambda a: jnp.linalg.eigh(a)[0],
        "svd": lambda a: jnp.linalg.svd(a)[1],
        "qr": lambda a: jnp.linalg.qr(a)[1],
    }


def progress() -> None:
    """Tell the parent that this process is still at work."""
    print(".", flush=True)


def run_decomposition(decompose: Callable, repetitions: int) -> None:
    """Four independent batched calls at once: in one program, in a loop, and from four threads."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("clients",))
    split = NamedSharding(mesh, PartitionSpec("clients"))
    batched = jax.vmap(decompose)

    @jax.jit
    def once(parts):
        return sum(batched(part).sum() for part in parts)

    @jax.jit
    def loop(parts):
        def body(i, total):
            return total + once([part + i * jnp.eye(part.shape[-1]) for part in parts])

        return jax.lax.fori_loop(0, 5, body, jnp.zeros(()))

    rng = np.random.default_rng(0)
    for batch, size in SHAPES:
        if batch % len(jax.devices()):
            continue
        x = rng.normal(size=(4, batch, size, 2 * size))
        parts = [jax.device_put(np.einsum("bij,bkj->bik", part, part), split) for part in x]
        for _ in range(repetitions):
            once(parts).block_until_ready()
            progress()
        loop(parts).block_until_ready()
        progress()

        def dispatch(parts=parts) -> None:
            for _ in range(repetitions // 4):
                once(parts).block_until_ready()
                progress()

        threads = [threading.Thread(target=dispatch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def run_fits(clients: int, repetitions: int) -> None:
    """Fits of Cavity with a full covariance of 41 coefficients: one for five repetitions, each with other data."""
    import numpy as np

    import cavity

    model = cavity.models.logistic_regression([f"x{i}" for i in range(40)])
    for seed in range(max(1, repetitions // 5)):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(clients, 60, 40))
        y = rng.random((clients, 60)) < 1 / (1 + np.exp(-x[..., 0]))
        fit = cavity.run(cavity.PVI(model), {f"client {i}": (x[i], y[i]) for i in range(clients)})
        fit.summary()
        progress()


def child(cases: list[str], repetitions: int) -> None:
    """Run these cases in this process; print the seconds that each took."""
    import jax

    jax.config.update("jax_enable_x64", True)
    for case in cases:
        began = time.monotonic()
        if case.startswith("fit "):
            run_fits(int(case.split()[1]), repetitions)
        else:
            run_decomposition(decompositions()[case], repetitions)
        print(f"{time.monotonic() - began:.1f} s", flush=True)


def outcomes(cases: list[str], devices: int, repetitions: int, seconds: float) -> Iterator[str]:
    """For each case the seconds that it took, HANG, or FAIL; after these two the next case has a new child process."""
    while cases:
        finished = 0
        with start(cases, devices, repetitions) as process:
            lines: queue.Queue[str] = queue.Queue()
            reader = threading.Thread(target=forward, args=(process.stdout, lines))
            reader.start()
            error = outcome = ""
            while True:
                used = cpu_ticks(process.pid)
                try:
                    line = lines.get(timeout=seconds)
                except queue.Empty:
                    if cpu_ticks(process.pid) > used + IDLE:  # it works, slowly: the machine is busy
                        continue
                    outcome = "HANG"
                    process.kill()
                    break
                if not line:
                    break
                if line.endswith(" s\n"):
                    finished += 1
                    yield line.strip()
                elif "Error" in line:
                    error = line.strip()
            reader.join()
        if not outcome and process.returncode:
            outcome = f"FAIL {process.returncode}"
            print(f"{cases[finished]}, {devices} devices: {error}", file=sys.stderr)
        if outcome:
            finished += 1
            yield outcome
        cases = cases[finished:]


def start(cases: list[str], devices: int, repetitions: int) -> subprocess.Popen[str]:
    """A child process that runs these cases on so many devices."""
    flags = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(FLAG))
    environment = {**os.environ, "XLA_FLAGS": f"{flags} {FLAG}={devices}", "JAX_PLATFORMS": "cpu"}
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
    command = [sys.executable, __file__, "--child", "--repetitions", str(repetitions), "--cases", *cases]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def cpu_ticks(pid: int) -> int:
    """Processor time that a process has used; 0 where the system does not tell, so that silence alone is a hang."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


def forward(stream: IO[str] | None, lines: queue.Queue[str]) -> None:
    """Put the lines of a stream into a queue, and an empty one at its end."""
    for line in stream or ():
        lines.put(line)
    lines.put("")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30, help="longest time without progress")
    parser.add_argument("--cases", nargs="+", help="names of decompositions, or 'fit 16'")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.cases, options.repetitions)

    import jax
    import jaxlib

    print(
        f"Python {sys.version.split()[0]}, jax {jax.__version__}, jaxlib {jaxlib.__version__}, {os.cpu_count()} cores"
    )
    cases = options.cases or [*decompositions(), *(f"fit {count}" for count in CLIENTS)]
    print("devices".ljust(8), *(case.rjust(10) for case in cases), flush=True)
    bad = False
    for devices in options.devices:
        print(str(devices).ljust(8), end="", flush=True)
        for outcome in outcomes(cases, devices, options.repetitions, options.seconds):
            bad |= not outcome.endswith(" s")
            print(outcome.rjust(11), end="", flush=True)
        print(flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
