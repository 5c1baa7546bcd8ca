"""SQNR and task accuracy of models quantized by intact and by its peers: same model, same inputs, same bits, on CPU.

Peers that are not installed are left out, and named: `pip install nncf amd-quark torch`. Each works with its
recommended settings for the bits at hand, weights in int8 per channel. All models run in ONNX Runtime without
optimizations. Exit status 1 where a bar does not hold.

python bench/accuracy.py [--face FILE --images NPZ] [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.zoo import ZOO, data  # noqa: E402

Rows = list[dict[str, np.ndarray]]

EXAMPLES = ("digits_cnn", "digits_vit", "topics_bert")
TRANSFORMERS = ("bert", "vit", "digits_vit", "topics_bert")
# Most points of task accuracy that may be lost, and least dB of scores and boxes.
MOST_LOST = {"uint8": 1.0, "w8a16": 0.2}
FACE = {"uint8": (47.5, 47.0), "w8a16": (51.0, 50.5)}
FACE_CALIBRATED = 24


def by_intact(model: Path, rows: Rows, precision: str, result: Path) -> None:
    from intact.events import Log
    from intact.model import io
    from intact.pipeline import loading, preparation, presets
    from intact.quantization import quantizing as quantize
    from intact.rules.float import optimization
    from intact.rules.float.settle import settle_masks
    from intact.settings.config import BuildConfig
    from intact.targets.registry import load_target

    config = presets.resolve(BuildConfig.from_dict({"precision": precision}), quantized=None).quantization
    assert config is not None, "these precisions quantize"
    optimized = optimization.optimize(loading.load(model, None, Log()).model).model
    settled = settle_masks(optimized, rows, preparation.SOFTMAX_STEPS[config.activation_type])
    done = quantize.quantize(settled.model, load_target("cpu"), config, rows, known=quantize.Known(settled.ranges))
    io.save(done.model, result)


class Reader:
    """Rows in the form that ONNX Runtime's calibration takes, and those who follow it."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.rewind()

    def rewind(self) -> None:
        self.left = iter(self.rows)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def by_onnxruntime(model: Path, rows: Rows, precision: str, result: Path) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready = result.with_suffix(".ready.onnx")
    quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    kinds = quantization.QuantType
    quantization.quantize_static(
        str(ready),
        str(result),
        Reader(rows),
        per_channel=True,
        weight_type=kinds.QInt8,
        activation_type=kinds.QUInt8 if precision == "uint8" else kinds.QUInt16,
        extra_options={"UseQDQContribOps": True},
    )


def by_nncf(model: Path, rows: Rows, precision: str, result: Path) -> None:
    import nncf

    if precision != "uint8":
        raise NotImplementedError("it has no 16-bit activations")
    loaded = onnx.version_converter.convert_version(onnx.load(model), max(13, onnx.load(model).opset_import[0].version))
    attention = any(node.op_type == "Softmax" for node in loaded.graph.node[:-2])
    kind = nncf.ModelType.TRANSFORMER if attention else None
    onnx.save(nncf.quantize(loaded, nncf.Dataset(rows), subset_size=len(rows), model_type=kind), result)


def by_quark(model: Path, rows: Rows, precision: str, result: Path) -> None:
    from quark.onnx import Config, ModelQuantizer
    from quark.onnx.quantization.config import get_default_config

    settings = get_default_config("U8S8_AAWS" if precision == "uint8" else "U16S8_AAWS")
    settings.per_channel = True
    ModelQuantizer(Config(global_quant_config=settings)).quantize_model(str(model), str(result), Reader(rows))


TOOLS: dict[str, tuple[str, Callable[[Path, Rows, str, Path], None]]] = {
    "intact": ("intact", by_intact),
    "onnxruntime": ("onnxruntime", by_onnxruntime),
    "nncf": ("nncf", by_nncf),
    "quark": ("quark", by_quark),
}


