"""Small models with random weights, made from the configurations of transformers: vision, text, audio and more.

python -m tests.exporting.small_models FOLDER [NAME …] writes each as ONNX, what is there already stays.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OPSET = 18

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PICTURE = {"image_size": 32, "patch_size": 8}
WORDS = {"vocab_size": 64, "max_position_embeddings": 40}
WAVES = {"conv_dim": (16, 32), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 16}
WAVES = {**LAYERS, **WAVES, "num_feat_extract_layers": 2, "num_conv_pos_embedding_groups": 2, "vocab_size": 32}
TWO_STAGES = {"num_stages": 2, "hidden_sizes": [16, 32], "depths": [1, 2]}
STAGES = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
DECODER = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 64}
WHISPER = {**ENCODER, **DECODER, "d_model": 32, "vocab_size": 64}


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A class of transformers, values of its configuration, and its input: a name and a shape, ids below `ids`."""

    kind: str
    config: str
    model: str
    values: Mapping[str, object]
    shape: tuple[int, ...] = (1, 3, 32, 32)
    name: str = "pixel_values"
    ids: int = 0


def _text(config: str, model: str, **values: object) -> SmallModel:
    return SmallModel("text", config, model, {**LAYERS, **WORDS, **values}, (1, 16), "input_ids", ids=60)


def _audio(config: str, model: str, **values: object) -> SmallModel:
    return SmallModel("audio", config, model, {**WAVES, **values}, (1, 800), "input_values")


MODELS: Mapping[str, SmallModel] = {
    "vit": SmallModel("vision", "ViTConfig", "ViTForImageClassification", {**LAYERS, **PICTURE}),
    "deit": SmallModel("vision", "DeiTConfig", "DeiTForImageClassification", {**LAYERS, **PICTURE}),
    "beit": SmallModel("vision", "BeitConfig", "BeitForImageClassification", {**LAYERS, **PICTURE}),
    "dinov2": SmallModel("vision", "Dinov2Config", "Dinov2ForImageClassification", {**LAYERS, **PICTURE}),
    "swin": SmallModel(
        "vision",
        "SwinConfig",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "swinv2": SmallModel(
        "vision",
        "Swinv2Config",
        "Swinv2ForImageClassification",
        {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "hiera": SmallModel(
        "vision",
        "HieraConfig",
        "HieraForImageClassification",
        {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 2, 4]},
        (1, 3, 64, 64),
    ),
    "levit": SmallModel(
        "vision",
        "LevitConfig",
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
        (1, 3, 64, 64),
    ),
    "swiftformer": SmallModel(
        "vision",
        "SwiftFormerConfig",
        "SwiftFormerForImageClassification",
        {"embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        (1, 3, 64, 64),
    ),
    "convnext": SmallModel(
        "vision",
        "ConvNextConfig",
        "ConvNextForImageClassification",
        TWO_STAGES,
    ),
    "convnextv2": SmallModel(
        "vision",
        "ConvNextV2Config",
        "ConvNextV2ForImageClassification",
        TWO_STAGES,
    ),
    "resnet": SmallModel(
        "vision",
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "layer_type": "basic"},
    ),
    "regnet": SmallModel(
        "vision",
        "RegNetConfig",
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2], "groups_width": 8},
    ),
    "mobilenet_v1": SmallModel(
        "vision", "MobileNetV1Config", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}
    ),
    "mobilenet_v2": SmallModel(
        "vision", "MobileNetV2Config", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.25}
    ),
    "poolformer": SmallModel(
        "vision",
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_encoder_blocks": 4},
    ),
    "focalnet": SmallModel(
        "vision",
        "FocalNetConfig",
        "FocalNetForImageClassification",
        {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]},
    ),
    "mobilevit": SmallModel(
        "vision",
        "MobileViTConfig",
        "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]},
        (1, 3, 64, 64),
    ),
    "pvt": SmallModel(
        "vision",
        "PvtConfig",
        "PvtForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [8, 16, 32, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 2, 2],
        },
        (1, 3, 64, 64),
    ),
    "yolos": SmallModel(
        "detection",
        "YolosConfig",
        "YolosForObjectDetection",
        {**LAYERS, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 8},
    ),
    "segformer": SmallModel(
        "segmentation",
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {
            **STAGES,
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 32,
            "num_labels": 5,
        },
        (1, 3, 64, 64),
    ),
    "dpt": SmallModel(
        "segmentation",
        "DPTConfig",
        "DPTForDepthEstimation",
        {
            **LAYERS,
            **PICTURE,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 16, 16],
            "fusion_hidden_size": 16,
            "reassemble_factors": [4, 2, 1, 0.5],
        },
    ),
    "bert": _text("BertConfig", "BertForSequenceClassification"),
    "roberta": _text("RobertaConfig", "RobertaForTokenClassification"),
    "albert": _text("AlbertConfig", "AlbertModel", embedding_size=16),
    "electra": _text("ElectraConfig", "ElectraForSequenceClassification", embedding_size=16),
    "mpnet": _text("MPNetConfig", "MPNetModel"),
    "distilbert": SmallModel(
        "text",
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        {"vocab_size": 64, "max_position_embeddings": 40, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        (1, 16),
        "input_ids",
        ids=60,
    ),
    "squeezebert": _text("SqueezeBertConfig", "SqueezeBertModel", embedding_size=32),
    "t5_encoder": SmallModel(
        "text",
        "T5Config",
        "T5EncoderModel",
        {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2},
        (1, 16),
        "input_ids",
        ids=60,
    ),
    "wav2vec2": _audio("Wav2Vec2Config", "Wav2Vec2ForCTC"),
    "hubert": _audio("HubertConfig", "HubertForCTC"),
    "data2vec_audio": _audio("Data2VecAudioConfig", "Data2VecAudioForCTC"),
    "ast": SmallModel(
        "audio",
        "ASTConfig",
        "ASTForAudioClassification",
        {**LAYERS, "num_mel_bins": 32, "max_length": 64, "patch_size": 16},
        (1, 64, 32),
        "input_values",
    ),
    "whisper_encoder": SmallModel(
        "audio",
        "WhisperConfig",
        "WhisperModel",
        {
            **WHISPER,
            "num_mel_bins": 16,
            "max_source_positions": 32,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
        },
        (1, 16, 64),
        "input_features",
    ),
}


