"""The registry of fleets: where actors can run, by ``fleet.kind``.

Each value names a factory as ``module:function``, because configuration lies below the room that it names; see
`runtime.fleet.make_fleet`. docs/design/add-a-fleet.md adds one.
"""

from __future__ import annotations

FLEETS = {
    "local": "runtime.fleet.local:make_local_fleet",
    "lambda": "runtime.fleet.aws_lambda:make_lambda_fleet",
    "ray": "runtime.fleet.ray_cluster:make_ray_fleet",
}
