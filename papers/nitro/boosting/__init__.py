"""Measures the value of the boosting signal (docs/design/detector.md)."""
