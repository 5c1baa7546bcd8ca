"""Encodings in and out: grids from other tools' files, and from finished models, by the names of tensors.

::

    given = read(Path("encodings.json"))          # AIMET of any version, or ONNX Runtime's overrides
    given = of_model(model)                       # whatever is quantized with Q/DQ nodes
    text(given, "aimet")                          # as a file
    planned(model, target, config)                # a plan with the grids of `config.encodings`
"""

from __future__ import annotations

from intact.quantize.encodings.difference import Difference, differences
from intact.quantize.encodings.files import FORMATS, load, read, text
from intact.quantize.encodings.given import Given
from intact.quantize.encodings.model import of_model
from intact.quantize.encodings.use import Planned, planned

__all__ = ["FORMATS", "Difference", "Given", "Planned", "differences", "load", "of_model", "planned", "read", "text"]
