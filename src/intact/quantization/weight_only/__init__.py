"""Weights in few bits beside float activations."""
