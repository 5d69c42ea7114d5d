"""A policy of your own as an ONNX file for actors, checked here before anything is paid for.

As a module, it tries a graph in its own process: ``python -m runtime.export.onnx_policy CONTROL_FD SPACES``.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError, WireError
from lambda_actor.inline import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX, text_bytes
from lambda_actor.onnx_file import read_ports
from lambda_actor.onnx_policy import OUTPUTS, GraphPolicy, signature_of
from lambda_actor.policy import Context
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.processes.child import Child, how_it_ended
from runtime.processes.inside import connect
from runtime.records.files import read_regular

COPIES = 4
"""An actor holds the message, the graph in it, onnxruntime's copy of the graph, and weights prepared for multiplying.
"""
ACTOR_MIB = 256
"""Memory of an actor with a small environment and onnxruntime, without a graph."""
PATIENCE_S = 60.0
"""For a graph to be loaded, and to act once."""
_TRIED: set[Any] = set()
"""Kinds of graphs that did so."""


def check_request(what: str, message: bytes) -> None:
    """Checks that AWS Lambda carries a policy to an actor, if there is no cache.

    Args:
        what: It is, for people.

    Raises:
        SchemaError: It does not.
    """
    request = text_bytes(len(message)) + text_bytes(EPISODE_BYTES_MAX) + FRAME_BYTES_MAX
    if request > PAYLOAD_BYTES_MAX:
        raise SchemaError(
            f"{what} and an open episode take a request of {request:,}, and AWS Lambda takes "
            f"{PAYLOAD_BYTES_MAX:,}; allowed with cache.kind = none: a smaller one, or a cache"
        )


class OnnxPolicy:
    """A graph, and how actors act by its outputs.

    It is read without onnxruntime, and `check` runs it once if onnxruntime is installed here.

    Attributes:
        weights: The message for actors.
        policy_version: As given.
        states: Shapes of its recurrent state, by name; known after `check`.
    """

    states: Mapping[str, tuple[int, ...]] = {}

    def __init__(
        self,
        graph: str | os.PathLike[str] | bytes,
        act: str = "gaussian",
        epsilon: float = 0.0,
        policy_version: int = 0,
    ) -> None:
        """Reads a graph.

        Args:
            graph: An ONNX file, or the bytes of one.
            act: Kind of its outputs: ``gaussian`` (``mean`` and ``log_std``), ``squashed_gaussian`` (the same, followed
                by tanh and the action space's bounds), ``categorical`` (``logits``), ``epsilon_greedy`` (``q_values``),
                ``actions`` (``action``), or ``uniform`` between the bounds (``mean``, which is not read).
            epsilon: Probability of a random action, for ``epsilon_greedy``.
            policy_version: Version to record in trajectories.

        Raises:
            RunError: The file cannot be read, or actors may not run it.
        """
        self._source = str(graph) if isinstance(graph, str | os.PathLike) else "OnnxPolicy"
        try:
            self._graph = (
                graph
                if isinstance(graph, bytes)
                else read_regular(Path(graph), wire.MESSAGE_BYTES_MAX, may_be_link=True)
            )
            if len(self._graph) > wire.MESSAGE_BYTES_MAX:
                raise SchemaError(
                    f"has {len(self._graph):,} bytes; allowed: up to {wire.MESSAGE_BYTES_MAX:,}"
                )
            if act not in OUTPUTS:
                raise SchemaError(f"act = {act!r}; allowed: {' | '.join(OUTPUTS)}")
            self._ports, self._act, self._epsilon = read_ports(self._graph), act, float(epsilon)
            self.policy_version = policy_version
            self.weights = wire.encode(
                wire.Kind.GRAPH,
                {
                    "policy_version": np.array(policy_version, np.int64),
                    "graph": np.frombuffer(self._graph, np.uint8),
                    "act": wire.text_field(act),
                    "epsilon": np.array(epsilon, np.float64),
                },
            )
        except OSError as error:
            raise RunError(f"{self._source}: cannot be read: {error.strerror or error}") from None
        except (WireError, ValueError, TypeError, OverflowError) as error:
            raise RunError(f"{self._source}: {error}") from None

    def check(
        self, spaces: Spaces, *, memory_mib: int | None = None, has_cache: bool = True
    ) -> None:
        """Checks that actors can act by it.

        Args:
            spaces: The environment's spaces.
            memory_mib: Memory of an actor's function; None = unlimited.
            has_cache: Whether actors get it from a cache; otherwise it must fit an AWS Lambda request.

        Raises:
            RunError: They cannot.
        """
        try:
            self.states = signature_of(self._ports, self._act, self._epsilon, spaces).states
            self._check_sizes(memory_mib, has_cache=has_cache)
            if importlib.util.find_spec("onnxruntime"):
                # Trainers make a graph for each call. Later ones of this size, inputs and outputs run in this process.
                kind = (len(self._graph), str(self._ports), self._act, spaces)
                (_act_here if kind in _TRIED else _act_apart)(self.weights, spaces)
                _TRIED.add(kind)
        except WireError as error:
            raise RunError(f"{self._source}: {error}") from None

    def _check_sizes(self, memory_mib: int | None, *, has_cache: bool) -> None:
        if not has_cache:
            check_request(f"a graph of {len(self._graph):,} bytes", self.weights)
        needed_mib = ACTOR_MIB + -(-COPIES * len(self._graph) // 2**20)
        if memory_mib is not None and needed_mib > memory_mib:
            raise SchemaError(
                f"a graph of {len(self._graph):,} bytes needs an actor of {needed_mib:,} MiB; "
                f"actor.memory_mib is {memory_mib:,}"
            )


def _act_apart(message: bytes, spaces: Spaces) -> None:
    """Runs a graph for one observation of zeros, in a process that is killed if this takes too long.

    A graph without loops, of a few bytes, can take hours, in which nothing else can interrupt onnxruntime.
    """
    child = Child("runtime.export.onnx_policy", repr(asdict(spaces)))
    try:
        child.connection.send_bytes(message)
        if not child.connection.poll(PATIENCE_S):
            raise SchemaError(f"the graph takes more than {PATIENCE_S:g} s for an observation")
        if told := child.connection.recv_bytes().decode():
            raise SchemaError(told)
    except (EOFError, OSError):
        raise SchemaError(
            f"onnxruntime ended its process with the graph: {how_it_ended(child.end(1.0))}"
        ) from None
    finally:
        child.end()


def _act_here(message: bytes, spaces: Spaces) -> None:
    policy = GraphPolicy.from_bytes(message)
    policy.check(spaces)
    observation = np.zeros(spaces.observation_shape, np.uint8 if spaces.is_pixels else np.float32)
    mask = np.ones(spaces.output_size, np.bool_) if spaces.has_action_mask else None
    policy.outputs(observation, Context(mask, policy.initial_state))


def main(control_fd: int, spaces: Spaces) -> None:
    """Tries the graph of a message, and answers with the error; empty if there is none."""
    connection, messages = connect(control_fd)
    try:
        _act_here(messages.get(), spaces)
        connection.send_bytes(b"")
    except Exception as error:
        connection.send_bytes(str(error).encode(errors="replace"))


if __name__ == "__main__":
    main(int(sys.argv[1]), Spaces(**ast.literal_eval(sys.argv[2])))
