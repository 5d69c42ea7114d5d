"""A remote learner: its messages, their store, and the function that trains."""
