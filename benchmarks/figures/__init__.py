"""The figures of the papers, each measured by one command (docs/figures.md)."""
