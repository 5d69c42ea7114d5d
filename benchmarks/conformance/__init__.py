"""Finds which environments train here, which are refused and why, and which are broken.

docs/environments_table.md has the results.
"""
