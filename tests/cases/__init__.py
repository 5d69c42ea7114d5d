"""Cases of public bug reports, as values: each test names its report."""
