"""What is seen of tensors in one run, and the grids that follow from it."""
