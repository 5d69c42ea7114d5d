"""Time limits: how often the guard looks, how long it waits, and how long endings are assumed to take."""

INTERVAL_S = 60.0
"""Time between two ticks of the guard."""
HEARTBEAT_S = 30.0
"""Time between two heartbeats of a learner, each of which also tells it whether it must end."""
ALIVE_S = 3 * HEARTBEAT_S
"""A learner whose last heartbeat is newer than this is alive."""

MAKING_LIMIT_S = 1200.0
"""Time to make everything but the learner's group. CloudFormation would wait longer."""
MISSING_S = 2700.0
"""Time until the learner's first heartbeat. CloudFormation gives up earlier."""
STARTING_S = 1500.0
"""Time that a learner may boot, or be replaced, without another heartbeat."""
LATE_S = 600.0
"""Time that a training learner may be silent. A spot instance's replacement reports its boot earlier."""

STOP_GRACE_S = 120.0
"""Time for a live learner to upload its results."""
TERMINATION_S = 60.0
"""Assumed time until a terminated instance is no longer billed."""
LEG_S = 900.0
"""Longest leg of a coordinator: Lambda's limit. It cannot be ended earlier."""
LEG_BEGINNING_S, LEG_ENDING_S = 120.0, 45.0
"""Parts of a leg: its assumed start until the first round, and the time kept for its summary and last upload."""
CACHE_DELETION_S = 900.0
"""Assumed time to delete a cache."""
