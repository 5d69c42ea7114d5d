"""Shipped stand-ins for the parts of a run, for tests of new parts."""
