"""A learner elsewhere: what it is sent, where that lies, and the function that trains."""
