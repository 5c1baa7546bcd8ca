"""Help in panels: options and commands under headings, summaries whole, without rich, which takes long to load."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

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
        *("weight_type", "activation_type", "per_channel", "block_size", "accuracy_level", "headroom"),
        *(
            "weight_symmetric",
            "weight_symmetry",
            "activation_symmetric",
            "op_type",
            "exclude_op_type",
            "node",
            "exclude_node",
        ),
        *("encodings", "calibrate_missing"),
    ),
    "Long work": ("max_memory", "cluster", "resume"),
    "Messages": ("as_json", "log_json", "quiet", "verbose", "junit", "sarif", "debug", "help"),
}
_HEADING = {name: heading for heading, names in _PANELS.items() for name in names}
_OTHER = "Options"
_MOST_IN_ONE = 12
_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
# Headings, and what is typed: flags, arguments and commands, which more than one blank follows.
_HEADINGS = re.compile(r"^(?:Usage|\S[^\n]*(?=:$))", re.MULTILINE)
_TYPED = re.compile(r"^  (?:-\S[^\n]*?(?=  |$)|[a-z]\S*(?: <\w+>)?(?=  ))", re.MULTILINE)


def has_colours(stream: TextIO) -> bool:
    """True if a person reads a stream on a terminal with colours, and has not asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str) -> str:
    """Help with headings in bold, and what is typed in colour."""
    headed = _HEADINGS.sub(lambda found: f"{_BOLD}{found[0]}{_PLAIN}", text)
    return _TYPED.sub(lambda found: f"  {_CYAN}{found[0][2:]}{_PLAIN}", headed)


class PanelCommand(TyperCommand):
    """A command whose options stand under headings, unless they are few."""

    def get_help(self, ctx: Context) -> str:
        """The help, in colours where the terminal has them."""
        text = super().get_help(ctx)
        return coloured(text) if has_colours(sys.stdout) else text

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

    def get_help(self, ctx: Context) -> str:
        """The help, in colours where the terminal has them."""
        text = super().get_help(ctx)
        return coloured(text) if has_colours(sys.stdout) else text

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
