"""Models that are no ONNX files yet, brought into that form and compared with what they were."""
