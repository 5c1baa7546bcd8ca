"""ONNX Runtime on the CPU in this process, and child processes for toolchains that other people wrote."""
