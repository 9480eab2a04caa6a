"""How the clients' halves are run: one driver, two ways, because they differ by a factor of ten on a CPU.

A small model (a regression) is one compiled loop, since starting a program for every step would dominate. A large one
(a network) is a sequence of compiled steps that the host starts without waiting, each in the memory of the one before
it, since inside a compiled loop element-wise work and random numbers run on one thread.

Both run all clients of a stack at once, by `vmap`, and on several devices each runs its share by itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from cavity.core import Algorithm, Data, Encoding, Problem, Solver
from cavity.core.messages import ClientInput, ClientUpdate, Message
from cavity.simulation.stacks import AXIS

A = TypeVar("A", bound=Algorithm)
Shared = tuple[Algorithm, ClientInput | None]  # what is the same for all clients of a stack
Static = tuple[Any, tuple[Any, ...]]  # the structure of a tree without its arrays, and what is left of it
LARGE = 20_000  # numbers in a posterior from which on steps are dispatched one by one
LOOK_EVERY = 25  # dispatched steps between two looks at whether all clients are done


class Work(eqx.Module):
    """What the halves of some clients need, stacked: their keys, what they are told, what they keep and hold.

    What all of them are told (a posterior may have millions of numbers) is in `common`, once, and `briefs` holds their
    rows only. Without `common`, where they answer different versions, all of it is in `briefs`.
    """

    keys: Key[Array, " clients"]
    inputs: ClientInput
    local: PyTree
    data: Data
    common: ClientInput | None = None


def told(common: ClientInput | None, own: ClientInput) -> ClientInput:
    """All that one client is told: what everybody is, with its own row."""
    return own if common is None else replace(common, entry=own.entry)


def solve(solver: Solver, key: PRNGKeyArray, problem: Any) -> Any:
    """init, step until done, result. Step i has its own key, so a solve does not depend on who runs beside it."""
    state = solver.init(problem)
    if solver.unrolled is not None:  # a loop would only be in the compiler's way
        for i in range(solver.unrolled):
            state = solver.step(jax.random.fold_in(key, jnp.uint32(i)), problem, state)
        return solver.result(problem, state)

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, state = carry
        return i + 1, solver.step(jax.random.fold_in(key, i), problem, state)

    _, state = jax.lax.while_loop(lambda carry: ~solver.done(carry[1]), step, (jnp.uint32(0), state))
    return solver.result(problem, state)


def client_half(
    algorithm: Algorithm, key: PRNGKeyArray, inputs: ClientInput, local: PyTree, data: Data
) -> tuple[ClientUpdate, PyTree]:
    """All that a client does with one message: a pure function of what it is told and what it holds."""
    problem = algorithm.problem(inputs, local, data)
    solution = solve(algorithm.solver, key, problem)
    return _arrays(algorithm.update(inputs, local, problem, solution))


def _arrays(update: PyTree) -> PyTree:
    """An answer may hold plain numbers too (a NaN for what a method does not define)."""
    return jax.tree.map(jnp.asarray, update)


def each_client(function: Callable[..., PyTree], mesh: Mesh | None, shared: PyTree, *stacked: PyTree) -> PyTree:
    """`function(shared, *one client's)` for every client of the stacks; split over the devices of `mesh`, if any."""
    if mesh is None:
        return eqx.filter_vmap(function, in_axes=(None, *[0] * len(stacked)))(shared, *stacked)
    arrays, static = eqx.partition((shared, stacked), eqx.is_array)

    def share(arrays: PyTree) -> PyTree:
        shared, stacked = eqx.combine(arrays, static)
        return each_client(function, None, shared, *stacked)

    specs = (PartitionSpec(), PartitionSpec(AXIS))
    return jax.shard_map(share, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(AXIS), check_vma=False)(arrays)


@eqx.filter_jit
def run_as_loop(algorithm: Algorithm, work: Work, mesh: Mesh | None) -> tuple[ClientUpdate, PyTree]:
    """The halves of all clients as one program."""

    def one(
        shared: Shared, key: PRNGKeyArray, own: ClientInput, local: PyTree, data: Data
    ) -> tuple[ClientUpdate, PyTree]:
        algorithm, common = shared
        return client_half(algorithm, key, told(common, own), local, data)

    return each_client(one, mesh, (algorithm, work.common), work.keys, work.inputs, work.local, work.data)


@eqx.filter_jit
def _begin(algorithm: Algorithm, work: Work, mesh: Mesh | None) -> tuple[PyTree, PyTree]:
    """The solvers' first states; and the cavities, which every step would otherwise compute anew."""

    def one(shared: Shared, own: ClientInput, local: PyTree, data: Data) -> PyTree:
        algorithm, common = shared
        problem = algorithm.problem(told(common, own), local, data)
        return algorithm.solver.init(problem), problem.cavity if isinstance(problem, Problem) else None

    return each_client(one, mesh, (algorithm, work.common), work.inputs, work.local, work.data)


