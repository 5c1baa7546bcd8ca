"""DirectML, through ONNX Runtime on Windows."""
