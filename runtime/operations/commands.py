"""What the user's commands tell: how it stands, what is logged, what the bucket keeps, and what AWS bills.

Nothing here changes anything in AWS.
"""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.aws.asking import ask, ask_if_there, pages_of
from runtime.aws.clients import Client
from runtime.aws.stacks import find_stack, outputs_of
from runtime.config.loading import load_experiment
from runtime.config.schema import Experiment, unchangeable
from runtime.cost.prices import PRICES
from runtime.display.terminal import COLUMNS, laid_out
from runtime.errors import ExperimentError
from runtime.names import GUARD_STACK, STACK_PREFIX
from runtime.operations.kept_runs import KeptRun, find_bucket, find_runs, spent_usd, summarise
from runtime.operations.stop import find_ledger
from runtime.operations.survey import OperationError, iso
from runtime.records import layout

Report = Callable[[str], None]

GUARD_LATE_S = 300.0
"""The guard looks once a minute."""
POLL_S = 3.0
_LATE_EVENTS_S = 60.0
"""Log events may arrive so much later than others of the same time."""
_EVENTS_SHOWN, _BOOT_LINES_SHOWN = 20, 25


# How it stands


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """A survey, for people; no wider than 100 columns but for names and commands."""
    is_one = "totals" not in document
    lines = laid_out({"account": f"{document['account']}, {document['region']}"})
    lines += _heading("deployed", [line for one in document["deployments"] for line in _deployment_lines(one)], "none")
    lines += _heading("orphans, which no stack has", _orphan_lines(document["orphans"]), "" if is_one else "none")
    lines += _heading("log groups of stacks that are gone", _log_lines(document["left_logs"]), "")
    lines += _heading("runs that are gone", _gone_lines(document["gone"]), "")
    lines += _heading("guard", _guard_lines(document["guard"]), "")
    return lines if is_one else [*lines, "", *_total_lines(document["totals"])]


def _deployment_lines(one: Mapping[str, Any]) -> list[str]:
    facts = {"stack": f"{one['stack']}, {one['stack_status']}", "learner": _learner_text(one),
             "dollars": _dollars_text(one), "time": _time_text(one)}
    if one["teardown"]:
        facts["teardown"] = _teardown_text(one["teardown"])
    if one["unreadable"]:
        facts["ATTENTION"] = f"its limits cannot be told: {one['unreadable']}"
    if one.get("round"):
        facts["last round"] = _round_text(one["round"])
    facts |= {label: one[key] for label, key in (("results", "results"), ("", "problem")) if one.get(key)}
    if "results" in one and one["dashboard_url"]:
        facts["dashboard"] = one["dashboard_url"]
    return [one["run"], *laid_out(facts, margin=2)]


def _learner_text(one: Mapping[str, Any]) -> str:
    state = one["state"] or "none has reported"
    if one["teardown"]:
        state += ", being torn down"
    parts = [state + (f" ({one['reason']})" if one["reason"] else "")]
    parts += [f"{found['instance_type']} {found['instance_id']} {found['state']}" for found in one["instances"]]
    if not one["instances"]:
        parts.append("no instance")
    if one["heartbeat_s"] is not None:
        parts.append(f"heard of {_ago(one['heartbeat_s'])}" + (": SILENT" if one["is_silent"] else ""))
    return "; ".join(parts)


def _dollars_text(one: Mapping[str, Any]) -> str:
    known = ("the ledger knows nothing of it yet" if one["spent_usd"] is None
             else f"spent {_usd(one['spent_usd'])}, reserved {_usd(one['reserved_usd'])}")
    if one["unreadable"]:
        return known
    return (f"{known}; at most {_usd(one['projected_usd'])} of {_usd(one['budget_usd'])} by now; burns "
            f"{_usd(one['burn_usd_per_hour'])} an hour")


