"""What runs on the learner instance, and on a laptop: the round loop and the parts that it composes."""
