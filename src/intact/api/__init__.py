"""One typed function a command, each in a file of its name; the command line and Python users call the same ones."""
