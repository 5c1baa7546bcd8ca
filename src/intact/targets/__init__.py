"""What devices can do: one TOML table of facts a backend, each fact with its source, read on demand."""
