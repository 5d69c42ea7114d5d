"""The learner: trains the policy on what the actors bring back. The only door to torch besides the detector."""
