"""The user's callbacks: made before anything starts, called for each round, and kept in the checkpoint.

With callbacks, a round is written before the next one's actors start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

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


class RunControl(Protocol):
    """Actions that a callback may take on its run.

    Attributes:
        environment_kwargs: A copy of the arguments for the next round's environments.
    """

    @property
    def environment_kwargs(self) -> dict[str, Any]: ...

    def stop(self, reason: str) -> None:
        """Ends the run now, before the next round; its ``stop_reason`` is ``callback: `` and the reason."""

    def change_environment(self, **kwargs: Any) -> None:
        """Changes some of ``environment.kwargs`` from the next round on.

        Open episodes are dropped, because they began in another environment. Evaluations keep the kwargs of the
        experiment file, so their returns remain comparable.

        Raises:
            ValueError: They are not JSON values, or the rounds are asynchronous.
        """


class Callback:
    """A base class for callbacks of your own, which can observe a run, stop it, and change its environment.

    Methods do nothing unless a subclass overrides them. An exception ends the run. A resumed run calls a callback with
    the last finished round once more, after `load_state` has undone the first call's effects.
    """

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        """Called before `on_round_end` if an evaluation has ended: ``row.evaluation_return_mean``."""

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        """Called when a finished round and its checkpoint are on disk."""

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
    return Callbacks(callbacks, experiment)


def _made(path: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return load(path)(**arguments)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything.
        raise ExperimentError(
            f"callbacks: {path} cannot be made with {dict(arguments)}: {describe_error(error)}"
        ) from error


class Callbacks(Observer):
    """Calls callbacks, and is the `RunControl` that they receive.

    Attributes:
        stop_reason: Why a callback stopped the run; None before.
    """

    def __init__(self, callbacks: Sequence[Callback], experiment: ResolvedExperiment) -> None:
        """Takes the callbacks, in the order in which they are called.

        Raises:
            CallbackError: A callback raises, or its state is not a JSON value.
        """
        self._callbacks, self._options = callbacks, experiment.environment.options
        self._fixed_because = ""
        if experiment.algorithm.is_asynchronous:
            self._fixed_because = (
                "algorithm.rounds = asynchronous, whose actors play across the ends of rounds; "
                "allowed: synchronous"
            )
        if experiment.environment.has_worlds:
            self._fixed_because = (
                f"environment.backend = {experiment.environment.backend}, whose worlds are made once; "
                "allowed: gymnasium"
            )
        self._kwargs: dict[str, Any] = dict(experiment.environment.kwargs)
        self._has_changed = False
        self.stop_reason: str | None = None
        self._states = self._ask_states()

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def on_evaluation(self, row: RoundRow) -> None:
        """Passes the evaluation to all callbacks.

        Raises:
            CallbackError: One of them raises.
        """
        for callback in self._callbacks:
            _call(callback, "on_evaluation", row, self)

    def on_round_end(self, row: RoundRow) -> None:
        """Passes the round to all callbacks and reads their states; raises the same as `on_evaluation`.

        The states are read now, not when a checkpoint is made, because an unwritten round must not depend on a
        callback.
        """
        for callback in self._callbacks:
            _call(callback, "on_round_end", row, self)
        self._states = self._ask_states()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Passes the run's end to all callbacks; raises the same as `on_evaluation`."""
        for callback in self._callbacks:
            _call(callback, "on_end", summary)

    # Actions available to callbacks

    @property
    def environment_kwargs(self) -> dict[str, Any]:
        """Arguments for the environments of the next round."""
        return deepcopy(self._kwargs)

    def stop(self, reason: str) -> None:
        """Ends the run before the next round; the first reason counts."""
        self.stop_reason = self.stop_reason or STOP_REASON.format(one_line(str(reason)))

    def change_environment(self, **kwargs: Any) -> None:
        """Changes some of ``environment.kwargs``, from the next round on.

        Raises:
            ValueError: They are not JSON values, the rounds are asynchronous, or the environments are worlds.
        """
        if self._fixed_because:
            raise ValueError(f"environment.kwargs cannot change with {self._fixed_because}")
        new = self._kwargs | _as_json(kwargs, "environment.kwargs")
        self._has_changed |= new != self._kwargs
        self._kwargs = new

    @property
    def actor_fields(self) -> dict[str, Any]:
        """Fields of an actor's event that set environment arguments which a callback changed."""
        if self._kwargs == self._options.get("kwargs", {}):
            return {}
        return {"environment_options": {**self._options, "kwargs": self._kwargs}}

    def take_change(self) -> bool:
        """Returns whether a callback has changed ``environment.kwargs`` since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    # The checkpoint

    def get_state(self) -> State:
        """Returns each callback's state after its last round, and the kwargs."""
        names = map(_name, self._callbacks)
        states = [list(pair) for pair in zip(names, self._states, strict=True)]
        return State({}, {"kwargs": self._kwargs, "states": states})

    def set_state(self, state: State) -> None:
        """Restores a state.

        Raises:
            CheckpointError: It is from other callbacks.
            CallbackError: One of them raises.
        """
        names = [_name(callback) for callback in self._callbacks]
        before = [name for name, _ in state.values["states"]]
        if names != before:
            raise CheckpointError(
                f"the run's callbacks were {before}, and are {names} now; allowed: the same ones, in "
                "the same order"
            )
        self._kwargs = dict(state.values["kwargs"])
        self._states = [kept for _, kept in state.values["states"]]
        for callback, kept in zip(self._callbacks, self._states, strict=True):
            _call(callback, "load_state", kept)

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
        return _as_json(returned, "the state") if method == "state" else None
    except (Exception, SystemExit) as error:
        raise CallbackError(
            f"callback {_name(callback)}.{method} raised {describe_error(error)}"
        ) from error


def _as_json(value: Any, what: str) -> Any:
    """Returns a copy of JSON values, as a checkpoint restores them."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is no JSON value: {error}") from None
