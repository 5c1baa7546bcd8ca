"""Jobs that behave as badly as vendor code does."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time

from intact.errors import TargetError


def echo(request):
    return request


def whereabouts(_request):
    return {"cwd": os.getcwd(), "pid": os.getpid(), "session": os.getsid(0), "modules": sorted(sys.modules)}


def variables(request):
    return {name: os.environ.get(name) for name in request["names"]}


def modules_with(request):
    importlib.import_module(request["module"])
    return {"modules": sorted(sys.modules)}


def chatter(request):
    print("junk on stdout {", flush=True)
    os.write(2, b"junk on stderr\n")
    return request


def flood(request):
    """Print much between a first line and an error; the holes of the file take no room on the disk."""
    os.write(1, b"the first line\n")
    os.lseek(1, request["bytes"], os.SEEK_SET)
    os.write(1, b"\nthe last error\n")
    os.abort()


def abort(_request):
    print(
        "\x1b[1;31m2026-01-01 00:00:00.000 [E:onnxruntime:, some.cc:1 Do] Failed to finalize: Code: 1002\x1b[m",
        flush=True,
    )
    os.abort()


def sleep(_request):
    time.sleep(60)


def sleep_with_child(request):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(request["pid_file"], "w") as file:
        file.write(str(child.pid))
    time.sleep(60)


def hog(_request):
    return {"length": len(bytearray(1 << 40))}


def leave(_request):
    os._exit(7)


def refuse(_request):
    raise TargetError("T100", "the device says no", fix="ask nicely")


def stumble(_request):
    raise RuntimeError("the vendor's library is confused")


def crash_at_exit(_request):
    import atexit

    atexit.register(os.abort)
    return {"fine": True}


def litter(request):
    """Leave a temporary folder behind, as some libraries do."""
    return {"path": tempfile.mkdtemp()}
