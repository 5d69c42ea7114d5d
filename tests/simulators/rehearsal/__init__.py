"""The whole life of a deployment on this machine: ``python -m tests.simulators.rehearsal``."""

GUARD_FOLDER_VARIABLE = "REHEARSAL_GUARD_FOLDER"
"""Folder of the unpacked guard's zip."""
