"""The place of each setting in the configuration, by the name that flags and keyword arguments have."""

from __future__ import annotations

from collections.abc import Mapping

# Names that are not those of their settings, or whose settings lie in a part of the configuration.
_COMPILE = ("device", "arch", "soc", "assume_vnni", "assume_ort", "toolchain", "io", "timeout")
_QUANT = (
    *("samples", "distribution", "seed", "method", "plan", "effort", "rescue", "weight_type", "activation_type"),
    *("per_channel", "block_size", "accuracy_level", "weight_symmetric", "activation_symmetric", "encodings"),
    *("calibrate_missing", "headroom"),
)
PLACES: Mapping[str, tuple[str, ...]] = {
    **{name: ("compile", name) for name in _COMPILE},
    **{name: ("quant", name) for name in _QUANT},
    **{f"image_{name}": ("images", name) for name in ("size", "mean", "std", "order", "layout")},
    **{name: ("export", name) for name in ("task", "sequence_length", "dynamic", "trust_remote_code")},
    "ep_option": ("compile", "ep_options"),
    "data": ("quant", "load_path"),
    "weight_symmetry": ("quant", "weight_symmetric"),
    "op_type": ("quant", "op_types"),
    "exclude_op_type": ("quant", "exclude_op_types"),
    "node": ("quant", "nodes"),
    "exclude_node": ("quant", "exclude_nodes"),
    "test_data": ("test_path",),
    "dim": ("dims",),
    "set": ("fixed_inputs",),
    "state": ("states",),
    **{
        name: (name,)
        for name in (
            *("precision", "tokenizer", "optimize", "strict", "labels", "min_sqnr", "min_cosine"),
            *("max_accuracy_drop", "max_latency_ratio", "require_npu", "max_cycles", "max_memory"),
        )
    },
}


def nested(path: tuple[str, ...], value: object) -> dict[str, object]:
    """A value in its place, as nested dictionaries."""
    return {path[0]: nested(path[1:], value) if len(path) > 1 else value}
