"""Shared code of the comparisons with other libraries: benchmarks/parity_ppo.py and benchmarks/parity_impact.py."""
