"""AWS on this machine, for tests."""
