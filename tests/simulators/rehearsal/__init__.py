"""The whole life of a deployment on this machine: ``python -m tests.simulators.rehearsal``."""

GUARD_FOLDER_VARIABLE = "REHEARSAL_GUARD_FOLDER"
"""Where the guard's zip is unpacked."""
GUARD_DEATHS_VARIABLE = "REHEARSAL_GUARD_DEATHS"
"""A file that says what the guard died of; where it is set, the guard dies."""
LEG_VARIABLE = "REHEARSAL_LEG_S"
"""How long a leg of a coordinator may last, by the clock."""
