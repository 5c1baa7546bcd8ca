"""A folder for each device that intact compiles for: its table, its toolchain, what was probed of it."""
