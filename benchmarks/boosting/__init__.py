"""What the boosting signal is worth (docs/detector.md)."""
