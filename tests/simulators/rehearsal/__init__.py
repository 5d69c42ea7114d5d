"""The whole life of a deployment on this machine: ``python -m tests.simulators.rehearsal``."""

GUARD_FOLDER_VARIABLE = "REHEARSAL_GUARD_FOLDER"
"""Folder of the unpacked guard's zip."""
GUARD_DEATHS_VARIABLE = "REHEARSAL_GUARD_DEATHS"
"""File that lists the calls at which the guard died. If it is set, the guard dies."""
