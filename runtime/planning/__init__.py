"""What a run would take, in seconds and dollars, before it is started: samples the workload here, and predicts."""
