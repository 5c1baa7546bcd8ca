"""The models to compare on, each with samples to calibrate on, others to judge by, and labels where there are any."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tests.zoo import ZOO, data
from tests.zoo.large import bert_base, mobilenet_v2, resnet50, vit_small

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared/models"
SAMPLES = 24
# The curve over the number of samples is drawn for these: one small and one large.
COUNTS = {"digits_cnn": (8, 64), "resnet50": (8, 64)}
# Rows that judge: of the published detector as many as there are beside the others, of models with drawn weights so
# many that another draw moves the SQNR by little.
TEST_ROWS, DRAWN_TEST_ROWS = 8, 32
# The oldest version of operators that every tool here takes, and a version of the format that all of them read.
LEAST_OPSET, OPSET, FORMAT = 13, 17, 8

EXAMPLES = {
    "digits_cnn": "a trained CNN (examples)",
    "digits_vit": "a trained ViT (examples)",
    "topics_bert": "a trained BERT (examples)",
}
FACE = {"face": "a published face detector"}
LARGE: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "mobilenet_v2": ("a MobileNetV2, drawn weights", mobilenet_v2),
    "vit_small": ("a ViT-S, drawn weights", vit_small),
    "resnet50": ("a ResNet-50, drawn weights", resnet50),
    "bert_base": ("a BERT-base, drawn weights", bert_base),
}
QUICK = tuple(EXAMPLES)
NAMES = (*EXAMPLES, *FACE, *LARGE)


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its rows; `counts` are the numbers of samples to calibrate on, that of the tables first."""

    name: str
    title: str
    model: Path
    rows: dict[int, Path]
    test: Path
    labels: Path | None

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of samples to calibrate on, that of the tables first."""
        return tuple(self.rows)

    def parameters(self) -> int:
        """The number of weights."""
        tensors = onnx.load(self.model, load_external_data=False).graph.initializer
        return sum(int(np.prod(tensor.dims)) for tensor in tensors)


class Unknown(Exception):
    """A model that is not there, or data that does not fit."""


def case(name: str, folder: Path, *, curve: bool = True) -> Case:
    """A model by its name, prepared under `folder`; `curve` has it calibrated on other numbers of samples, too."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    counts = (SAMPLES, *(COUNTS.get(name, ()) if curve else ()))
    if name in EXAMPLES:
        return _example(name, home, counts)
    if name in FACE:
        return _face(home, counts)
    if name in LARGE:
        return _drawn(name, *LARGE[name], home, counts)
    if name in ZOO:
        return _drawn(name, f"{name} of the zoo, drawn weights", ZOO[name], home, counts)
    raise Unknown(f"{name}: no such model; there are {', '.join((*NAMES, *ZOO))}")


def of_user(model: Path, rows: Path, folder: Path) -> Case:
    """A user's own model: the last quarter of its rows judges, the others calibrate."""
    with np.load(rows) as arrays:
        whole = {name: arrays[name] for name in arrays.files}
    count = len(next(iter(whole.values())))
    held = max(1, count // 4)
    if count < 2:
        raise Unknown(f"{rows}: {count} row; two at least are needed, one to calibrate on and one to judge by")
    home = folder / f"user_{model.stem}"
    home.mkdir(parents=True, exist_ok=True)
    few = {name: array[: count - held] for name, array in whole.items()}
    last = {name: array[-held:] for name, array in whole.items()}
    return Case(home.name, model.name, model.resolve(), _saved(few, home, (count - held,)), _test(last, home), None)


def _example(name: str, home: Path, counts: tuple[int, ...]) -> Case:
    source = ROOT / "examples" / name
    rows = _saved(dict(np.load(source / "calibration.npz")), home, counts)
    return Case(name, EXAMPLES[name], source / "model.onnx", rows, source / "test.npz", source / "labels.npy")


def _face(home: Path, counts: tuple[int, ...]) -> Case:
    source = SHARED / "ultraface.onnx"
    if not source.exists():
        raise Unknown(f"face: {source.name} is not in {SHARED.name} beside this checkout")
    pixels = (np.load(SHARED / "images_240x320_u8.npz")["images"].astype(np.float32) - 127) / 128
    rows = _saved({"input": pixels[:-TEST_ROWS]}, home, counts)
    model = home / "model.onnx"
    shutil.copyfile(source, model)
    _upgrade(model)
    return Case("face", FACE["face"], model, rows, _test({"input": pixels[-TEST_ROWS:]}, home), None)


def _drawn(name: str, title: str, build: Callable[[], onnx.ModelProto], home: Path, counts: tuple[int, ...]) -> Case:
    path = home / "model.onnx"
    if not path.exists():
        onnx.save(build(), path)
    model = onnx.load(path)
    rows = _saved(data(model, max(counts)), home, counts)
    return Case(name, title, path, rows, _test(data(model, DRAWN_TEST_ROWS, seed=1), home), None)


def _upgrade(path: Path) -> None:
    """Bring a model to operators that every tool takes, in its place."""
    model = onnx.load(path)
    if model.opset_import[0].version < LEAST_OPSET:
        model = onnx.version_converter.convert_version(model, OPSET)
        model.ir_version = FORMAT
        onnx.save(model, path)


def _saved(rows: dict[str, np.ndarray], home: Path, counts: tuple[int, ...]) -> dict[int, Path]:
    """A file of the first rows for each number of samples."""
    files = {count: home / f"rows.{count}.npz" for count in counts}
    for count, path in files.items():
        np.savez(path, **{name: array[:count] for name, array in rows.items()})
    return files


def _test(rows: dict[str, np.ndarray], home: Path) -> Path:
    np.savez(home / "test.npz", **rows)
    return home / "test.npz"
