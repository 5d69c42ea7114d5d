"""Backends: where a run gets its cache, fleet, meter and safekeeping from."""
