"""Searches that run or build a model many times: for the place where it breaks, or for the build to choose."""
