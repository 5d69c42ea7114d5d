"""The learner function: ``handler(event, context)`` makes one update and puts its result into the store.

An event that names a ``job`` asks for one gradient of an update instead (`runtime.learner.functions.gradients`).

The same code runs inside AWS Lambda and in a local process. It needs torch, but no network except the store. A sandbox
keeps the learner that it trained last, and loads nothing if the next update starts from exactly that state. It never
keeps a learner whose result did not count.

torch is imported by the first invocation that needs it. Lambda gives a sandbox ten seconds to start. If that takes
longer, it starts again and is billed twice. From a cold image torch may take that long
(aws/aws-lambda-base-images#223).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from runtime.learner import make_learner
from runtime.learner.functions.messages import decode_state, encode_result, stored, stored_state
from runtime.learner.functions.places import open_store
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import Batch, Learner
from runtime.learner.spec import spec_of

MADE, MADE_BEFORE = "made", "made_before"


class LearnerSandbox:
    """Learner kept warm between two invocations of one process."""

    def __init__(self) -> None:
        self.key = ""
        self.learner: Learner | None = None


sandbox = LearnerSandbox()


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Makes the next policy version from a batch, or computes a gradient, unless the store has the result.

    Args:
        event: The place of the ``store`` and the ``token`` that begins the objects' names. For an update also its
            number of earlier tries, ``attempt``, the ``policy_version`` to update, the ``progress``, and the
            ``learner``'s specification. For a gradient see `gradients.answer`.
        context: Lambda's context object; not used.

    Returns:
        ``invocation_id``, ``status`` (made | made_before), number of trained ``samples``; for an update also
        ``was_warm``.

    Raises:
        StoreError: The store cannot be read or written.
        RunError: State or batch are missing.
        WireError: State or batch are damaged.
    """
    if "job" in event:
        # Imports torch, as making a learner does; see the module's docstring.
        from runtime.learner.functions import gradients

        return gradients.answer(event)
    store, token, version = open_store(event["store"]), event["token"], event["policy_version"]
    name = object_name(token, "result", version + 1)
    answer = {"invocation_id": event["invocation_id"]}
    if event["attempt"] and store.get(name) is not None:
        return answer | {"status": MADE_BEFORE, "samples": 0, "was_warm": False}
    key = f"{event['store']} {token} {json.dumps(event['learner'], sort_keys=True)}"
    learner, sandbox.learner = sandbox.learner, None
    was_warm = learner is not None and sandbox.key == key and learner.policy_version == version
    if learner is None or not was_warm:
        learner = make_learner(spec_of(event["learner"]), device="cpu")
        learner.set_state(stored_state(store, token, version))
    batch = Batch(**decode_state(stored(store, object_name(token, "batch", version))).arrays)
    update = learner.update(batch, progress=event["progress"])
    is_first = store.put(name, encode_result(learner.get_state(), update))
    if is_first:
        sandbox.key, sandbox.learner = key, learner
    return answer | {
        "status": MADE if is_first else MADE_BEFORE,
        "samples": len(update.samples.advantages),
        "was_warm": was_warm,
    }
