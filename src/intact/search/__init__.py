"""What runs or builds a model many times to find something out: where it breaks, and which build to choose."""
