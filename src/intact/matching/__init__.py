"""The engine of rules: patterns, where they fit, what replaces a match, and why a rule did not fire."""
