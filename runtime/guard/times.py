"""How long things may take: how often the guard looks, what it waits for, and what an ending is taken to last."""

INTERVAL_S = 60.0
"""The guard looks so often."""
HEARTBEAT_S = 30.0
"""A learner says so often that it is there, and hears then that it shall end."""
ALIVE_S = 3 * HEARTBEAT_S
"""A learner that was heard of within this time is there."""

MAKING_LIMIT_S = 1200.0
"""Everything but the learner's group is made by then, or the deployment has failed: CloudFormation would wait on."""
MISSING_S = 2700.0
"""A deployment whose learner was not heard of by then has failed; CloudFormation gave up on it before."""
STARTING_S = 1500.0
"""A learner may boot, or be replaced, for so long without another sign."""
LATE_S = 600.0
"""A learner that trains may be silent for so long: a replacement of a spot instance says that it boots before."""

STOP_GRACE_S = 120.0
"""A learner that is there gets so long to put its results into the bucket."""
TERMINATION_S = 60.0
"""Ending an instance is taken to last so long, until it is not billed any more."""
LEG_S = 900.0
"""A leg of a coordinator ends by then, Lambda's limit; nobody can end it earlier."""
LEG_BEGINNING_S, LEG_ENDING_S = 120.0, 45.0
"""Of a leg, what its start is taken to need until the first round, and what is kept for its summary and last upload."""
INTERFACES_S = 300.0
"""Lambda gets so long to delete the network interfaces of a function that has left the network: it takes about four
minutes as a rule, and 20 at most. CloudFormation does not wait for the rest either, and nothing is billed for it."""
CACHE_DELETION_S = 900.0
"""Deleting a cache is taken to last so long."""
