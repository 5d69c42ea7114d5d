"""The page of verdicts: papers/README.md, from papers/protocol.yaml and papers/results."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pages import rendered, table
from papers.estimates import SEEDS, percentage, text
from papers.measures import KINDS
from papers.pictures import data_hash, drawn_from
from papers.runs import Results
from papers.study import settings_hash

REPRODUCED, NOT, UNDECIDED = "reproduced", "not reproduced", "undecided"
UNMEASURED, OPEN = "not measured yet", "open"
HEADS = ["Where", "Claim", "Paper", "Ours", "Seeds", "Verdict", "Why"]


@dataclass(frozen=True)
class Page:
    """The protocol and the results that a page is made of.

    Attributes:
        folder: It holds protocol.yaml, results/ and README.md.
        protocol: What protocol.yaml has.
        results: The results of its studies.
    """

    folder: Path
    protocol: Mapping[str, Any]
    results: Results

    @classmethod
    def of(cls, folder: Path) -> Page:
        """Reads a folder."""
        protocol = yaml.safe_load((folder / "protocol.yaml").read_text())
        return cls(folder, protocol, Results(folder / "results", protocol["studies"]))

    @property
    def path(self) -> Path:
        """README.md."""
        return self.folder / "README.md"

    def picture(self, paper: str) -> Path:
        """Returns the path of a paper's picture."""
        return self.folder / "results" / f"{paper}.png"

    def text(self) -> str:
        """Returns README.md."""
        papers = []
        for name, paper in self.protocol["papers"].items():
            claims = [claim for claim in self.protocol["claims"] if claim["paper"] == name]
            order = [*paper["results"], ""]
            claims.sort(key=lambda one: next(at for at, of in enumerate(order) if _is_of(one, of)))
            rows = [self.row(claim) for claim in claims]
            verdicts = [
                row[HEADS.index("Verdict")]
                for row, claim in zip(rows, claims, strict=True)
                if not claim.get("is_ours")
            ]
            papers.append(
                {
                    "name": name,
                    **paper,
                    "summary": _summary(verdicts),
                    "has_picture": "picture" in paper
                    and drawn_from(self.results, paper["picture"]),
                    "table": table(HEADS, rows),
                }
            )
        studies: dict[tuple[str, str], list[str]] = {}
        for name, study in self.protocol["studies"].items():
            studies.setdefault((study["question"], study.get("departures", "")), []).append(name)
        contents = [self.results.content(study) for study in self.protocol["studies"]]
        return rendered(
            Path(__file__).with_suffix(".md"),
            papers=papers,
            studies=studies,
            changes=self.protocol["changes"],
            core_hours=sum(content.get("core_hours", 0.0) for content in contents),
        )

    def row(self, claim: Mapping[str, Any]) -> list[str]:
        """Returns a claim's row."""
        where = claim["where"] + " (our question)" * claim.get("is_ours", False)
        head = [where, _sentence(claim["claim"]), claim.get("value", "–")]
        if "open" in claim:
            return [*head, "–", "–", OPEN, f"{_sentence(claim['open']).rstrip('.')}."]
        measure = dict(claim.get("measure", {}))
        kind = KINDS.get(measure.pop("kind", ""))
        estimates = kind(self.results, **measure) if kind else {}
        counts = [str(one["seeds"]) for one in estimates.values()]
        if set(counts) <= {"0"}:
            return [*head, "–", "–", UNMEASURED, claim.get("note", "")]
        verdicts = {label: judged(claim, one) for label, one in estimates.items()}
        shown = (
            _shown(claim, label if len(estimates) > 1 else "", one)
            for label, one in estimates.items()
            if one["seeds"]
        )
        return [
            *head,
            "<br>".join(shown),
            counts[0]
            if set(counts) == {str(len(SEEDS))}
            else f"{' / '.join(counts)} of {len(SEEDS)}",
            overall(
                {label: verdict for label, (verdict, _) in verdicts.items()},
                is_one_enough=claim.get("is_one_enough", False),
            ),
            f"{_reasons(verdicts)} {claim.get('note', '')}".strip(),
        ]

    def problems(self) -> Iterable[str]:
        """Yields a line for everything that is stale, missing or of nothing."""
        problems = [*self._stale_results(), *self.wrong_claims()]
        yield from problems
        if not problems and (not self.path.exists() or self.path.read_text() != self.text()):
            yield f"{self.path.name}: is not what `python -m papers` writes now"
        for name, paper in self.protocol["papers"].items():
            spec = paper.get("picture")
            current = drawn_from(self.results, spec) if spec else ""
            if current and data_hash(self.picture(name)) != current:
                yield f"{self.picture(name).name}: is not drawn from the results as they are"

    def _stale_results(self) -> Iterable[str]:
        for path in sorted(self.results.folder.glob("*.json")):
            study = self.protocol["studies"].get(path.stem)
            if study is None:
                yield f"{path.name}: belongs to no study of the protocol"
                continue
            hashes = self.results.content(path.stem).get("hashes", {})
            for arm in self.results.runs(path.stem) if "arms" in study else ():
                if arm not in study["arms"]:
                    yield f"{path.name}: arm {arm!r} is not in the protocol"
                elif hashes.get(arm) != settings_hash(study, arm):
                    yield (
                        f"{path.name}: arm {arm!r} was trained with other settings than those of protocol.yaml "
                        f"and {study.get('file', 'its program')} now; train it again"
                    )

    def wrong_claims(self) -> Iterable[str]:
        """Yields a line for each claim that no page can be written with, and for each result without a row."""
        papers = self.protocol["papers"]
        covered = set()
        for claim in self.protocol["claims"]:
            name = f"claim {claim['where']!r} of {claim['paper']}"
            if claim["paper"] not in papers:
                yield f"{name}: allowed papers: {' | '.join(papers)}"
                continue
            covered.update(
                (claim["paper"], result)
                for result in papers[claim["paper"]]["results"]
                if _is_of(claim, result)
            )
            if "open" in claim and "measure" in claim:
                yield f"{name}: has both `measure` and `open`"
            yield from (f"{name}: {problem}" for problem in self._wrong_measure(claim))
        for paper, about in papers.items():
            for result in about["results"]:
                if (paper, result) not in covered:
                    yield f"{paper}: {result} has no row"

    def _wrong_measure(self, claim: Mapping[str, Any]) -> Iterable[str]:
        """A kind may be missing before its studies have results: what it measures is in the protocol earlier."""
        measure = claim.get("measure", {})
        studies = [measure[key] for key in ("study", "rllib") if key in measure]
        studies += measure.get("studies", {}).values()
        for name in studies:
            study = self.protocol["studies"].get(name)
            if study is None:
                yield f"study {name!r} is not in the protocol"
                continue
            arms = [measure[key] for key in ("ours", "theirs", "arm") if key in measure]
            for arm in arms:
                if arm not in study["arms"]:
                    yield f"arm {arm!r} is not in study {name!r}"
        if measure and measure["kind"] not in KINDS and any(map(self.results.content, studies)):
            yield f"measure.kind = {measure['kind']!r}; allowed: {' | '.join(KINDS)}"


