"""Models in memory: reading and writing files, checks, opset upgrades, questions, edits and shapes."""
