"""Mixed precision: the cheapest assignment of precisions that meets the gates of a build."""