@partial(jax.jit, static_argnums=(0,), donate_argnums=(3,))
def _step(static: Static, arrays: PyTree, i: Array, states: PyTree) -> PyTree:
    # not by filter_jit, which waits for each call to end
    algorithm, work, cavities, mesh, stops_itself = eqx.combine(arrays, jax.tree.unflatten(*static))

    def one(
        shared: tuple[Shared, Array], key, own: ClientInput, local: PyTree, data: Data, cavity: PyTree, state: PyTree
    ) -> PyTree:
        (algorithm, common), i = shared
        problem = algorithm.problem(told(common, own), local, data)
        problem = problem if cavity is None else replace(problem, cavity=cavity)
        new = algorithm.solver.step(jax.random.fold_in(key, i), problem, state)
        if not stops_itself:
            return new
        done = algorithm.solver.done(state)
        return jax.tree.map(lambda old, new: jnp.where(done, old, new), state, new)

    shared = ((algorithm, work.common), i)
    return each_client(one, mesh, shared, work.keys, work.inputs, work.local, work.data, cavities, states)


@eqx.filter_jit
def _all_done(solver: Solver, states: PyTree) -> Array:
    return jnp.all(eqx.filter_vmap(solver.done)(states))


@eqx.filter_jit
def _finish(algorithm: Algorithm, work: Work, states: PyTree, mesh: Mesh | None) -> tuple[ClientUpdate, PyTree]:
    def one(shared: Shared, own: ClientInput, local: PyTree, data: Data, state: PyTree) -> tuple[ClientUpdate, PyTree]:
        algorithm, common = shared
        inputs = told(common, own)
        problem = algorithm.problem(inputs, local, data)
        return _arrays(algorithm.update(inputs, local, problem, algorithm.solver.result(problem, state)))

    return each_client(one, mesh, (algorithm, work.common), work.inputs, work.local, work.data, states)


def run_as_steps(algorithm: Algorithm, work: Work, mesh: Mesh | None) -> tuple[ClientUpdate, PyTree]:
    """The same as `run_as_loop`, step by step."""
    states, cavities = _begin(algorithm, work, mesh)
    known, i = algorithm.solver.steps_for(np.asarray(work.data.num_rows)), 0
    last = None if known is None else int(np.max(known))
    alike = known is not None and int(np.min(known)) == last  # then none has to be held back
    arrays, rest = eqx.partition((algorithm, work, cavities, mesh, not alike), eqx.is_array)
    leaves, structure = jax.tree.flatten(rest)
    while i < last if last is not None else (i % LOOK_EVERY or not _all_done(algorithm.solver, states)):
        states = _step((structure, tuple(leaves)), arrays, jnp.uint32(i), states)
        i += 1
    return _finish(algorithm, work, states, mesh)


def numbers_as_leaves(algorithm: A) -> A:
    """A float would be a constant of a program, and each value of a sweep a program of its own.

    So would be how a table becomes numbers, which no program needs.
    """

    def leaf_of(part: Any) -> Any:
        if isinstance(part, Encoding):
            return None
        return jnp.asarray(part) if isinstance(part, float) else part

    return jax.tree.map(leaf_of, algorithm, is_leaf=lambda part: isinstance(part, Encoding))


def in_own_precision(algorithm: Algorithm, told: PyTree) -> PyTree:
    """What clients are told, in the precision of the prior: the ledger is in double, a network stays in single."""
    dtype = jnp.result_type(*jax.tree.leaves(algorithm.prior))
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, told)


def run_clients(algorithm: Algorithm, work: Work, mesh: Mesh | None) -> tuple[ClientUpdate, PyTree]:
    """The halves of all clients, in the way that suits the size of what they exchange."""
    work = replace(
        work, inputs=in_own_precision(algorithm, work.inputs), common=in_own_precision(algorithm, work.common)
    )
    posterior, num_copies = (
        (work.inputs.posterior, len(work.keys)) if work.common is None else (work.common.posterior, 1)
    )
    size = sum(np.size(leaf) // num_copies for leaf in jax.tree.leaves(posterior))
    run = run_as_steps if size >= LARGE or algorithm.solver.has_long_steps else run_as_loop
    return run(algorithm, work, mesh)


@eqx.filter_jit
def client_keys(seed: Array, versions: Array, sequences: Array, names: Array) -> Key[Array, " clients"]:
    """A key from (seed, version, attempt, client): the same in every engine, whoever else is working."""

    def one(version: Array, sequence: Array, name: Array) -> PRNGKeyArray:
        key = jax.random.key(seed)
        for number in (version, sequence, name):
            key = jax.random.fold_in(key, number)
        return key

    return jax.vmap(one)(versions, sequences, names)


def common_inputs(messages: Sequence[Message]) -> tuple[ClientInput | None, list[ClientInput]]:
    """What all these messages say, and what is left of each; nothing is common where they are of different versions.

    The ledger puts one and the same posterior into all messages of a plan, so that it can be told without comparing.
    """
    first = messages[0].inputs
    if any(m.inputs.posterior is not first.posterior or m.inputs.shared is not first.shared for m in messages):
        return None, [m.inputs for m in messages]
    return replace(first, entry=None), [ClientInput(None, m.inputs.entry) for m in messages]


def message_keys(seed: int, messages: Sequence[Message]) -> Key[Array, " clients"]:
    """The keys of the clients that these messages go to."""
    header = np.array([(m.version, m.sequence, name_number(m.client)) for m in messages], np.uint32)
    return client_keys(jnp.asarray(seed, jnp.uint32), *jnp.asarray(header).T)


def name_number(name: str) -> int:
    """A number that depends on a client's name only, for its randomness."""
    return zlib.crc32(name.encode())
