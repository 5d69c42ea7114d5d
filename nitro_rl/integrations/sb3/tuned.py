"""rl-zoo3's tuned settings, read from the installed package."""
