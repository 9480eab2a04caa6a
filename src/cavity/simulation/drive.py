"""How client parts are run: as one compiled loop or step by step. The faster of the two saves a factor of ten on a CPU.

A small model (a regression) is one compiled loop, since starting a program for every step would dominate. A large one
(a network) is a sequence of compiled steps that the host starts without waiting, each reusing the memory of the step
before it, since inside a compiled loop element-wise work and random numbers run on one thread.

Both run all clients of a stack at once, by `vmap`, and on several devices each device runs its share.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key, PRNGKeyArray, PyTree, UInt32

from cavity.core import Algorithm, ClientPart, Data, Encoding, Problem, Solver
from cavity.core.messages import ClientInput, ClientUpdate, Message
from cavity.core.random import name_number
from cavity.simulation.stacks import AXIS

A = TypeVar("A", bound=Algorithm)
Shared = tuple[ClientPart, ClientInput | None]  # the same for all clients of a stack
Static = tuple[PyTree, tuple[PyTree, ...]]  # the structure of a tree without its arrays, and the rest of it
Outcome = tuple[ClientUpdate, PyTree, PyTree]  # update, local state, what is spent
LARGE = 20_000  # numbers in a posterior from which steps are dispatched one by one
LOOK_EVERY = 25  # dispatched steps between two checks whether all clients are done


class Work(eqx.Module):
    """What some clients need for one message each, stacked.

    What all of them receive (a posterior may have millions of numbers) is in `common`, once, and `inputs` holds their
    entries only. Without `common`, where they answer different versions, all of it is in `inputs`.

    Attributes:
        keys: for the solvers.
        inputs: of each client.
        local: what each keeps.
        data: of each.
        common: what all receive.
        private_keys: data of the keys for what happens before an update leaves, from secrets of the clients.
        spent: what each has spent of its privacy budget.
    """

    keys: Key[Array, " clients"]
    inputs: ClientInput
    local: PyTree
    data: Data
    common: ClientInput | None = None
    private_keys: UInt32[Array, "clients 2"] | None = None
    spent: PyTree = None


def inputs_of(common: ClientInput | None, own: ClientInput) -> ClientInput:
    """All that one client receives: the common part and its own entry."""
    return own if common is None else replace(common, entry=own.entry)


def solve(solver: Solver, key: PRNGKeyArray, problem: PyTree) -> PyTree:
    """init, step until done, result.

    Step i has its own key, so a solve does not depend on the other clients of the stack.
    """
    state = solver.init(problem)
    if solver.unrolled is not None:  # without a loop it compiles faster
        for i in range(solver.unrolled):
            state = solver.step(jax.random.fold_in(key, jnp.uint32(i)), problem, state)
        return solver.result(problem, state)

    def step(carry: tuple[Array, PyTree]) -> tuple[Array, PyTree]:
        i, state = carry
        return i + 1, solver.step(jax.random.fold_in(key, i), problem, state)

    _, state = jax.lax.while_loop(lambda carry: ~solver.done(carry[1]), step, (jnp.uint32(0), state))
    return solver.result(problem, state)


def run_client(
    client: ClientPart,
    key: PRNGKeyArray,
    inputs: ClientInput,
    local: PyTree,
    data: Data,
    private_key: UInt32[Array, " 2"] | None = None,
    spent: PyTree = None,
) -> Outcome:
    """All that a client does with one message: a pure function of the message, the local state and the data.

    Args:
        client: the method's client part.
        key: for the solver.
        inputs: what the message carries.
        local: what the client keeps.
        data: its rows.
        private_key: data of a key from the client's own secret; for methods with a release.
        spent: what the client has spent of its privacy budget.

    Returns:
        The update, the new local state, and what is spent now.
    """
    problem = client.problem(inputs, local, data)
    solution = solve(client.solver, key, problem)
    return _released(client, client.update(inputs, local, problem, solution), data, private_key, spent)


def _released(
    client: ClientPart,
    found: tuple[ClientUpdate, PyTree],
    data: Data,
    private_key: UInt32[Array, " 2"] | None,
    spent: PyTree,
) -> Outcome:
    """The update as it is sent, with arrays for plain numbers (a NaN for what a method does not define)."""
    update, local = found
    if client.release is not None:
        if private_key is None:
            raise ValueError("the method's release needs a key from a secret of the client")
        update, spent = client.release.apply(jax.random.wrap_key_data(private_key), update, spent, data)
    return jax.tree.map(jnp.asarray, (update, local, spent))


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
def run_as_loop(client: ClientPart, work: Work, mesh: Mesh | None) -> Outcome:
    """All clients as one program."""

    def one(
        shared: Shared,
        key: PRNGKeyArray,
        own: ClientInput,
        local: PyTree,
        data: Data,
        private: Array | None,
        spent: PyTree,
    ) -> Outcome:
        client, common = shared
        return run_client(client, key, inputs_of(common, own), local, data, private, spent)

    private = (work.private_keys, work.spent)
    return each_client(one, mesh, (client, work.common), work.keys, work.inputs, work.local, work.data, *private)


@eqx.filter_jit
def _begin(client: ClientPart, work: Work, mesh: Mesh | None) -> tuple[PyTree, PyTree]:
    """The solvers' first states; and the cavities, which every step would otherwise compute again."""

    def one(shared: Shared, own: ClientInput, local: PyTree, data: Data) -> PyTree:
        client, common = shared
        problem = client.problem(inputs_of(common, own), local, data)
        return client.solver.init(problem), problem.cavity if isinstance(problem, Problem) else None

    return each_client(one, mesh, (client, work.common), work.inputs, work.local, work.data)


