"""Hexagon NPUs, through the QNN provider of ONNX Runtime."""
