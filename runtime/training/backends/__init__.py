"""Places for runs: this machine or Ray; AWS is in `runtime.aws.learner`."""
