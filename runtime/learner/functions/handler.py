"""The learner function: ``handler(event, context)`` makes one update and puts its result into the store.

An event that names a ``job`` asks for one gradient of an update instead (`runtime.learner.functions.gradients`).

The same code runs inside AWS Lambda and in a local process. It needs torch, but no network except the store. It keeps
nothing between two updates.

torch is imported by the first invocation that needs it. Lambda gives a sandbox ten seconds to start. If that takes
longer, it starts again and is billed twice. From a cold image torch may take that long
(aws/aws-lambda-base-images#223).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.learner import make_learner
from runtime.learner.functions import open_store
from runtime.learner.functions.messages import (
    decode_state,
    encode_result,
    spec_of,
    stored,
    stored_state,
)
from runtime.learner.functions.store import object_name
from runtime.learner.interfaces import Batch


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Makes the next policy version from a batch, or computes a gradient. The first result in the store remains.

    Args:
        event: The place of the ``store`` and the ``token`` that begins the objects' names. For an update also its
            ``policy_version``, the ``progress``, and the ``learner``'s specification. For a gradient see
            `gradients.put_gradient`.
        context: Lambda's context object; not used.

    Returns:
        ``invocation_id``.

    Raises:
        StoreError: The store cannot be read or written.
        RunError: State or batch are missing.
        WireError: State or batch are damaged.
    """
    answer = {"invocation_id": event["invocation_id"]}
    if "job" in event:
        # Imports torch, as making a learner does; see the module's docstring.
        from runtime.learner.functions import gradients

        gradients.put_gradient(event)
        return answer
    store = open_store(event["store"])
    token = event["token"]
    version = event["policy_version"]
    learner = make_learner(spec_of(event["learner"]), device="cpu")
    learner.set_state(stored_state(store, token, version))
    batch = Batch(**decode_state(stored(store, object_name(token, "batch", version))).arrays)
    update = learner.update(batch, progress=event["progress"])
    store.put(object_name(token, "result", version + 1), encode_result(learner.get_state(), update))
    return answer
