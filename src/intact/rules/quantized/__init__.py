"""Rules for quantized graphs, one family a file."""
