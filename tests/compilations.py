"""Counts the programs that JAX compiles, by its own events."""

from contextlib import contextmanager

import jax

# recorded for every program, also for one whose compiled form is read from a cache on disk
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@contextmanager
def compilations():
    """The names of the programs that are compiled in the `with` block, in their order."""
    names = []

    def note(event, duration, **details):
        if event == LOWERED:
            names.append(details.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
