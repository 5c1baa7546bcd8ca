"""Jobs in the environment of a toolchain: there is nothing of ours to import, and of packages only what is there."""

from __future__ import annotations

import importlib.util
import os
import sys


def check(request):
    import fake_vendor

    if not fake_vendor.compiles(request["model"]):
        raise RuntimeError("the vendor's compiler fails")
    with open(os.path.join(request["folder"], "compiled"), "w") as file:
        file.write("done")
    return {}


def fail(_request):
    print("Error: illegal instruction set")
    raise OSError("libvendor.so: cannot open shared object file")


def look(_request):
    """The Python that this runs in, and what it would import."""
    import fake_vendor

    there = {name: importlib.util.find_spec(name) is not None for name in ("intact", "numpy", "process", "worker")}
    return {"prefix": sys.prefix, "vendor": fake_vendor.VERSION, "there": there, "seed": os.environ["PYTHONHASHSEED"]}


def sleep(_request):
    import time

    time.sleep(60)


def hog(_request):
    return {"length": len(bytearray(1 << 40))}
