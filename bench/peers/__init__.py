"""intact beside other quantizers: the same models, the same samples, one environment a tool. `make bench-peers`."""
