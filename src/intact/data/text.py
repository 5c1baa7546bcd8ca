"""A text file with one sample a line, turned into ids by a tokenizer of Hugging Face. Needs the `hf` extra.

Lines go to the tokenizer in the order of the file, blank ones are left out. Each is cut or padded to the length of
the model's inputs, or, where that is free, to the longest line. Only as many lines are read as rows can be used.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np

from intact import scratch
from intact.data.arrays import ArraySource, InMemory
from intact.data.input_specs import InputSpec
from intact.errors import DataError
from intact.runtime import hub, process

SUFFIX = ".txt"
_SECONDS = 600.0


def open_text(path: Path, specs: tuple[InputSpec, ...], limit: int, tokenizer: str | None) -> ArraySource:
    """The first `limit` lines of a file as samples: ids, and masks where the model takes them."""
    if tokenizer is None:
        raise DataError(
            "D141",
            f"{path}: nothing says how text becomes inputs",
            allowed="a text file together with --tokenizer, or with a model given by --hf",
            fix="give --tokenizer, the id of a Hugging Face model or a folder with its tokenizer",
        )
    length = _length(specs, path)
    batch = specs[0].shape[0] if isinstance(specs[0].shape[0], int) else 1
    lines = _lines(path, limit * batch)
    arrays, cut = _tokenized(lines, specs, length, tokenizer)
    source = ArraySource(specs, {name: InMemory(array) for name, array in arrays.items()}, "text", str(path))
    if cut:
        source.warnings += (f"{path}: {cut} of {len(lines)} lines are longer than {length} tokens, and are cut",)
    return source


def _length(specs: tuple[InputSpec, ...], path: Path) -> int | None:
    """The one length of all inputs, or None if it is free."""
    other = next((spec for spec in specs if len(spec.shape) != 2 or spec.dtype.kind != "i"), None)
    if other is not None or len({spec.shape[1] for spec in specs}) != 1:
        found = ", ".join(f"{spec.name} {spec}" for spec in specs)
        raise DataError(
            "D142",
            f"{path}: the model takes {found}",
            allowed="text for a model whose inputs are all ids and masks of one length: integers, [batch, length]",
            fix="save the inputs as an .npz file",
        )
    length = specs[0].shape[1]
    return length if isinstance(length, int) else None


def _lines(path: Path, most: int) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(islice((line.strip() for line in file if line.strip()), most))
    except UnicodeDecodeError as error:
        raise DataError("D143", f"{path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if not lines:
        raise DataError("D109", f"{path}: no samples", allowed="at least one", fix="write one sample a line")
    return lines


def _tokenized(
    lines: list[str], specs: tuple[InputSpec, ...], length: int | None, tokenizer: str
) -> tuple[dict[str, np.ndarray], int]:
    """The arrays that the tokenizer gives for these inputs, and how many lines were cut."""
    hub.require("transformers")
    with scratch.folder("text") as folder:
        text, output = Path(folder, "lines.json"), Path(folder, "ids.npz")
        text.write_text(json.dumps(lines), encoding="utf-8")
        request = {
            "repository": asdict(hub.resolved(tokenizer)),
            "lines": str(text),
            "length": length,
            "inputs": [spec.name for spec in specs],
            "output": str(output),
        }
        found = process.call("intact.runtime.hub:tokenize", request, timeout=_SECONDS).result
        with np.load(output, allow_pickle=False) as arrays:
            # Ids and masks are whole numbers far below 2³¹, so that the width of the integer changes nothing.
            types = {spec.name: spec.dtype for spec in specs}
            return {name: arrays[name].astype(types[name], copy=False) for name in arrays}, found["cut"]
