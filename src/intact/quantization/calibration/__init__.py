"""Observe tensors in one run, and choose their grids from it."""
