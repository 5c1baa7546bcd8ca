"""Transformers that ONNX Runtime's optimizer fused are quantized like those that it did not."""

from __future__ import annotations

import json
import warnings
from collections import Counter

import onnx
import pytest

from intact.api.build import build

torch = pytest.importorskip("torch", reason="the models are exported from torch (extra: hf)")
transformers = pytest.importorskip("transformers", reason="the models are those of transformers (extra: hf)")

pytestmark = pytest.mark.slow

HEADS, WIDTH, LENGTH = 4, 64, 16
TEXT = {"vocab_size": 100, "attn_implementation": "eager", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def ids():
    return torch.randint(0, 100, (1, LENGTH)), torch.ones(1, LENGTH, dtype=torch.int64)


def bert():
    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=128,
        max_position_embeddings=32,
        **TEXT,
    )
    return transformers.BertModel(config), dict(zip(("input_ids", "attention_mask"), ids(), strict=True))


def gpt2():
    config = transformers.GPT2Config(n_positions=32, n_embd=WIDTH, n_layer=2, n_head=HEADS, use_cache=False, **TEXT)
    return transformers.GPT2Model(config), dict(zip(("input_ids", "attention_mask"), ids(), strict=True))


def vit():
    config = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        attn_implementation="eager",
    )
    return transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(1, 3, 32, 32)}


def whisper():
    config = transformers.WhisperConfig(
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=128,
        num_mel_bins=16,
        max_source_positions=32,
        decoder_start_token_id=1,
        **TEXT,
    )
    return transformers.WhisperModel(config).encoder, {"input_features": torch.randn(1, 16, 64)}


class LastState(torch.nn.Module):
    """The last hidden state of a model whose inputs come by position."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs):
        return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def exported(make, path):
    torch.manual_seed(0)
    model, inputs = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            LastState(model, list(inputs)).eval(),
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=["y"],
            opset_version=17,
            dynamo=False,
        )
    return path


def optimized(path, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnxruntime.transformers import optimizer

        found = optimizer.optimize_model(str(path), model_type=kind, num_heads=HEADS, hidden_size=WIDTH, opt_level=0)
        found.save_model_to_file(str(path.with_suffix(".fused.onnx")))
    return path.with_suffix(".fused.onnx")


def quantized(path, folder):
    """The number of nodes that were quantized, by their types, and the SQNR of the deployed form."""
    built = build(path, output=folder, device="cpu", precision="uint8", effort="fast")
    record = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    (stage,) = (stage for stage in record["stages"] if stage["name"] == "quantize")
    (row,) = (row for row in built.accuracy if row.form == "compiled")
    groups = {(group["activations"], group["weights"]): group["nodes"] for group in stage["types"]}
    integers = {types: count for types, count in groups.items() if types[0] != "float"}
    return {**integers, "all": stage["nodes_quantized"]}, row.sqnr_db


@pytest.mark.parametrize(
    ("make", "kind", "fused"),
    [
        (bert, "bert", {"Attention": 2, "SkipLayerNormalization": 4, "BiasGelu": 2}),
        (gpt2, "gpt2", {"SkipLayerNormalization": 4, "FastGelu": 2}),
        (vit, "vit", {"SkipLayerNormalization": 4, "BiasGelu": 2}),
        (whisper, "bart", {"SkipLayerNormalization": 4, "BiasGelu": 2, "Gelu": 2}),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_fused_model_is_quantized_like_the_one_it_was_made_from(make, kind, fused, tmp_path):
    plain = exported(make, tmp_path / "plain.onnx")
    other = optimized(plain, kind)
    found = Counter(node.op_type for node in onnx.load(other).graph.node if node.domain == "com.microsoft")
    assert found == fused, "another optimizer, another test"
    nodes, decibels = quantized(plain, tmp_path / "a")
    again, others = quantized(other, tmp_path / "b")
    assert again == nodes
    assert others == pytest.approx(decibels, abs=1.0)
