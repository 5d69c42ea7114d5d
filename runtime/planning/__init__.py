"""Predicts a run's time and dollars before it starts, by sampling its workload on this machine."""
