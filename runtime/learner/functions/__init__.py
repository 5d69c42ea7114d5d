"""Learners that are functions: one makes each update, or several compute gradients in parallel (Stellaris)."""
