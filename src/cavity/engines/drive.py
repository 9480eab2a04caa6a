"""How a solver is run: here as one compiled loop, which is what small models want."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from cavity.interfaces import Algorithm, Data, Solver
from cavity.state import Answer, Brief


def solve(solver: Solver, key: PRNGKeyArray, problem: Any) -> Any:
    """init, step until done, result. Step i has its own key, so a solve does not depend on who runs beside it."""
    state = solver.init(problem)

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, state = carry
        return i + 1, solver.step(jax.random.fold_in(key, i), problem, state)

    _, state = jax.lax.while_loop(lambda carry: ~solver.done(carry[1]), step, (jnp.uint32(0), state))
    return solver.result(problem, state)


def client_half(
    algorithm: Algorithm, key: PRNGKeyArray, brief: Brief, local: PyTree, data: Data
) -> tuple[Answer, PyTree]:
    """All that a client does with one message: a pure function of what it is told and what it holds."""
    problem = algorithm.problem(brief, local, data)
    solution = solve(algorithm.solver, key, problem)
    # an answer may hold plain numbers too (a NaN for what a method does not define)
    return jax.tree.map(jnp.asarray, algorithm.answer(brief, local, problem, solution))
