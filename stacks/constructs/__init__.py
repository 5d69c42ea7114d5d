"""One construct per file; each is one capability of an experiment's stack."""
