"""Models in memory: reading and writing files, questions, edits, patterns and the rewriter."""
