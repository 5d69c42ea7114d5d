"""The user's callbacks: made before anything starts, called for each round, and kept in the checkpoint.

With callbacks, a round is written before the next one's actors start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lambda_actor.errors import describe_error
from runtime.errors import CallbackError, CheckpointError, ExperimentError, one_line
from runtime.experiment.kinds import load
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import with_arguments
from runtime.records.observers import Observer
from runtime.records.rows import RoundRow
from runtime.records.state import State

STOP_REASON = "callback: {}"
"""The ``stop_reason`` of a run that a callback stopped."""


class RunControl:
    """What a callback may do to its run.

    Attributes:
        stop_reason: Why a callback stopped the run; None before.
    """

    stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        """Ends the run before the next round; the first reason counts.

        The run's ``stop_reason`` becomes ``callback: `` and the reason.
        """
        self.stop_reason = self.stop_reason or STOP_REASON.format(one_line(str(reason)))


class Callback:
    """A base class for callbacks of your own, which can observe a run and stop it.

    Methods do nothing unless a subclass overrides them. An exception ends the run. A resumed run calls a callback with
    the last finished round once more, after `load_state` has undone the first call's effects.
    """

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        """Called when a finished round and its checkpoint are on disk.

        If an evaluation ended in it, ``row.evaluation_return_mean`` is not None.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called when the run has ended for any reason. ``summary`` is the content of ``summary.json``."""

    def state(self) -> Any:
        """Returns the state that later rounds depend on, as JSON values. Each checkpoint includes it."""
        return None

    def load_state(self, state: Any) -> None:
        """Continues from a result of `state`."""


def make_callbacks(experiment: ResolvedExperiment, given: Sequence[Callback] = ()) -> Callbacks:
    """Makes the experiment file's callbacks and adds those passed to `train`.

    Raises:
        ExperimentError: One of them cannot be imported or made, is not a callback, or has a misspelt ``on_…`` method.
    """
    made = [_made(path, arguments) for path, arguments in with_arguments(experiment.callbacks)]
    callbacks = [*made, *given]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ExperimentError(
                f"callbacks: {_name(callback)} is not allowed; allowed: objects of subclasses of "
                "nitro_rl.Callback"
            )
        for name in dir(callback):
            if name.startswith("on_") and not hasattr(Callback, name):
                called = " | ".join(one for one in vars(Callback) if one.startswith("on_"))
                raise ExperimentError(
                    f"callbacks: {_name(callback)}.{name} would never be called; allowed: {called}"
                )
    return Callbacks(callbacks)


def _made(path: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return load(path)(**arguments)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything.
        raise ExperimentError(
            f"callbacks: {path} cannot be made with {dict(arguments)}: {describe_error(error)}"
        ) from error


class Callbacks(Observer):
    """Calls the callbacks of a run.

    Attributes:
        control: What they may do to it.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        """Takes the callbacks, in the order in which they are called.

        Raises:
            CallbackError: A callback raises, or its state is not a JSON value.
        """
        self._callbacks = callbacks
        self.control = RunControl()
        self._states = self._ask_states()

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def on_round_end(self, row: RoundRow) -> None:
        """Passes the round to all callbacks and reads their states.

        The states are read now, not when a checkpoint is made, because an unwritten round must not depend on a
        callback.

        Raises:
            CallbackError: One of them raises, or its state is not a JSON value.
        """
        for callback in self._callbacks:
            _call(callback, "on_round_end", row, self.control)
        self._states = self._ask_states()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Passes the run's end to all callbacks; raises the same as `on_round_end`."""
        for callback in self._callbacks:
            _call(callback, "on_end", summary)

    # The checkpoint

    def get_state(self) -> State:
        """Returns each callback's state after its last round."""
        names = map(_name, self._callbacks)
        states = [list(pair) for pair in zip(names, self._states, strict=True)]
        return State({}, {"states": states})

    def set_state(self, state: State) -> None:
        """Restores a state.

        Raises:
            CheckpointError: It is from other callbacks.
            CallbackError: One of them raises.
        """
        names = [_name(callback) for callback in self._callbacks]
        names_before = [name for name, _ in state.values["states"]]
        if names != names_before:
            raise CheckpointError(
                f"the run's callbacks were {names_before}, and are {names} now; allowed: the same ones, in "
                "the same order"
            )
        self._states = [before for _, before in state.values["states"]]
        for callback, before in zip(self._callbacks, self._states, strict=True):
            _call(callback, "load_state", before)

    def _ask_states(self) -> list[Any]:
        return [_call(callback, "state") for callback in self._callbacks]


def _name(callback: Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _call(callback: Callback, method: str, *arguments: Any) -> Any:
    """Calls a callback's method; returns a copy of the state, if the method is ``state``.

    Raises:
        CallbackError: It raised, or the state is not a JSON value; with its name, file and line.
    """
    try:
        returned = getattr(callback, method)(*arguments)
        return _as_restored(returned) if method == "state" else None
    except (Exception, SystemExit) as error:
        raise CallbackError(
            f"callback {_name(callback)}.{method} raised {describe_error(error)}"
        ) from error


def _as_restored(state: Any) -> Any:
    """Returns a copy of a state, as a checkpoint restores it."""
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the state is no JSON value: {error}") from None
