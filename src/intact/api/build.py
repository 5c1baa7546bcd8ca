"""`intact.build`: from a model to a verified model for a device."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from intact.api.notebook_progress import watched
from intact.api.request import requested
from intact.backends import lessons
from intact.events import Events
from intact.pipeline.stages import BuildOptions
from intact.reports.junit import document as junit
from intact.results import Build
from intact.runtime import cluster as clusters
from intact.search.builds import build_any
from intact.settings.config import BuildConfig
from intact.settings.keywords import AnyPath, Keywords

__all__ = ["build", "junit"]


def build(
    model: AnyPath | None = None,
    *,
    output: AnyPath,
    hf: str | None = None,
    config: BuildConfig | None = None,
    overwrite: bool = False,
    learn: bool = False,
    cluster: str | None = None,
    resume: bool = False,
    events: Events | None = None,
    **settings: Unpack[Keywords],
) -> Build:
    """Quantize, compile and verify a model for a device: the whole pipeline.

    `model` is an ONNX file, or `hf` names a Hugging Face model. The folder `output` appears whole or not at all; one
    that holds something is replaced with `overwrite=True` only. In a notebook the cell shows progress; `events` is for
    a watcher of one's own. With `cluster` (tcp://HOST:PORT, ray://HOST:PORT, local or local:N) calibration runs on its
    workers, with the same result; they have to see the model, the data and the place of `output`. With `resume`,
    finished stages are kept beside `output` until the build ends well, and one that died goes on from them: with the
    same model, data, settings and versions. With `learn`, forms that earlier builds found for what the compiler gets
    wrong are taken at once, and what this build finds is kept for later ones, in a file among the user's settings.
    Whatever cannot be built raises `IntactError`, with a code that
    `intact.explain` knows::

        built = intact.build("model.onnx", device="qnn", precision="uint8", data="inputs.npz", output="output")
        assert built.passed, built.verdict_reasons
        built.accuracy[-1].sqnr_db, built.placement.cpu_nodes, built.warnings

    Settings are keyword arguments by the names of the flags of `intact build`, over a `BuildConfig` if `config` gives
    one. What is left out follows the preset of the precision:

    - device: `cpu`, `qnn`, `openvino`, `rknn`, `dml` or a table (`intact.list_targets()`); arch="v75" or soc="SM8650"
      names the chip; assume_vnni, assume_ort, strict, ep_option, toolchain, io, timeout, max_memory.
    - precision: `uint8`, `int8`, `w8a16`, `int16`, `w4a16`, `w8`, `w4`, `fp16`, `fp32`, or `auto` with a goal; effort:
      `fast` or `normal`; method, plan, rescue, optimize.
    - data: real inputs, as arrays by input name with samples on axis 0, an .npz, a folder of images, a text file, or a
      function that gives samples; test_data, samples, distribution, seed, tokenizer, state, and for images image_size,
      image_mean, image_std, image_order, image_layout. A quarter of `data` is held back to verify on.
    - gates, which decide `passed`: min_sqnr (dB), min_cosine, labels with max_accuracy_drop (percentage points),
      max_latency_ratio, require_npu (percent), max_cycles.
    - shapes and inputs: dim={"batch": 1} fixes a free dimension, set={"rate": 16000} makes an input a constant.
    - quantization in detail: weight_type, activation_type, per_channel, block_size, accuracy_level, headroom,
      weight_symmetric, activation_symmetric, op_type, exclude_op_type, node, exclude_node, encodings,
      calibrate_missing.
    - with `hf`: task, sequence_length, dynamic, trust_remote_code.

    The result shows its verdict at a prompt, and the head of the report in a notebook; `output/report.html` has all of
    it, with the lines that run the model.
    """
    events = watched(events)
    place, learnt = Path(output), (lessons.default_place() if learn else None)
    with clusters.used(cluster, place.parent, events), requested(model, hf, config, settings, events) as given:
        options = BuildOptions(overwrite=overwrite, resume=resume)
        return build_any(given.path, given.config, place, options, learnt=learnt, events=events)
