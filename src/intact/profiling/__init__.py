"""Latency of models that this machine can time, and what takes the time."""
