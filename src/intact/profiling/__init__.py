"""How long models take, where this machine can time them, and what takes the time."""