@partial(jax.jit, static_argnums=(0,), donate_argnums=(3,))
def _step(static: Static, arrays: PyTree, i: Array, states: PyTree) -> PyTree:
    # not by filter_jit, which waits for each call to end
    client, work, cavities, mesh, stops_itself = eqx.combine(arrays, jax.tree.unflatten(*static))

    def one(
        shared: tuple[Shared, Array],
        key: PRNGKeyArray,
        own: ClientInput,
        local: PyTree,
        data: Data,
        cavity: PyTree,
        state: PyTree,
    ) -> PyTree:
        (client, common), i = shared
        problem = client.problem(inputs_of(common, own), local, data)
        problem = problem if cavity is None else replace(problem, cavity=cavity)
        new = client.solver.step(jax.random.fold_in(key, i), problem, state)
        if not stops_itself:
            return new
        done = client.solver.done(state)
        return jax.tree.map(lambda old, new: jnp.where(done, old, new), state, new)

    shared = ((client, work.common), i)
    return each_client(one, mesh, shared, work.keys, work.inputs, work.local, work.data, cavities, states)


@eqx.filter_jit
def _all_done(solver: Solver, states: PyTree) -> Array:
    return jnp.all(eqx.filter_vmap(solver.done)(states))


@eqx.filter_jit
def _finish(client: ClientPart, work: Work, states: PyTree, mesh: Mesh | None) -> Outcome:
    def one(
        shared: Shared, own: ClientInput, local: PyTree, data: Data, state: PyTree, private: Array | None, spent: PyTree
    ) -> Outcome:
        client, common = shared
        inputs = inputs_of(common, own)
        problem = client.problem(inputs, local, data)
        found = client.update(inputs, local, problem, client.solver.result(problem, state))
        return _released(client, found, data, private, spent)

    private = (work.private_keys, work.spent)
    return each_client(one, mesh, (client, work.common), work.inputs, work.local, work.data, states, *private)


