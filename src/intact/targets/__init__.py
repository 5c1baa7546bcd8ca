"""Targets, the abilities of devices: one TOML table of facts a backend, each with its source, read on demand."""
