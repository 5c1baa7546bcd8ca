"""Run a command in which, and in whose children, opening an internet socket is death: `python no_internet.py COMMAND…`.

The kernel does the watching (seccomp), so that native code cannot slip through.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
AF_INET, AF_INET6 = 2, 10
SYSCALL_NUMBER, FIRST_ARGUMENT = 0, 16
SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}


def supported() -> bool:
    """True if this kernel and processor can watch sockets in this way."""
    return sys.platform == "linux" and platform.machine() in SOCKET_CALLS


def forbid() -> None:
    """Let the kernel end this process, or any of its children, when it asks for an internet socket."""
    rows = [
        (LOAD, 0, 0, SYSCALL_NUMBER),
        (EQUAL, 0, 4, SOCKET_CALLS[platform.machine()]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 1, 0, AF_INET),
        (EQUAL, 0, 1, AF_INET6),
        (RETURN, 0, 0, KILL_PROCESS),
        (RETURN, 0, 0, ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
    program = struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code))
    kernel = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)):
        if kernel.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the kernel did not take the filter")


if __name__ == "__main__":
    forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
