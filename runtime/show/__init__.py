"""Shows runs: terminal, report, TensorBoard, W&B, exported policies and videos."""