def outputs(model: Path, rows: Rows) -> list[list[np.ndarray]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if importlib.util.find_spec("quark") is not None and _has_foreign_operators(model):
        from quark.onnx import get_library_path

        options.register_custom_ops_library(get_library_path("cpu"))
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return [session.run(None, row) for row in rows]


def _has_foreign_operators(model: Path) -> bool:
    return any(node.domain not in ("", "ai.onnx", "com.microsoft") for node in onnx.load(model).graph.node)


def decibels(expected: list[list[np.ndarray]], found: list[list[np.ndarray]]) -> list[float]:
    """For each output the mean over rows of the SQNR in dB."""
    values = []
    for index in range(len(expected[0])):
        pairs = [
            (a[index].astype(np.float64), b[index].astype(np.float64)) for a, b in zip(expected, found, strict=True)
        ]
        values.append(
            float(np.mean([10 * np.log10(np.sum(a**2) / max(np.sum((a - b) ** 2), 1e-30)) for a, b in pairs]))
        )
    return values


def split(arrays: dict[str, np.ndarray]) -> Rows:
    count = len(next(iter(arrays.values())))
    return [{name: array[index : index + 1] for name, array in arrays.items()} for index in range(count)]


def cases(folder: Path, names: list[str], face: Path | None, images: Path | None) -> Iterator[tuple]:
    """A name, a model, rows to calibrate on and to test on, and labels of the latter, or None."""
    for name in names:
        if name in EXAMPLES:
            home = ROOT / "examples" / name
            calibration, test = (split(dict(np.load(home / f"{part}.npz"))) for part in ("calibration", "test"))
            yield name, home / "model.onnx", calibration, test, np.load(home / "labels.npy")
        else:
            model = ZOO[name]()
            onnx.save(model, folder / f"{name}.onnx")
            yield name, folder / f"{name}.onnx", split(data(model, 32)), split(data(model, 16, seed=1)), None
    if face is not None and images is not None:
        pixels = (np.load(images)["images"].astype(np.float32) - 127) / 128
        rows = split({"input": pixels})
        yield "face", face, rows[:FACE_CALIBRATED], rows[-8:], None


def report(
    name: str, model: Path, calibration: Rows, test: Rows, labels: np.ndarray | None, folder: Path
) -> list[bool]:
    """Print a row for each tool and precision; for each bar, whether it holds."""
    held, expected = [], outputs(model, test)
    for precision in MOST_LOST:
        found: dict[str, list[float]] = {}
        lost = {}
        for tool, (_, quantize) in TOOLS.items():
            if importlib.util.find_spec(TOOLS[tool][0]) is None:
                continue
            result = folder / f"{name}.{tool}.{precision}.onnx"
            try:
                quantize(model, calibration, precision, result)
                values = outputs(result, test)
            # A peer that fails has no figure; whatever it raises is shown.
            except Exception as error:
                if tool == "intact":
                    raise
                print(f"{name:14} {precision:6} {tool:12} – {type(error).__name__}: {str(error).splitlines()[0][:60]}")
                continue
            found[tool] = decibels(expected, values)
            if labels is not None:
                lost[tool] = 100 * (accuracy(expected, labels) - accuracy(values, labels))
            points = f"  {-lost[tool]:+.2f} points" if tool in lost else ""
            print(
                f"{name:14} {precision:6} {tool:12} {' '.join(f'{v:6.2f} dB' for v in found[tool])}{points}", flush=True
            )
        peers = [min(values) for tool, values in found.items() if tool != "intact"]
        bars = {"above every peer": not peers or min(found["intact"]) > max(peers)}
        if name == "face":
            bars["above the bar"] = all(v > bar for v, bar in zip(found["intact"], FACE[precision], strict=True))
        if labels is not None:
            bars["accuracy kept"] = lost["intact"] <= MOST_LOST[precision]
        for bar, holds in bars.items():
            print(f"{name:14} {precision:6} {bar}: {'holds' if holds else 'FAILS'}")
        held += bars.values()
    return held


def accuracy(values: list[list[np.ndarray]], labels: np.ndarray) -> float:
    return float(np.mean([row[0].argmax() == label for row, label in zip(values, labels, strict=True)]))


def _absolute(path: str) -> Path:
    return Path(path).resolve()


def main() -> int:
    """Compare on the models asked for, or all; return 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*ZOO, *EXAMPLES])
    parser.add_argument("--face", type=_absolute, help="ultraface.onnx, which is not part of this repository")
    parser.add_argument("--images", type=_absolute, help="its images, an .npz")
    asked = parser.parse_args()
    missing = [tool for tool, (module, _) in TOOLS.items() if importlib.util.find_spec(module) is None]
    print(f"not installed, left out: {', '.join(missing)}" if missing else "every peer is installed")
    held: list[bool] = []
    # Quark writes tables into the working directory.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for case in cases(Path(folder), asked.names, asked.face, asked.images):
            held += report(*case, Path(folder))
    print(f"{sum(held)} of {len(held)} bars hold")
    return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
