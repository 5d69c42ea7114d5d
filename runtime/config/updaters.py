"""The registry of updaters: who turns batches into policy versions, by ``learner.kind``.

Each value names a class as ``module:class``, because configuration lies below the room that it names; see
`runtime.learner.make_updater`. docs/design/add-an-updater.md adds one.
"""

from __future__ import annotations

UPDATERS = {
    "instance": "runtime.learner.updater:InPlaceUpdater",
    "function": "runtime.learner.remote.updater:FunctionUpdater",
    "stellaris": "runtime.learner.stellaris.updater:StellarisUpdater",
}
EQUAL_UPDATERS = ("instance", "function")
"""Their results are equal, to the bit: a run may be continued with another one of them."""
FUNCTION_UPDATERS = ("function", "stellaris")
"""Their learners are functions: there is no instance, and another function runs the loop."""
STELLARIS_PLACES = ("processes", "virtual", "lambda", "ray")
"""Where learner functions of Stellaris may run, by ``learner.stellaris.place``; a backend has some of them."""