def run_as_steps(client: ClientPart, work: Work, mesh: Mesh | None) -> Outcome:
    """The same as `run_as_loop`, step by step."""
    states, cavities = _begin(client, work, mesh)
    known, i = client.solver.steps_for(np.asarray(work.data.num_rows)), 0
    last = None if known is None else int(np.max(known))
    alike = known is not None and int(np.min(known)) == last  # then all clients are done after the same step
    arrays, rest = eqx.partition((client, work, cavities, mesh, not alike), eqx.is_array)
    leaves, structure = jax.tree.flatten(rest)
    while i < last if last is not None else (i % LOOK_EVERY or not _all_done(client.solver, states)):
        states = _step((structure, tuple(leaves)), arrays, jnp.uint32(i), states)
        i += 1
    return _finish(client, work, states, mesh)


def numbers_as_leaves(algorithm: A) -> A:
    """The method with floats as arrays: a float would be compiled in as a constant, and each value would need its own
    program.

    How a table becomes numbers is left out, since no program needs it.
    """

    def is_encoding(part: PyTree) -> bool:
        return isinstance(part, Encoding)

    def leaf_of(part: PyTree) -> PyTree:
        return None if is_encoding(part) else jnp.asarray(part) if type(part) is float else part

    return jax.tree.map(leaf_of, algorithm, is_leaf=is_encoding)


def in_own_precision(algorithm: Algorithm, inputs: PyTree) -> PyTree:
    """What clients receive, in the precision of the prior: the ledger uses double, a network may use single."""
    dtype = jnp.result_type(*jax.tree.leaves(algorithm.prior))
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, inputs)


def run_clients(algorithm: Algorithm, work: Work, mesh: Mesh | None) -> Outcome:
    """All clients, in the way that suits the size of what they exchange."""
    work = replace(
        work, inputs=in_own_precision(algorithm, work.inputs), common=in_own_precision(algorithm, work.common)
    )
    posterior, num_copies = (
        (work.inputs.posterior, len(work.keys)) if work.common is None else (work.common.posterior, 1)
    )
    size = sum(np.size(leaf) // num_copies for leaf in jax.tree.leaves(posterior))
    client = algorithm.client
    run = run_as_steps if size >= LARGE or client.solver.has_long_steps else run_as_loop
    return run(client, work, mesh)


@eqx.filter_jit
def client_keys(seed: Array, versions: Array, sequences: Array, names: Array) -> Key[Array, " clients"]:
    """A key from (seed, version, attempt, client): the same in every engine, whichever other clients take part."""

    def one(version: Array, sequence: Array, name: Array) -> PRNGKeyArray:
        key = jax.random.key(seed)
        for number in (version, sequence, name):
            key = jax.random.fold_in(key, number)
        return key

    return jax.vmap(one)(versions, sequences, names)


def common_inputs(messages: Sequence[Message]) -> tuple[ClientInput | None, list[ClientInput]]:
    """What all these messages carry, and the rest of each; nothing is common where they are of different versions.

    The ledger puts the same posterior object into all messages of a plan, so nothing has to be compared.
    """
    first = messages[0].inputs
    if any(m.inputs.posterior is not first.posterior or m.inputs.shared is not first.shared for m in messages):
        return None, [m.inputs for m in messages]
    return replace(first, entry=None), [ClientInput(None, m.inputs.entry) for m in messages]


def message_keys(seed: int, messages: Sequence[Message]) -> Key[Array, " clients"]:
    """The keys of the clients that these messages go to."""
    header = np.array([(m.version, m.sequence, name_number(m.client)) for m in messages], np.uint32)
    return client_keys(jnp.asarray(seed, jnp.uint32), *jnp.asarray(header).T)


def private_keys(secret: bytes, messages: Sequence[Message]) -> UInt32[Array, "clients 2"]:
    """Data of keys that cannot be known without the secret; the same for the same message."""
    digests = [
        hmac.new(secret, f"{m.version}:{m.sequence}:{m.client}".encode(), hashlib.sha256).digest()[:8] for m in messages
    ]
    return jnp.asarray(np.frombuffer(b"".join(digests), np.uint32).reshape(-1, 2))
