"""Faults of quantized models: a check each, with an explanation and a repair."""
