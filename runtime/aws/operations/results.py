"""``python -m runtime results``: lists the runs in the bucket, and downloads one of them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from runtime.aws.ledger import Entry
from runtime.aws.operations.status import iso
from runtime.aws.run_files import ResultsError, RunFiles
from runtime.errors import OperationError
from runtime.experiment.loading import UntrustedCodeError, load_experiment
from runtime.money.budget import Budget
from runtime.records import layout
from runtime.records.files import json_object, read_json_object, remove, to_json, write_atomically
from runtime.records.rows import return_text
from runtime.records.run_directory import RunDirectory
from runtime.show.report import try_to_write_report
from runtime.show.terminal import laid_out

_TRIES = 3


def results_lines(runs: Iterable[RunFiles], entries: Mapping[str, Entry]) -> list[str]:
    """Returns a line for each run, for people.

    Args:
        runs: In the bucket.
        entries: The ledger's, by run.

    Raises:
        ResultsError: The bucket cannot be read.
    """
    return laid_out({run.name: _facts(run, entries.get(run.key)) for run in runs})


def _facts(run: RunFiles, entry: Entry | None) -> str:
    rows, changed_at_s = run.rows(), run.changed_at_s()
    values = [row.get("evaluation_return_mean") for row in rows]
    returns = [value for value in values if isinstance(value, int | float)]
    ended = json_object(run.text(layout.ENDED)) or json_object(run.text(layout.REFUSED))
    reason = ": ".join(str(ended[key]) for key in ("stop_reason", "error") if ended.get(key))
    return (
        f"{rows[-1].get('round_index') if rows else 0} rounds, "
        f"evaluated {return_text(returns[-1] if returns else None)}, "
        f"spent {f'${entry.promised_usd:.4f}' if entry else 'unknown'}, "
        f"last change {iso(changed_at_s)}, {reason or 'not ended, or unknown'}"
    )


def choose_run(runs: list[RunFiles], name: str | None, experiment: str) -> RunFiles | None:
    """Returns the run of that name, or the only one; None if there are several and no name is given.

    Raises:
        OperationError: There is none of that name.
    """
    if name is None:
        return runs[0] if len(runs) == 1 else None
    chosen = next((run for run in runs if run.name == name), None)
    if chosen is None:
        raise OperationError(
            f"--run {name}: the bucket has no such run of {experiment}; there are: "
            f"{', '.join(run.name for run in runs)}"
        )
    return chosen


def continue_lines(run: RunFiles, out: Path, experiment: str) -> list[str]:
    """Returns instructions for a downloaded run: how to evaluate it, and how to continue it here or in AWS.

    Args:
        run: In the bucket.
        out: The directory that it was downloaded to.
        experiment: Name or file of the experiment, as typed.

    Raises:
        ExperimentError: The run's config.yaml is damaged.
    """
    config, here = out / layout.CONFIG, shlex.quote(str(out))
    if not config.exists():
        return ["it cannot be continued: it was never begun"]
    try:
        budget_usd = load_experiment(config, is_of_run=True).budget.usd
    except UntrustedCodeError as error:
        return [f"it cannot be continued here: {error}"]
    file = experiment if Path(experiment).is_file() else f"{experiment}.yaml"
    source = shlex.quote(file if Path(file).is_file() else str(config))
    return [
        f"evaluate it:      python -m runtime evaluate {here}",
        f"continue here:    python -m runtime train {source} --out {here} --resume "
        f"--set fleet.kind=local --set budget.usd={2 * budget_usd:g}",
        "                  (dollars are then this machine's seconds at list prices; the bucket does not hear of it)",
        f"continue in AWS:  a larger budget.usd in {file}, then make deploy "
        f'EXPERIMENT={file} ARGS="--run {run.name}"',
    ]


def download(run: RunFiles, out: Path, entry: Entry | None) -> None:
    """Downloads a run to a directory, from which it can be evaluated and continued.

    Args:
        run: In the bucket.
        out: The directory. It is created, or holds an earlier download of this run.
        entry: The ledger's entry of the run, if any. All its dollars count as spent, also those of a round that was
            under way.

    Raises:
        ResultsError: The bucket cannot be read.
        OperationError: The directory holds another run, or this one was continued in it.
        RunDirectoryError: The directory cannot be written, or a training uses it.
    """
    directory = RunDirectory(out)
    try:
        marker = read_json_object(out / layout.DOWNLOADED)
        before = {"source": run.url, "ledger": _digest(out / layout.LEDGER)}
        if directory.holds_run and marker != before:
            raise OperationError(
                f"--out {out}: holds another run, or a download that was continued here; name another directory"
            )
        ledger = _ledger_of(entry) if entry else b""
        digest = hashlib.sha256(ledger).hexdigest()
        # First, because it says that nothing in the directory is to be trusted.
        write_atomically(out / layout.DOWNLOADED, to_json({"source": run.url, "ledger": digest}))
        for tries_left in reversed(range(_TRIES)):
            try:
                run.download(out, ledger.decode())
                break
            except ResultsError:
                # A learner may have deleted an old checkpoint meanwhile.
                if not tries_left:
                    raise
        for name in (layout.ENDED, layout.REFUSED):
            if text := run.text(name):
                write_atomically(out / name, text.encode())
        # A learner could have put any script into its report.
        remove(out / layout.REPORT)
        if directory.holds_run:
            try_to_write_report(out)
    finally:
        directory.close()


def _ledger_of(entry: Entry) -> bytes:
    """Returns a ledger in which everything that the run can have cost is spent."""
    budget = Budget(entry.budget_usd)
    budget.spend(entry.promised_usd)
    clock = {"billed_until_s": 0.0, "billed_s": 0.0, "blocks": 0, "warm_slots": []}
    return to_json({"budget": budget.get_state(), **clock})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()
