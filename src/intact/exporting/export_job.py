"""The export itself, in the worker: transformers loads, torch exports and says what the right answers are."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from intact.errors import ModelError, SettingsError
from intact.exporting import processor, tasks
from intact.model import io
from intact.runtime import hub
from intact.runtime.hub import Repository
from intact.settings.config import ExportConfig, ExportTask

if TYPE_CHECKING:
    import torch
    import transformers

    from intact.exporting.huggingface import ExportedModel, ExportOrder

    Sample = dict[str, torch.Tensor]

# The newest opset that every part of the pipeline reads without an upgrade.
OPSET = 21
USUAL_LENGTH = 128
SEED = 0
IMAGE, IDS, MASK, SEGMENTS = "pixel_values", "input_ids", "attention_mask", "token_type_ids"


def export(request: ExportOrder) -> ExportedModel:
    """Export the model of a repository to `output`; save inputs and torch's outputs for them beside it."""
    import torch
    import transformers

    repository, settings = Repository(*request["repository"]), ExportConfig.from_dict(request["settings"])
    trust = settings.trust_remote_code
    with hub.loading(repository, "config"):
        config = transformers.AutoConfig.from_pretrained(**repository.arguments(), trust_remote_code=trust)
    architectures = list(getattr(config, "architectures", None) or [])
    task = settings.task or tasks.task_of(architectures)
    model = _loaded(repository, config, task or tasks.ANY_TASK, trust)
    images = processor.read_processor(repository)
    size = request["image_size"] or processor.image_size(config, images)
    samples = _samples(model, settings, size, repository)
    with torch.no_grad():
        answers = [_outputs(model(**sample), repository) for sample in samples]
    exported = _exported(model, samples[0], list(answers[0]), settings.dynamic, repository)
    _forget_code(exported)
    io.save(exported, Path(request["output"]))
    _save_answers(samples, answers, Path(request["answers"]))
    return {
        "task": task or tasks.ANY_TASK,
        "task_is_known": task is not None,
        "architecture": type(model).__name__,
        "commit": getattr(config, "_commit_hash", None),
        "config_sha256": _digest(repository),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "samples": len(samples),
        "images": processor.pixels(images) if IMAGE in samples[0] else None,
    }


def _loaded(
    repository: Repository, config: transformers.PretrainedConfig, task: ExportTask, trust: bool
) -> transformers.PreTrainedModel:
    """The model in float32, for inference; one without all its weights is refused, since the rest would be random."""
    import torch
    import transformers

    kind = getattr(transformers, tasks.CLASSES[task])
    # Attention in plain operations exports without the guards against NaN that a fused one brings along.
    with hub.loading(repository, f"model for {task}"):
        model, info = kind.from_pretrained(
            **repository.arguments(),
            config=config,
            trust_remote_code=trust,
            attn_implementation="eager",
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(
            "M186",
            f"{repository} lacks weights of {type(model).__name__}, which would be random: {', '.join(missing[:3])}",
            allowed="a task that the model was trained for",
            fix=f"choose another --task: {', '.join(tasks.CLASSES)}",
        )
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return model.to(torch.float32).eval()


def _samples(
    model: transformers.PreTrainedModel, settings: ExportConfig, size: Sequence[int] | None, repository: Repository
) -> list[Sample]:
    """Seeded inputs in the shapes of the export: the first two as they are traced, then, if shapes are free, others."""
    import torch

    torch.manual_seed(SEED)
    config = model.config
    # torch takes a dimension of 1 for a fixed one, so free ones are traced at 2.
    batches = (2, 2, 1, 3) if settings.dynamic else (1, 1)
    if model.main_input_name == IMAGE:
        if size is None:
            raise SettingsError("S186", f"{repository} does not say how large images are", fix="give --image-size 224")
        channels = getattr(config, "num_channels", 3)
        return [{IMAGE: torch.randn(batch, channels, *size)} for batch in batches]
    if model.main_input_name != IDS or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            "M187",
            f"{repository} takes {model.main_input_name}"
            + (" and writes word by word" if getattr(config, "is_encoder_decoder", False) else ""),
            allowed=f"encoders of text ({IDS}) and models of images ({IMAGE})",
            fix="export it with code of your own, and give the file with --onnx",
        )
    length = _length(config, settings, repository)
    lengths = (length, length, max(length // 2, 1), length) if settings.dynamic else (length, length)
    takes = inspect.signature(model.forward).parameters
    return [
        _text(config, takes, batch, words, live=words if number == 0 else max(words // 2, 1))
        for number, (batch, words) in enumerate(zip(batches, lengths, strict=True))
    ]


def _length(config: transformers.PretrainedConfig, settings: ExportConfig, repository: Repository) -> int:
    most = getattr(config, "max_position_embeddings", None)
    if settings.sequence_length is None:
        return USUAL_LENGTH if most is None else min(USUAL_LENGTH, most)
    if most is not None and settings.sequence_length > most:
        asked = f"--sequence-length {settings.sequence_length}"
        raise SettingsError("S187", f"{asked}: {repository} has {most} positions", allowed=f"1 to {most}")
    return settings.sequence_length


def _text(config: transformers.PretrainedConfig, takes: Collection[str], batch: int, length: int, live: int) -> Sample:
    """Random ids, the first `live` of each row seen, in as many segments as the model tells apart."""
    import torch

    segments = getattr(config, "type_vocab_size", 0) or 0
    values = {IDS: torch.randint(config.vocab_size, (batch, length))}
    if MASK in takes:
        values[MASK] = (torch.arange(length) < live).long().repeat(batch, 1)
    if SEGMENTS in takes and segments > 1:
        values[SEGMENTS] = torch.randint(segments, (batch, length))
    return values


def _outputs(found: transformers.utils.ModelOutput, repository: Repository) -> dict[str, np.ndarray]:
    import torch

    odd = [name for name, value in found.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise ModelError("M188", f"{repository}: output {odd[0]} is no tensor", fix="choose another --task")
    return {name: value.numpy() for name, value in found.items()}


def _exported(
    model: transformers.PreTrainedModel, sample: Sample, outputs: list[str], dynamic: bool, repository: Repository
) -> ir.Model:
    import torch

    try:
        program = torch.onnx.export(
            model,
            (),
            kwargs=sample,
            output_names=outputs,
            opset_version=OPSET,
            dynamic_shapes=_free(sample) if dynamic else None,
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        said = str(error).strip().splitlines()[0]
        raise ModelError(
            "M194", f"{repository}: torch cannot export it: {said}", source=f"torch {torch.__version__}"
        ) from None
    assert program is not None, "the exporter that traces always returns a program"
    result: ir.Model = program.model
    return result


def _free(sample: Sample) -> dict[str, dict[int, str]]:
    """The free dimensions of each input: the batch, and the length of text; the size of images stays fixed."""
    return {name: {0: "batch"} if name == IMAGE else {0: "batch", 1: "sequence"} for name in sample}


def _forget_code(model: ir.Model) -> None:
    """Drop what torch notes about lines of code and their paths, which differs from machine to machine."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


def _save_answers(samples: list[Sample], answers: list[dict[str, np.ndarray]], path: Path) -> None:
    arrays = {f"{number}/in/{name}": value.numpy() for number, row in enumerate(samples) for name, value in row.items()}
    arrays |= {f"{number}/out/{name}": value for number, row in enumerate(answers) for name, value in row.items()}
    np.savez(path, **arrays)


def _digest(repository: Repository) -> str:
    file = hub.file_of(repository, "config.json")
    assert file is not None, "the config was read a moment ago"
    return hashlib.sha256(file.read_bytes()).hexdigest()
