"""The registry of updaters: who turns batches into policy versions, by ``learner.kind``.

Each value names a class as ``module:class``, because configuration lies below the room that it names; see
`runtime.learner.make_updater`. docs/design/add-an-updater.md adds one.
"""

from __future__ import annotations

UPDATERS = {
    "instance": "runtime.learner.updater:InPlaceUpdater",
    "function": "runtime.learner.remote.updater:FunctionUpdater",
}
