"""Where actors run: one file per kind of fleet. This package imports no torch: actor processes start through it."""
