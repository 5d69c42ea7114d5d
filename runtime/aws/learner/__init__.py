"""Backends of learners and pools deployed to AWS."""
