"""Train the topic classifier: `python -m examples.topics_bert.train` from the root of the repository.

A BERT of two post-norm layers, 64 wide, that tells which topic of Python's manual a window of text is from; about
210,000 weights. Needs torch and onnxscript; the files that it writes are in this folder, so running it is needed
only to change them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.topics_bert import text as corpus
from examples.topics_bert.text import LENGTH, MASK, PAD, TOPICS

WIDTH = 64
HEADS = 4
DEPTH = 2
DROPOUT = 0.3
MASKED = 0.3
STEPS = 800
BATCH = 48
LEARNING_RATE = 1e-3
CALIBRATION_ROWS = 64
OPSET = 18


class SelfAttention(nn.Module):
    """Attention of every piece to every piece that is not padding, with its own queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = [
            layer(x).view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised after."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        return self.output_norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))


class TopicBert(nn.Module):
    """Pieces [N, 96] and the mask of those that count to one logit per topic, read from the first piece."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.words = nn.Embedding(pieces, WIDTH, padding_idx=PAD)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.classifier = nn.Linear(WIDTH, len(TOPICS))
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.positions.weight, std=0.05)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        position = torch.arange(input_ids.shape[1])
        x = self.dropout(self.norm(self.words(input_ids) + self.positions(position)))
        mask = attention_mask[:, None, None, :].to(torch.bool)
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))


def train(model: TopicBert, text: corpus.Text, seed: int = 0) -> None:
    """AdamW with warm-up and a cosine schedule on freshly drawn windows, of whose pieces three in ten are masked."""
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=5e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=STEPS)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    model.train()
    for _ in range(STEPS):
        rows, labels = corpus.draw(text, BATCH, rng)
        hidden = (rng.random(rows.shape) < MASKED) & (rows > MASK)
        given = {name: torch.from_numpy(array) for name, array in feeds(np.where(hidden, MASK, rows)).items()}
        optimizer.zero_grad()
        loss_of(model(**given), torch.from_numpy(labels)).backward()
        optimizer.step()
        schedule.step()
    model.eval()


def publish(model: nn.Module, text: corpus.Text, folder: Path) -> None:
    """Write model.onnx (batch 1), its inputs, labels and accuracy, and the vocabulary into `folder`."""
    export(model, folder / "model.onnx")
    calibration, _ = corpus.draw(text, CALIBRATION_ROWS, np.random.default_rng(1))
    test, labels = corpus.held_out(text)
    np.savez_compressed(folder / "calibration.npz", **feeds(calibration))
    np.savez_compressed(folder / "test.npz", **feeds(test))
    np.save(folder / "labels.npy", labels.astype(np.uint8))
    (folder / "vocabulary.txt").write_text("\n".join(text.vocabulary.pieces) + "\n", encoding="utf-8")
    right = correct(folder / "model.onnx", test, labels)
    claim = {"top1": right / len(labels), "correct": right, "rows": len(labels)}
    (folder / "accuracy.json").write_text(json.dumps(claim, indent=2) + "\n")
    print(f"{folder.name}: {right} of {len(labels)} test windows right ({claim['top1']:.2%})")


def feeds(rows: np.ndarray) -> dict[str, np.ndarray]:
    """What the model takes for these rows of pieces."""
    return {"input_ids": rows, "attention_mask": (rows != PAD).astype(np.int64)}


def export(model: nn.Module, path: Path) -> None:
    """Export with torch's own exporter, then drop what it notes about the machine that it ran on."""
    row = torch.zeros(1, LENGTH, dtype=torch.int64)
    torch.onnx.export(
        model,
        (row, torch.ones_like(row)),
        path,
        input_names=["input_ids", "attention_mask"],
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


def correct(path: Path, rows: np.ndarray, labels: np.ndarray) -> int:
    """How many windows ONNX Runtime's float run of the model gets right."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    guesses = [session.run(None, feeds(rows[row : row + 1]))[0].argmax() for row in range(len(rows))]
    return int((np.array(guesses) == labels).sum())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # sums in one order, so that the same machine gives the same weights
    text = corpus.read()
    model = TopicBert(len(text.vocabulary.pieces))
    train(model, text)
    publish(model, text, Path(__file__).parent)


if __name__ == "__main__":
    main()
