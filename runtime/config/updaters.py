"""The registry of updaters: who turns batches into policy versions, by ``learner.updater``.

Each value names a class as ``module:class``, because configuration lies below the room that it names; see
`runtime.learner.make_updater`. docs/design/add-an-updater.md adds one.
"""

from __future__ import annotations

UPDATERS = {
    "in_place": "runtime.learner.updater:InPlaceUpdater",
}
