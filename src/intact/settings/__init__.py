"""The only settings in the program, and what they mean on a device."""
