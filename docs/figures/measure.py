"""Measures what the pictures of the explanation pages show, on the bundled examples.

`python docs/figures/measure.py` writes measured.json beside this file (several minutes; needs the qnn extra), and
`python docs/figures/draw.py` draws the pictures from it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import intact
from intact.quantization.calibration.ranges import METHODS, RangeMethod
from intact.quantization.calibration.ranges.error import mean_squared_error
from intact.quantization.calibration.sketch import Sketch
from intact.results import Build, PlannedGrid

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
GRID = PlannedGrid("uint8", symmetric=False, method="minmax")
BARS = 120
LEAST_VALUES, MASK = 10_000, 1e4
# Every kind of result: sound ones, 4-bit weights, and inputs that were scaled wrongly before calibration.
BUILDS = (
    *(
        (name, "qnn", precision, 1.0)
        for name in ("digits_cnn", "digits_vit", "topics_bert")
        for precision in ("w8a16", "uint8")
    ),
    ("digits_cnn", "qnn", "w4a16", 1.0),
    ("digits_vit", "qnn", "w4a16", 1.0),
    ("digits_cnn", "qnn", "uint8", 1 / 4),
    ("digits_cnn", "qnn", "uint8", 1 / 2),
)


def main() -> None:
    """Measure everything and write it down."""
    with tempfile.TemporaryDirectory() as folder:
        parts = {
            "libraries": {name: version(name) for name in ("onnxruntime", "onnxruntime-qnn")},
            "sketch": sketch(),
            "exactness": exactness(Path(folder)),
            "verdict": [verdict(Path(folder), *row) for row in BUILDS],
            "mixed": mixed(Path(folder)),
        }
    (HERE / "measured.json").write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")


def sketch() -> dict[str, object]:
    """The tensor of topics_bert whose largest value is furthest from the others, and the ranges of each method."""
    tensors = _intermediates(EXAMPLES / "topics_bert")
    name = max(tensors, key=lambda key: float(np.abs(tensors[key]).max() / tensors[key].std()))
    seen = Sketch()
    seen.add(tensors[name])
    counts, edges = np.histogram(tensors[name], BARS)
    signal = float(np.mean(np.square(tensors[name], dtype=np.float64)))
    return {
        "tensor": name,
        "values": seen.count,
        "bins": sum(int((row > 0).sum()) for row in seen.rows.values()),
        "edges": [float(edges[0]), float(edges[-1])],
        "counts": counts.tolist(),
        "ranges": {label: _range(seen, method, signal) for label, method in METHODS.items()},
    }


def _range(seen: Sketch, method: RangeMethod, signal: float) -> dict[str, float]:
    found = method.range_of(seen, GRID)
    error = float(mean_squared_error(seen, [found], GRID)[0])
    return {"low": float(found.low), "high": float(found.high), "sqnr_db": float(10 * np.log10(signal / error))}


def _intermediates(example: Path) -> dict[str, np.ndarray]:
    """Every float tensor between the nodes of a model, over its calibration inputs."""
    model = onnx.shape_inference.infer_shapes(onnx.load(example / "model.onnx"))
    kind = onnx.TensorProto.FLOAT
    found = [value for value in model.graph.value_info if value.type.tensor_type.elem_type == kind]
    model.graph.output.extend(found)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = dict(np.load(example / "calibration.npz"))
    names = [value.name for value in found]
    runs = [
        session.run(names, {key: row[number : number + 1] for key, row in rows.items()})
        for number in range(len(next(iter(rows.values()))))
    ]
    whole = {name: np.stack([run[place] for run in runs]) for place, name in enumerate(names)}
    # Masks hold numbers that only stand for minus infinity, and shapes are single numbers: neither has a distribution.
    return {
        name: values for name, values in whole.items() if values.size > LEAST_VALUES and np.abs(values).max() < MASK
    }


def exactness(folder: Path) -> list[dict[str, object]]:
    """The rules that fire on the quantized examples for the CPU, and the steps that each moved an integer by."""
    rows: list[dict[str, object]] = []
    for name in ("digits_cnn", "digits_vit", "topics_bert"):
        example, quantized = EXAMPLES / name, folder / f"{name}.onnx"
        data = example / "calibration.npz"
        intact.quantize(example / "model.onnx", output=quantized, device="cpu", precision="int8", data=data)
        done = intact.rewrite(quantized, output=folder / f"{name}_cpu.onnx", device="cpu", data=data)
        rows += [
            {"model": name, "moved": done.validation["steps_moved"].get(count["rule"], 0.0), **count}
            for count in done.rules
        ]
    return rows


def verdict(folder: Path, name: str, device: str, precision: str, factor: float) -> dict[str, object]:
    """One build, with its calibration inputs multiplied by a factor while those of the test are as they should be."""
    example = EXAMPLES / name
    rows = dict(np.load(example / "calibration.npz"))
    test = {key: value[:16] for key, value in np.load(example / "test.npz").items()}
    given = rows if factor == 1.0 else {key: (value * factor).astype(value.dtype) for key, value in rows.items()}
    built = _built(example, folder / f"{name}-{precision}-{factor:.3f}", device, precision, given, test)
    forms = {row.form: row.sqnr_db for row in built.accuracy}
    words = {"model": name, "device": device, "precision": precision, "factor": factor}
    return {
        **words,
        "quantized_db": forms.get("quantized"),
        "compiled_db": forms.get("compiled"),
        "verdict": built.verdict,
    }


def _built(
    example: Path,
    output: Path,
    device: str,
    precision: str,
    rows: Mapping[str, np.ndarray],
    test: Mapping[str, np.ndarray],
) -> Build:
    return intact.build(
        example / "model.onnx", output=output, device=device, precision=precision, data=rows, test_data=test
    )


def mixed(folder: Path) -> dict[str, object]:
    """The search for the cheapest mix of topics_bert with 45 dB."""
    example = EXAMPLES / "topics_bert"
    goal = 45.0
    built = intact.build(
        example / "model.onnx",
        output=folder / "mixed",
        device="qnn",
        precision="auto",
        min_sqnr=goal,
        data=example / "calibration.npz",
    )
    assert built.search is not None
    points = [
        {
            "cost": point.cost,
            "predicted_db": point.predicted_db,
            "compiled_db": point.compiled_db,
            "groups": dict(point.groups),
        }
        for point in built.search.points
    ]
    return {"goal": goal, "points": points, "chosen": built.search.chosen, "uniform": dict(built.search.uniform)}


if __name__ == "__main__":
    main()
