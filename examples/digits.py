"""What both digit examples share: the data, the training loop, and the files that come out.

The data are the 1,797 handwritten digits that scikit-learn ships (8 × 8 pixels of 0 to 16), so nothing is
downloaded. 360 of them, drawn by class with a fixed seed, are the test set; no training step sees them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

TEST_ROWS = 360
CALIBRATION_ROWS = 64
OPSET = 18


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images, test images ([N, 1, 8, 8], 0 to 1), training labels, test labels."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return tuple(train_test_split(images, labels, test_size=TEST_ROWS, stratify=labels, random_state=0))


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images turned, scaled, sheared and shifted a little, each in its own way."""
    count = len(images)

    def uniform(limit: float) -> Tensor:
        return (torch.rand(count, generator=generator) * 2 - 1) * limit

    angle, scale, shear = uniform(math.radians(12)), 1 + uniform(0.12), uniform(0.12)
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    rows = [torch.stack([cos, -sin + shear, uniform(0.2)], 1), torch.stack([sin, cos, uniform(0.2)], 1)]
    grid = functional.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def train(model: nn.Module, *, epochs: int, learning_rate: float, weight_decay: float, seed: int = 0) -> None:
    """AdamW with warm-up and a cosine schedule on freshly moved images in every epoch."""
    images, _, labels, _ = digits()
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    steps = epochs * math.ceil(len(inputs) / 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=learning_rate, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(64):
            optimizer.zero_grad()
            loss_of(model(moved(inputs[batch], generator)), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()


def publish(model: nn.Module, folder: Path) -> None:
    """Write model.onnx (batch 1), calibration.npz, test.npz, labels.npy and accuracy.json into `folder`."""
    train_images, test_images, _, labels = digits()
    export(model, folder / "model.onnx")
    np.savez_compressed(folder / "calibration.npz", image=train_images[:CALIBRATION_ROWS])
    np.savez_compressed(folder / "test.npz", image=test_images)
    np.save(folder / "labels.npy", labels.astype(np.uint8))
    right = correct(folder / "model.onnx", test_images, labels)
    claim = {"top1": right / TEST_ROWS, "correct": right, "rows": TEST_ROWS}
    (folder / "accuracy.json").write_text(json.dumps(claim, indent=2) + "\n")
    print(f"{folder.name}: {right} of {TEST_ROWS} test digits right ({claim['top1']:.2%})")


def export(model: nn.Module, path: Path) -> None:
    """Export with torch's own exporter, then drop what it notes about the machine that it ran on."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        path,
        input_names=["image"],
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    exported = onnx.load(path)
    del exported.metadata_props[:]
    del exported.graph.metadata_props[:]
    for part in (*exported.graph.node, *exported.graph.value_info, *exported.graph.input, *exported.graph.output):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    onnx.checker.check_model(exported, full_check=True)
    onnx.save(exported, path)


def correct(path: Path, images: np.ndarray, labels: np.ndarray) -> int:
    """How many images ONNX Runtime's float run of the model gets right."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    guesses = [session.run(None, {"image": images[row : row + 1]})[0].argmax() for row in range(len(images))]
    return int((np.array(guesses) == labels).sum())
