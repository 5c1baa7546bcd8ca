"""Bisection: where two models, or the CPU and the NPU, part ways, and what does not compile."""
