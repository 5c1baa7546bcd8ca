"""Grids: encodings, the limits of types, and the way from values to integers and back."""