def _time_text(one: Mapping[str, Any]) -> str:
    left_s = one["lifetime_left_s"]
    age = f"{_duration(one['age_s'])} old"
    if one["unreadable"]:
        return age
    return f"{age}, " + (f"{_duration(left_s)} of its lifetime left" if left_s > 0
                         else f"its lifetime is over since {_duration(-left_s)}")


def _teardown_text(teardown: Mapping[str, Any]) -> str:
    text = (f"ordered {_ago(teardown['ordered_s'])}: {teardown['reason']}; done: "
            f"{', '.join(teardown['steps']) or 'nothing yet'}")
    count = teardown["failures"]
    return text + (f"; its stack could not be deleted {count} time{'s' * (count > 1)}" if count else "")


def _round_text(row: Mapping[str, Any]) -> str:
    value = row.get("episode_return_mean")
    evaluated = row.get("evaluation_return_mean")
    return (f"{row.get('round_index')}: return {'–' if value is None else f'{value:,.1f}'}"
            + ("" if evaluated is None else f", evaluated {evaluated:,.1f}")
            + f", {row.get('actors_returned')} of {row.get('actor_count')} actors, "
            f"{row.get('env_steps_total') or 0:,} steps in all")


def _orphan_lines(orphans: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for one in orphans:
        usd = ("price not known" if one["usd_per_hour"] is None else "costs nothing by itself"
               if not one["usd_per_hour"] else f"{_usd(one['usd_per_hour'])} an hour")
        owner = f"of {one['experiment']}" if one["experiment"] else "of nobody known"
        lines += [f"{one['kind']} {one['name']} {owner}: {one['detail']}; {usd}", f"  {one['remove']}"]
    return lines


def _log_lines(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    return [line for one in groups for line in (f"{one['name']}: {one['stored_bytes']:,} bytes", f"  {one['remove']}")]


def _gone_lines(gone: Iterable[Mapping[str, Any]]) -> list[str]:
    return table([("run", "spent", "budget", "last heard of", "ended"), *(
        (one["run"], _usd(one["spent_usd"] + one["reserved_usd"]), _usd(one["budget_usd"]),
         (one["heard_at"] or "never")[:16].replace("T", " "),
         one["ended"] or (f"unknown; it was {one['state']}" if one["state"] else "unknown")) for one in gone)])


def _guard_lines(guard: Mapping[str, Any] | None) -> list[str]:
    if guard is None:
        return [f"!!! There is no stack {GUARD_STACK}: NOTHING ENDS DEPLOYMENTS BY ITSELF, whatever they cost.",
                "    `make deploy` makes it; what is deployed now has to be ended by hand:",
                "    python -m runtime stop EXPERIMENT"]
    looked = "never looked" if guard["last_tick_s"] is None else f"looked {_ago(guard['last_tick_s'])}"
    lines = [f"{looked}; its rule {guard['rule']} is {guard['rule_state'] or 'not there'}"]
    if not guard["stack_status"].endswith(("CREATE_COMPLETE", "UPDATE_COMPLETE")):
        lines.append(f"its stack is {guard['stack_status']}")
    if guard["problem"]:
        lines.append(f"!!! WHAT THE LEDGER HOLDS IS NOT KNOWN: {guard['problem']}")
    if guard["rule_state"] != "ENABLED":
        lines += ["!!! IT DOES NOT WATCH: nothing ends deployments by itself",
                  f"  aws events enable-rule --name {guard['rule']}"]
    elif guard["last_tick_s"] is None or guard["last_tick_s"] > GUARD_LATE_S:
        lines.append("!!! IT DOES NOT WATCH: nothing ends deployments by itself; see the log of its function "
                     f"{guard['function']}")
    return [*lines, *_subscriber_lines(guard)]


def _subscriber_lines(guard: Mapping[str, Any]) -> list[str]:
    if guard["subscribers"] or not guard["topic"]:
        return [f"{guard['subscribers']} subscribed to its reports"]
    waiting = (f"{guard['unconfirmed']} subscription has yet to be confirmed: see that mailbox"
               if guard["unconfirmed"] else "")
    command = f"aws sns subscribe --topic-arn {guard['topic']} --protocol email --notification-endpoint YOU@EXAMPLE.ORG"
    return ["nobody gets its reports" + (f"; {waiting}" if waiting else ":"), *([] if waiting else [f"  {command}"])]


def _total_lines(totals: Mapping[str, Any]) -> list[str]:
    at_least = "at least " if totals["is_at_least"] else ""
    spent = (f"{_usd(totals['spent_usd'])} spent in all" if totals["is_ledger_there"]
             else "what was spent is not known without the guard's ledger")
    return laid_out({"total": f"{spent}; burning {at_least}{_usd(totals['burn_usd_per_hour'])} an hour now. Modelled, "
                               f"list prices of {PRICES.region}, {PRICES.as_of}; AWS' bill is what counts "
                               "(python -m runtime reconcile EXPERIMENT)"})


def _heading(title: str, lines: list[str], nothing: str) -> list[str]:
    lines = lines or ([nothing] if nothing else [])
    return ["", title.upper(), *lines] if lines else []


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as what is in them, the last one wrapped; nothing where there are only headings."""
    if len(rows) < 2:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        start = "".join(cell.ljust(width + 2) for cell, width in zip(row[:-1], widths, strict=True))
        room = max(COLUMNS - indent, 24)
        wrapped = textwrap.wrap(row[-1], room, break_on_hyphens=False, break_long_words=False) or [""]
        lines += [(start + wrapped[0]).rstrip(), *(" " * indent + rest for rest in wrapped[1:])]
    return lines


def _usd(usd: float) -> str:
    return f"${usd:,.4f}" if usd < 100 else f"${usd:,.2f}"


def _duration(seconds: float) -> str:
    minutes = int(seconds // 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{max(0, int(seconds))} s"


def _ago(seconds: float) -> str:
    return f"{_duration(seconds)} ago"


# Logs


def show_logs(
    client: Client, experiment: str, report: Report, *, of_actors: bool, since_s: float, is_following: bool,
    now: Callable[[], float], sleep: Callable[[float], None],
) -> None:
    """Tells a deployment's log events, the oldest first; where its stack is gone, what the bucket kept instead.

    Args:
        of_actors: The actors' events, not the learner's.
        since_s: How far back.
        is_following: Go on until the stack is gone.
        now: Seconds since 1970.

    Raises:
        OperationError: There is nothing.
        AccountError: AWS cannot be asked.
    """
    formation = client("cloudformation")
    stack = ask(lambda: find_stack(formation, STACK_PREFIX + experiment))
    group = _log_group(formation, stack, "Actor" if of_actors else "Learner") if stack else ""
    if not stack or not group:
        report(f"{STACK_PREFIX}{experiment} " + ("has no log group yet, or no more" if stack else "is not deployed")
               + "; what the bucket kept:")
        return show_kept(client, experiment, report)
    tail = _Tail(client("logs"), group, report, since_ms=int(1000 * (now() - since_s)))
    while tail.show() and is_following:
        sleep(POLL_S)
        if not _is_there(formation, stack["StackId"]):
            break
    if not tail.shown:
        report(f"no events in {group} in the last {since_s / 60:g} minutes; --since MINUTES goes further back, a week "
               "at most")
    if not _is_there(formation, stack["StackId"]):
        report(f"{STACK_PREFIX}{experiment} is gone; what the bucket kept:")
        show_kept(client, experiment, report)
    return None


def _is_there(formation: Any, stack_id: str) -> bool:
    stack = ask(lambda: find_stack(formation, stack_id))
    return stack is not None and stack["StackStatus"] != "DELETE_COMPLETE"


def _log_group(formation: Any, stack: Mapping[str, Any], whose: str) -> str:
    """Its name; empty where there is none. A stack has its outputs only when all of it is there."""
    named = outputs_of(stack).get(f"{whose}Logs")
    if named:
        return named
    resources = pages_of(formation, "list_stack_resources", "StackResourceSummaries", StackName=stack["StackId"])
    return next((one["PhysicalResourceId"] for one in resources if one["ResourceType"] == "AWS::Logs::LogGroup"
                 and one["LogicalResourceId"].startswith(f"{whose}Logs") and one.get("PhysicalResourceId")
                 and one["ResourceStatus"] != "DELETE_COMPLETE"), "")


class _Tail:
    """One log group's events, each once.

    Attributes:
        shown: How many.
    """

    def __init__(self, client: Any, group: str, report: Report, *, since_ms: int) -> None:
        self._client, self._group, self._report, self._since_ms = client, group, report, since_ms
        self._seen: dict[str, int] = {}
        self.shown = 0

    def show(self) -> bool:
        """Tells what is new; False where the group is gone.

        Raises:
            AccountError: CloudWatch Logs cannot be asked.
        """
        events = ask_if_there(lambda: pages_of(self._client, "filter_log_events", "events", logGroupName=self._group,
                                               startTime=self._since_ms))
        if events is None:
            return False
        for event in sorted(events, key=lambda event: event["timestamp"]):
            if event["eventId"] not in self._seen:
                self._tell(event)
        # Late ones are looked for again; what is older than that need not be remembered.
        newest_ms = max((event["timestamp"] for event in events), default=self._since_ms)
        self._since_ms = max(self._since_ms, newest_ms - int(1000 * _LATE_EVENTS_S))
        self._seen = {event["eventId"]: event["timestamp"] for event in events if event["timestamp"] >= self._since_ms}
        return True

    def _tell(self, event: Mapping[str, Any]) -> None:
        at = datetime.datetime.fromtimestamp(event["timestamp"] / 1000, datetime.UTC).strftime("%m-%d %H:%M:%S")
        self._report(f"{at} {event['logStreamName']}  {event['message'].rstrip()}")
        self.shown += 1


def show_kept(client: Client, experiment: str, report: Report) -> None:
    """Tells what the bucket has of the experiment's newest run: failures to boot, its end, and its last events.

    Raises:
        OperationError: It has nothing.
        AccountError: The bucket cannot be read.
    """
    runs = find_runs(client, find_bucket(client), experiment)
    if not runs:
        raise OperationError(f"the bucket has no run of {experiment}")
    run, files = max(((run, run.files()) for run in runs),
                     key=lambda pair: max((file.changed_at_s for file in pair[1].values()), default=0.0))
    report(run.url)
    for name in sorted((name for name in files if name.startswith("boot/")), key=lambda name: files[name].changed_at_s):
        record = run.record(name)
        report(f"\n{name}, {iso(files[name].changed_at_s)}: {record.get('message', '')}")
        for line in str(record.get("log", "")).splitlines()[-_BOOT_LINES_SHOWN:]:
            report(f"  {line}")
    for name in ("refused.json", "ended.json"):
        if name in files:
            report(f"\n{name}")
            for line in run.text(name).splitlines():
                report(f"  {line}")
    events = run.text(layout.EVENTS).splitlines()[-_EVENTS_SHOWN:]
    if events:
        report("\nevents.jsonl, the end")
        for line in events:
            report(f"  {line}")


# Results


def results_lines(runs: Iterable[KeptRun]) -> list[str]:
    """A table of runs.

    Raises:
        AccountError: The bucket cannot be read.
    """
    rows = [("run", "rounds", "evaluated", "spent", "last change", "ended")]
    for found in map(summarise, runs):
        value = found["evaluation_return"]
        rows.append((found["run"], str(found["rounds"]), "–" if value is None else f"{value:,.1f}",
                     "–" if found["spent_usd"] is None else _usd(found["spent_usd"]),
                     iso(found["changed_at_s"])[:16].replace("T", " "), found["ended"] or "not yet, or unknown"))
    return table(rows)


def choose_run(runs: list[KeptRun], name: str | None, experiment: str) -> KeptRun | None:
    """The one of that name, or the only one; None if there are several and none is named.

    Raises:
        OperationError: There is none.
    """
    if not runs:
        raise OperationError(f"the bucket has no run of {experiment}")
    if name is None:
        return runs[0] if len(runs) == 1 else None
    chosen = next((run for run in runs if run.run == name), None)
    if chosen is None:
        raise OperationError(f"--run {name}: the bucket has no such run of {experiment}; there are: "
                             f"{', '.join(run.run for run in runs)}")
    return chosen


def continue_lines(run: KeptRun, out: Path, experiment: str, file: Path | None) -> list[str]:
    """How to look at a downloaded run, and how to go on with it, here or in AWS.

    Args:
        out: Where it was downloaded to.
        file: The experiment file that the user named; None if there is none.

    Raises:
        ExperimentError: The run's config.yaml is damaged.
    """
    lines = [f"evaluate it:      python -m runtime evaluate {out}"] if (out / layout.POLICY).exists() else []
    config = out / layout.CONFIG
    if not config.exists():
        return [*lines, "it cannot be gone on with: it was never begun"]
    stored = load_experiment(config)
    budget_usd = 2 * stored.budget.usd
    source, named = (file, load_experiment(file)) if file and _is_same(file, stored) else (config, stored)
    local = "" if named.fleet.kind in ("auto", "local") else " --set fleet.kind=local"
    lines += [f"go on here:       python -m runtime train {source} --out {out} --resume{local} "
              f"--set budget.usd={budget_usd:g}",
              "                  (modelled dollars from here on; the bucket does not hear of it)"]
    if stored.learner.device == "cuda":
        lines.append("                  (it trained on a GPU: this machine needs one too)")
    return [*lines, f"go on in AWS:     a larger budget.usd in {file or f'{experiment}.yaml'}, then make deploy "
                    f"EXPERIMENT={file or f'{experiment}.yaml'} ARGS=\"--run {run.run}\""]


def _is_same(file: Path, stored: Experiment) -> bool:
    """Whether the file would go on with that run."""
    try:
        named, known = unchangeable(load_experiment(file).resolved()), unchangeable(stored)
    except ExperimentError:
        return False
    # What the file leaves open follows from its environment, which is not made here.
    return all(value in (None, "auto") or known.get(path) == value for path, value in named.items())


# The bill


def run_days(run: KeptRun, now_s: float) -> tuple[datetime.date, datetime.date, float | None]:
    """The first and the last day, by UTC, that AWS may bill for a run, and how long ago it ended, if it has.

    Raises:
        AccountError: The bucket cannot be read.
        OperationError: Nothing tells.
    """
    files = run.files()
    if not files:
        raise OperationError(f"{run.url} is empty: nothing tells when the run began")
    began_s = _moment(run.first_line(layout.EVENTS).get("time"))
    began_s = min(file.changed_at_s for file in files.values()) if began_s is None else began_s
    ended_s = _moment(run.record(layout.ENDED).get("ended_at"))
    today = _day(now_s)
    last = today if ended_s is None else min(_day(ended_s) + datetime.timedelta(days=1), today)
    return min(_day(began_s), last), last, None if ended_s is None else now_s - ended_s


def counted(client: Client, run: KeptRun, experiment: str) -> tuple[float | None, str]:
    """What the run itself counted, in dollars, and where that stands.

    Raises:
        AccountError or LedgerError: AWS cannot be asked.
    """
    ledger = find_ledger(client)
    entry = ledger.get(f"{experiment}/{run.run}") if ledger else None
    if entry is not None:
        return entry.spent_usd, "the guard's ledger"
    return spent_usd(run, run.rows(layout.ROUNDS)), f"{layout.LEDGER} in the bucket"


def _day(at_s: float) -> datetime.date:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).date()


def _moment(text: Any) -> float | None:
    """Seconds since 1970 of an ISO 8601 time; None if it is none."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return None
