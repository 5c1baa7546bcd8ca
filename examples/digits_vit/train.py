"""Train the digit ViT: `python -m examples.digits_vit.train` from the root of the repository.

A vision transformer of four pre-norm blocks on 2 × 2 patches, about 136,000 weights. Needs torch, onnxscript and
scikit-learn; the files that it writes are in this folder, so running it is needed only to change them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.digits import publish, train

WIDTH = 64
HEADS = 4
DEPTH = 4
PATCH = 2
PATCHES = (8 // PATCH) ** 2


class Attention(nn.Module):
    """Multi-head self-attention with one projection for queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        heads = self.qkv(x).reshape(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, keys, values = heads.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, keys, values)
        return self.output(mixed.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a normalization and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention(), nn.Dropout(0.05))
        wide = 2 * WIDTH
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH), nn.Dropout(0.05)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class DigitVit(nn.Module):
    """Images [N, 1, 8, 8] to ten logits, read from the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.blocks(x)[:, 0])


def main() -> None:
    torch.manual_seed(0)
    model = DigitVit()
    train(model, epochs=80, learning_rate=2e-3, weight_decay=5e-2)
    publish(model, Path(__file__).parent)


if __name__ == "__main__":
    main()
