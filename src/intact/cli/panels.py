"""Help in panels: options and commands under headings, summaries whole, without rich, which takes long to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

# The heading of each option by its name in code, in the order that headings are printed in.
_PANELS = {
    "Model": ("model", "onnx", "hf", "task", "sequence_length", "dynamic", "trust_remote_code", "dim", "set"),
    "Output": ("output", "overwrite", "config", "learn"),
    "Device": (
        "device",
        "arch",
        "soc",
        "assume_vnni",
        "assume_ort",
        "strict",
        "ep_option",
        "toolchain",
        "io",
        "timeout",
    ),
    "Precision": ("precision", "effort", "method", "plan", "rescue", "optimize"),
    "Inputs": (
        *("data", "test_data", "samples", "distribution", "seed", "tokenizer"),
        *("image_size", "image_mean", "image_std", "image_order", "image_layout", "state"),
    ),
    "Gates": (
        "min_sqnr",
        "min_cosine",
        "labels",
        "max_accuracy_drop",
        "max_latency_ratio",
        "require_npu",
        "max_cycles",
    ),
    "Quantization in detail": (
        *("weight_type", "activation_type", "per_channel", "block_size", "accuracy_level", "weight_symmetric"),
        *("weight_symmetry", "activation_symmetric", "op_type", "exclude_op_type", "node", "exclude_node"),
        *("encodings", "calibrate_missing"),
    ),
    "Long work": ("max_memory", "cluster", "resume"),
    "Messages": ("as_json", "log_json", "quiet", "verbose", "junit", "sarif", "debug", "help"),
}
_HEADING = {name: heading for heading, names in _PANELS.items() for name in names}
_OTHER = "Options"
_MOST_IN_ONE = 12


class PanelCommand(TyperCommand):
    """A command whose options stand under headings, unless they are few."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write each heading with its options; what has none comes first."""
        params = self.get_params(ctx)
        if len(params) <= _MOST_IN_ONE:
            super().format_options(ctx, formatter)
            return
        for heading in (_OTHER, *_PANELS):
            found = [param for param in params if _HEADING.get(param.name or "", _OTHER) == heading]
            records = [record for param in found if (record := param.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class PanelGroup(TyperGroup):
    """Commands under the headings that they were added with."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write each heading with its commands and their summaries, whole."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            headings.setdefault(heading, []).append((name, command.short_help or command.get_short_help_str(1000)))
        width = max(len(name) for name in self.commands)
        for heading, rows in headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in rows])
