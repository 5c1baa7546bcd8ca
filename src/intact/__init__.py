"""intact quantizes and compiles ONNX models for NPUs, and proves that nothing broke."""