def write(name: str, path: Path) -> None:
    """Write one of the models as ONNX, with the weights of a fixed seed."""
    import torch
    import transformers

    small = MODELS[name]
    torch.manual_seed(0)
    values = {**small.values, "attn_implementation": "eager"}
    model = getattr(transformers, small.model)(getattr(transformers, small.config)(**values)).eval()
    if name.endswith("_encoder") and hasattr(model, "get_encoder"):
        model = model.get_encoder()
    _unlike_a_fresh_model(model)

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, given):  # type: ignore[no-untyped-def]
            return self.model(**{small.name: given}, return_dict=False)[0]

    given = torch.randint(1, small.ids, small.shape) if small.ids else torch.randn(small.shape)
    exported = {"input_names": [small.name], "output_names": ["result"], "opset_version": OPSET, "dynamo": False}
    torch.onnx.export(First().eval(), (given,), str(path), **exported)


def _unlike_a_fresh_model(model) -> None:  # type: ignore[no-untyped-def]
    """Give biases, norms and scales of layers values that a trained model could have: fresh ones are all 0 and 1."""
    import torch

    for parameter in model.parameters():
        if parameter.dim() <= 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
        elif parameter.std() < 0.05:
            parameter.data += 0.1 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.25
    for name, buffer in model.named_buffers():
        if name.endswith("running_var"):
            buffer.data *= 1 + 0.5 * torch.rand_like(buffer)
        if name.endswith("running_mean"):
            buffer.data += 0.1 * torch.randn_like(buffer)


def main() -> int:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(MODELS)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        path = folder / f"{name}.onnx"
        if path.exists():
            continue
        try:
            write(name, path)
        # Each model is on its own: the next one is made in any case, and the status says that one is missing.
        except Exception as error:
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
