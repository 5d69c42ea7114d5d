"""What the boosting signal is worth (docs/design/detector.md)."""
