"""Train the digit CNN: `python -m examples.digits_cnn.train` from the root of the repository.

A residual network of three stages with BatchNormalization, about 85,000 weights. Needs torch, onnxscript and
scikit-learn; the files that it writes are in this folder, so running it is needed only to change them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from examples.digits import publish, train


def convolution(cin: int, cout: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout))


class Block(nn.Module):
    """Two convolutions with a shortcut; the shortcut is a 1 × 1 convolution where the shape changes."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(cin, cout, stride), nn.ReLU(), convolution(cout, cout))
        same = stride == 1 and cin == cout
        self.shortcut = nn.Identity() if same else nn.Conv2d(cin, cout, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class DigitCnn(nn.Module):
    """Images [N, 1, 8, 8] to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(1, 24), nn.ReLU())
        self.blocks = nn.Sequential(Block(24, 24, 1), Block(24, 48, 2), Block(48, 48, 1))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(48, 10))

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(image)))


def main() -> None:
    torch.manual_seed(0)
    model = DigitCnn()
    train(model, epochs=40, learning_rate=4e-3, weight_decay=1e-2)
    publish(model, Path(__file__).parent)


if __name__ == "__main__":
    main()
