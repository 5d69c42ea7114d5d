"""Exports a trained policy: ONNX, video."""
