"""Training from a script or a notebook: ``python -m runtime train`` as a function."""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import Interrupted, RunError
from runtime.records.layout import default_directory
from runtime.records.observers import Display
from runtime.records.trust import load_file_or_dict
from runtime.show.display import RunDisplay
from runtime.show.exported_policy import TrainedPolicy, load_policy
from runtime.training.callbacks import Callback


@dataclass(frozen=True)
class TrainingResult:
    """Results of a finished training.

    Attributes:
        directory: The run's directory.
        summary: Contents of its ``summary.json``.
    """

    directory: Path
    summary: Mapping[str, Any]

    @property
    def policy(self) -> TrainedPolicy:
        """Returns the policy that reached the target, else the newest; loaded anew by each access."""
        return load_policy(self.directory)

    @property
    def best_policy(self) -> TrainedPolicy:
        """Returns the policy of the best evaluation; loaded anew by each access.

        Raises:
            RunError: The run evaluated none.
        """
        return load_policy(self.directory, best=True)


def train(
    experiment: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    overrides: Iterable[str] = (),
    resume: bool = False,
    is_quiet: bool = False,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
) -> TrainingResult:
    """Trains an experiment on this machine, until it reaches its target, one of its limits or its budget.

    Call it in the main thread. While it trains, Ctrl-C ends it cleanly; afterwards it restores the signal handlers.

    Args:
        experiment: An experiment file, or its content as a dict.
        out: Directory for the results; None makes one below ``runs``, named after the experiment, environment,
            algorithm, scaler, seed and time.
        overrides: Keys to change, each ``section.key=value``, as for ``--set``.
        resume: Whether to continue the run in ``out`` after its last finished round, or begin it if there is none.
        is_quiet: Whether to print only warnings, on stderr.
        trust: Whether to run code that the file names, even if it is a downloaded run's.
        callbacks: Called after the file's callbacks; a resumption needs the same ones.

    Raises:
        RunError: It cannot begin, or it failed; the message says why. Finished rounds are kept.
        UnusableEnvironmentError: The policy cannot act in the environment, or the environment raised.
        KeyboardInterrupt: Ctrl-C ended it; finished rounds are kept.
        SystemExit: Another signal ended it.
    """
    from runtime.training.backends import make_backend
    from runtime.training.run import RunResult
    from runtime.training.run import train as run

    if threading.current_thread() is not threading.main_thread():
        raise RunError("train() must be called in the main thread: signals and time limits need it")
    if resume and out is None:
        raise RunError("resume=True needs the run's directory: out=…")
    name = "experiment" if isinstance(experiment, Mapping) else Path(experiment).stem
    resolved = load_file_or_dict(experiment, overrides, trust=trust).resolved()
    directory = (
        Path(out) if out is not None else default_directory(name, resolved, datetime.datetime.now())
    )
    display = Display() if is_quiet else RunDisplay(resolved)
    try:
        result = run(
            resolved,
            directory,
            backend=make_backend(resolved),
            resume=resume,
            display=display,
            name=name,
            callbacks=callbacks,
        )
    except Interrupted as interrupt:
        result = RunResult({}, interrupt.exit_code)
    finally:
        display.close()
    if result.exit_code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if result.exit_code > 128:
        raise SystemExit(result.exit_code)
    if result.exit_code:
        raise RunError(
            f"{directory}: the training failed: {result.summary['error']}"
        ) from result.error
    return TrainingResult(directory, result.summary)
