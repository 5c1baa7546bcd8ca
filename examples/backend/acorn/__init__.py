"""A backend of intact for the Acorn, an NPU that does not exist."""
