"""ONNX Runtime's messages, made readable."""

from __future__ import annotations

import re

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


def sentence(error: Exception) -> str:
    """The message of an error that ORT raised, on one line and without its status prefix."""
    return _STATUS.sub("", " ".join(str(error).split()))
