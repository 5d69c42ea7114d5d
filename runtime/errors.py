"""One tree of errors for everything a run can end with."""

import re
import signal

ERROR_CHARACTERS_MAX = 1000
"""Of an actor's error, so many characters are kept."""


class RunError(Exception):
    """Base of every error that the runtime raises on purpose; its text is meant for the user."""


ENDING_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
"""Signals that end a run between its steps. The last three are what schedulers of clusters send before a job's end."""


class Interrupted(KeyboardInterrupt):
    """One of `ENDING_SIGNALS` arrived.

    Attributes:
        exit_code: The command's: 128 plus the signal's number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class ExperimentError(RunError):
    """The experiment file, or an override, is wrong. Raised before anything starts.

    Its text repeats what the user wrote, but for what looks like the credentials of a URL.
    """

    def __init__(self, text: str) -> None:
        super().__init__(without_credentials(text))


class BudgetTooSmallError(ExperimentError):
    """The budget cannot hold the smallest round."""


class EnvironmentNotHereError(ExperimentError):
    """The environment cannot be made on this machine."""


class MissingExtraError(RunError):
    """A library is not installed that only some people need; the text says how to get it."""

    def __init__(self, what: str, library: str, extra: str) -> None:
        super().__init__(
            f"{what} needs {library}: pip install 'nitro-rl[{extra}]', or in a clone: python -m pip "
            f"install -e '.[{extra}]' -c constraints.txt"
        )


class RunDirectoryError(RunError):
    """The run's directory cannot be used as asked."""


class CheckpointError(RunError):
    """No sound checkpoint can be read."""


class BudgetError(RunError):
    """The budget cannot hold what was asked of it."""


class CallbackError(RunError):
    """A callback of the user's raised; the text names it, its file and its line."""


class NotFiniteError(RunError):
    """Training diverged: its text names a figure and the value that it has instead of a finite one."""


class ActorsKeepFailingError(RunError):
    """The circuit breaker: actors fail again and again."""

    def __init__(self, text: str, last_error: str) -> None:
        super().__init__(f"{text}{last_error or 'none'}")


class FleetError(RunError):
    """The fleet itself failed, not one of its actors."""


class GuardError(RunError):
    """Nothing would end the deployment."""


class OperationError(RunError):
    """There is nothing that a command could tell of a deployment or of a run."""


class ServerError(RunError):
    """The trajectory cache's server cannot be started or reached."""


def without_credentials(text: str) -> str:
    """``text`` with every word that has a colon before an ``@``, and every password option, cut down to ``***``."""
    # Word by word: a pattern with the colon and the @ takes hours for a hundred thousand colons.
    return re.sub(r"(?i)(password=)[^\s&'\"]*", r"\1***", re.sub(r"\S+", _without_user, text))


def _without_user(word: re.Match[str]) -> str:
    before, _, after = word[0].rpartition("@")
    return f"***@{after}" if ":" in before else word[0]


def one_line(text: str, characters_max: int = 200) -> str:
    """The beginning of a text as one line of printable characters; an answer of a proxy, say, may be a whole page."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= characters_max else f"{line[: characters_max - 1]}…"
