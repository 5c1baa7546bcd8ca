"""What a device can take of a model, and why not the rest: from a table, or from the vendor's own library."""
