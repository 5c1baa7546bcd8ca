"""Forms of a model that a device computes rightly, where its compiler gets the first one wrong."""
