"""The learner function: ``handler(event, context)`` makes one update, and leaves its result in the store.

An event that names a ``job`` asks for one gradient of an update instead (`runtime.learner.remote.gradients`).

The same code runs inside AWS Lambda and in a process of this machine. It needs torch, but no network besides the store.
A sandbox keeps the learner that it trained last: if the next update starts from that very state, nothing is loaded. It
never keeps a learner whose result was not the one that counts.

torch is imported when the first invocation needs it. Lambda gives a sandbox ten seconds to start. If that takes longer,
it starts again and is billed twice; from a cold image torch may take that long (aws/aws-lambda-base-images#223).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lambda_actor.events import check_event
from runtime.errors import RunError
from runtime.learner import make_learner
from runtime.learner.remote.messages import decode_batch, encode_result, stored_state
from runtime.learner.remote.places import open_store
from runtime.learner.remote.store import batch_name, result_name
from runtime.learner.spec import spec_of
from runtime.ports.learning import Learner

EVENT_FIELDS: dict[str, type] = {
    "invocation_id": str,
    "attempt": int,
    "store": str,
    "token": str,
    "policy_version": int,
    "progress": float,
    "learner": dict,
}
"""What an event must carry: where objects lie, what their names begin with, the version that is updated, and what the
learner is made of. ``attempt`` is above 0 if the update may have been made already."""
TRAINED, MADE_BEFORE = "trained", "made_before"


class Sandbox:
    """What stays warm between two invocations in one process."""

    def __init__(self) -> None:
        self.key = ""
        self.learner: Learner | None = None


sandbox = Sandbox()


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Makes the next policy version from a batch, or computes a gradient, unless somebody has done so before.

    Args:
        event: See `EVENT_FIELDS`, and those of `gradients`.
        context: Lambda's context object; not used.

    Returns:
        ``invocation_id``, ``status`` (trained | computed | made_before), ``samples`` that were trained on; of an update
        also ``was_warm``.

    Raises:
        EventError: A field is missing or of the wrong type.
        StoreError: The store cannot be read or written.
        RunError: State or batch are not there, or belong to another learner.
        WireError: State or batch are damaged.
    """
    if "job" in event:
        # With torch, as making a learner does: see the module's beginning.
        from runtime.learner.remote import gradients

        return gradients.answer(event)
    check_event(event, EVENT_FIELDS)
    store, token, version = open_store(event["store"]), event["token"], event["policy_version"]
    name = result_name(token, version + 1)
    answer = {"invocation_id": event["invocation_id"]}
    if event["attempt"] and store.get(name) is not None:
        return answer | {"status": MADE_BEFORE, "samples": 0, "was_warm": False}
    key = f"{event['store']} {token} {json.dumps(event['learner'], sort_keys=True)}"
    learner, sandbox.learner = sandbox.learner, None
    was_warm = learner is not None and sandbox.key == key and learner.policy_version == version
    if learner is None or not was_warm:
        learner = make_learner(spec_of(event["learner"]), device="cpu")
        learner.set_state(stored_state(store, token, version))
    data = store.get(batch_name(token, version))
    if data is None:
        raise RunError(f"the batch of version {version} is not in the store")
    update = learner.update(decode_batch(data), progress=event["progress"])
    is_first = store.put(name, encode_result(learner.get_state(), update))
    if is_first:
        sandbox.key, sandbox.learner = key, learner
    return answer | {"status": TRAINED if is_first else MADE_BEFORE, "samples": len(update.samples.advantages),
                     "was_warm": was_warm}
