"""Plan the grid of each tensor before anything is run."""
