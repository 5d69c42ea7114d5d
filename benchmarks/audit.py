"""Published verdicts that the papers' authors could contest, and what a fair measurement would change.

Pages print the note beside the verdict. Whoever measures it with the fair setting removes the entry here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Objection = tuple[str, str]
"""How our setting differs from the authors', and the fair setting."""

_TABLE_1 = ("the epochs, λ, steps per actor and minibatch differ from the authors' artifact", "the artifact's settings")
_GPU = ("the learner is the paper's GPU instance, but its GPU is not used", "bills and times with and without the GPU")
_MINIONS = ("MinionsRL did not run with its own learning rate, minibatch, actor counts and 100 training episodes",
            "its own settings")
_FIXED_ROUNDS = ("an asynchronous round has a fixed number of steps, so boosting adds no samples",
                 "rounds of one fragment from each actor")
_SHORT = ("64 warm actors are billed for five minutes, but a training takes half a minute",
          "trainings that take minutes, compared at equal return")

OBJECTIONS: Mapping[str, Sequence[Objection]] = {
    "nitro_2": [_TABLE_1],
    "nitro_3": [("we left Table 1's settings because they hardly move a policy, but our epochs, λ, steps per actor and "
                 "minibatch differ from the authors' artifact", "the artifact's settings")],
    "nitro_4": [_TABLE_1],
    "nitro_5": [_GPU],
    "nitro_7": [("only one of the paper's six environments was measured, with two replays",
                 "six replays, and more environments")],
    "nitro_10": [_TABLE_1, _GPU],
    "nitro_11": [_FIXED_ROUNDS, _GPU],
    "nitro_14": [_FIXED_ROUNDS, _TABLE_1, _GPU, _SHORT],
    "nitro_15": [("the adaptive rule aims at a return of 3,000, which no run comes near, so it always starts eight "
                  "actors", "a target of 600, as in the artifact, and a retrained scheduler"), _TABLE_1, _GPU],
    "nitro_16": [_TABLE_1, _GPU],
    "nitro_17": [_TABLE_1, _GPU, _SHORT],
    "nitro_18": [("the actors take only 0.05 s, and the machine was busy and has two cores",
                  "actors that take seconds, on an idle machine")],
    "nitro_20": [_TABLE_1, _GPU],
    "minions_table_2": [_MINIONS],
    "minions_5": [_MINIONS],
    "minions_6": [_MINIONS],
    "a learned scheduler": [_MINIONS],
    "Table 1's settings": [_TABLE_1],
    "Nitro's signal": [("8 to 32 actors and a decay of 0.98 competed with a tuned fixed number, and the learner is "
                        "most of the bill", "8 to 64 actors against 16")],
    "boosted trainings": [("boosting goes from 8 to at most 32 actors, and the learner is most of the bill",
                           "8 to 64 actors against 16")],
    "Stellaris to the target": [
        ("the verdict is *not* as soon as one Stellaris seed misses the target, even if the baseline misses more often",
         "misses counted alike on both sides, and the artifact's learning rate of 5e-5 as a further arm")],
}
"""By the name of a figure's module, or of a verdict that is in no figure."""


def note(name: str) -> str:
    """Returns what a page says beside a verdict; empty if nobody contests it."""
    objections = OBJECTIONS.get(name, ())
    if not objections:
        return ""
    differences, remedies = (_listed(part) for part in zip(*objections, strict=True))
    return f"Under audit: {differences}; to be rerun with {remedies}."


def _listed(parts: Sequence[str]) -> str:
    """Numbers several parts."""
    return parts[0] if len(parts) == 1 else ", ".join(f"({number}) {part}" for number, part in enumerate(parts, 1))
