"""MinionsRL's scheduler: recordings of runs, a surrogate of them, and training on either. Paper: MinionsRL."""