def judged(claim: Mapping[str, Any], estimate: Mapping[str, Any]) -> tuple[str, str]:
    """Returns an estimate's verdict and why. There is none before all seeds are trained."""
    if estimate["seeds"] < len(SEEDS):
        return UNMEASURED, "being measured"
    middle, low, high = (
        estimate[key] for key in ("interquartile_mean", "interval_low", "interval_high")
    )
    if (bound := claim.get("at_most", claim.get("within"))) is not None:
        least = -bound if "within" in claim else -math.inf
        if least <= low and high <= bound:
            return REPRODUCED, "the whole interval is within the bound"
        if high < least or low > bound:
            return NOT, "the whole interval is beyond the bound"
        return UNDECIDED, "the interval includes the bound"
    half = claim.get("effect", 0.0) / 2.0
    if low > 0.0 and middle >= half:
        return (
            REPRODUCED,
            "at least half of the paper's effect" if half else "the interval is above zero",
        )
    if high < 0.0:
        return NOT, "the opposite: the interval is below zero"
    if high < half:
        return (
            NOT,
            f"{'above' if low > 0.0 else 'the interval includes'} zero, but is below half of the paper's effect",
        )
    return (
        UNDECIDED,
        "above zero, perhaps half of the paper's effect"
        if low > 0.0
        else "the interval includes zero",
    )


def overall(verdicts: Mapping[str, str], *, is_one_enough: bool) -> str:
    """Returns the verdict on a claim about several environments.

    Args:
        verdicts: By environment.
        is_one_enough: One that is reproduced decides, as for "up to". Otherwise one that is not reproduced does.
    """
    decisive, otherwise = (REPRODUCED, NOT) if is_one_enough else (NOT, REPRODUCED)
    labels = [label for label, verdict in verdicts.items() if verdict == decisive]
    if labels:
        where = f" ({', '.join(labels)})" if len(labels) < len(verdicts) else ""
        return f"**{decisive}**{where}"
    if UNMEASURED in verdicts.values():
        judged = [
            f"{name}: {verdict}" for name, verdict in verdicts.items() if verdict != UNMEASURED
        ]
        return f"{UNMEASURED} ({', '.join(judged)})" if judged else UNMEASURED
    return f"**{otherwise if set(verdicts.values()) == {otherwise} else UNDECIDED}**"


def _is_of(claim: Mapping[str, Any], result: str) -> bool:
    """Returns whether a claim is about a result: its ``where`` has the result's name."""
    return re.search(rf"{re.escape(result)}(?!\w)", claim["where"]) is not None


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _shown(claim: Mapping[str, Any], label: str, estimate: Mapping[str, Any]) -> str:
    unit = claim.get("unit", "%")
    value = (
        percentage(estimate) if unit == "%" else text(estimate, 2, f" {unit}".rstrip(), sign=True)
    )
    note = f" ({estimate['note']})" if estimate.get("note") else ""
    return f"{label} {value}{note}".strip()


def _reasons(verdicts: Mapping[str, tuple[str, str]]) -> str:
    """Returns a sentence for each reason, with its labels unless all have the same."""
    labels: dict[str, list[str]] = {}
    for label, (_, reason) in verdicts.items():
        labels.setdefault(reason, []).append(label)
    if len(labels) == 1:
        return f"{_sentence(*labels)}."
    return " ".join(f"{', '.join(names)}: {reason}." for reason, names in labels.items())


def _summary(verdicts: list[str]) -> str:
    bare = [verdict.split(" (")[0].strip("*") for verdict in verdicts]
    counts = {word: bare.count(word) for word in (REPRODUCED, NOT, UNDECIDED, UNMEASURED, OPEN)}
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count)
