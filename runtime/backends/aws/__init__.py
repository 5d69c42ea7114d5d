"""The backend of a learner that was deployed to AWS."""
