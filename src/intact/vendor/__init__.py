"""Runtimes that other people wrote: ORT on the CPU in this process, vendor toolchains in child processes."""
