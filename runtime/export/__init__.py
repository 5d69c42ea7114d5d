"""A trained policy in other forms: ONNX, video."""
