"""Which tensors get which grid, before anything is run."""
