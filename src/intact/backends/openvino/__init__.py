"""Intel CPUs, GPUs and NPUs, through OpenVINO."""
