"""The boosting detector (paper: Nitro §5.1, §5.2)."""
