"""`intact.encodings`: the grids of a quantized model, for other tools and against other tools'."""

from __future__ import annotations

from pathlib import Path

from intact import scratch
from intact.events import Events, Silence
from intact.model import io
from intact.pipeline import input_files
from intact.quantization import encodings as grids
from intact.quantization.encodings import EncodingDifference
from intact.records import dataclass
from intact.reports import publish
from intact.settings.keywords import AnyPath


@dataclass(frozen=True, slots=True)
class EncodingsFile:
    """Encodings as they were written."""

    model: Path
    output: Path
    format: str
    tensors: int


def encodings(
    model: AnyPath, *, output: AnyPath, format: str = "aimet", overwrite: bool = False, events: Events | None = None
) -> EncodingsFile:
    """Write the encodings of a quantized model into the file `output`, as AIMET or ONNX Runtime (`ort`) read them."""
    path, place = Path(model), Path(output)
    input_files.protect(place, None, path)
    publish.check_file(place, overwrite=overwrite, ours=False)
    given = grids.of_model(io.load(path))
    second = [name for name, entry in given.items() if entry.readers is not None]
    if second and format != "ort":
        left_out = ", ".join(second)
        (events or Silence()).warn(f"AIMET has no second grid on a tensor, so these are left out: {left_out}")
    text = grids.text(given, format)
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(place, text)
    return EncodingsFile(path, place, format, len(given))


def encoding_differences(a: AnyPath, b: AnyPath) -> list[EncodingDifference]:
    """The tensors whose encodings differ between two models or files of encodings."""
    return grids.differences(grids.load(Path(a)), grids.load(Path(b)))
