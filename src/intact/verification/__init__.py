"""Compares forms of a model on the same inputs, and checks gates."""
