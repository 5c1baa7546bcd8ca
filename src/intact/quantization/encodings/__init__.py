"""Encodings in and out: grids from other tools' files, and from finished models, by the names of tensors.

::

    given = read_encodings(Path("encodings.json"))          # AIMET of any version, or ONNX Runtime's overrides
    given = of_model(model)                       # whatever is quantized with Q/DQ nodes
    text(given, "aimet")                          # as a file
    planned(model, target, config)                # a plan with the grids of `config.encodings`
"""

from __future__ import annotations

from intact.quantization.encodings.difference import EncodingDifference, differences
from intact.quantization.encodings.encoded_plan import Planned, planned
from intact.quantization.encodings.encoding_files import FORMATS, load, read_encodings, text
from intact.quantization.encodings.given import GivenGrid
from intact.quantization.encodings.of_model import of_model

__all__ = [
    "FORMATS",
    "EncodingDifference",
    "GivenGrid",
    "Planned",
    "differences",
    "load",
    "of_model",
    "planned",
    "read_encodings",
    "text",
]
