"""The backends of a learner, and of a pool, that were deployed to AWS."""
