"""The CPU, through ONNX Runtime."""
