"""Settings and flags that make no sense together, whatever the model is. Loads nothing, so that they cost no time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from intact.errors import SettingsError
from intact.settings.config import BuildConfig

AUTO = "auto"
GOALS = ("min_sqnr", "min_cosine", "max_accuracy_drop")
"""Gates that a search over precisions can aim at."""
# What the search decides itself.
_DECIDED = {"activation_type", "weight_type", "types", "plan", "encodings"}


def check_labels(config: BuildConfig) -> None:
    """Refuse a gate on the accuracy of a task that nothing tells."""
    if config.max_accuracy_drop is not None and config.labels is None:
        raise SettingsError(
            "S139",
            f"--max-accuracy-drop {config.max_accuracy_drop:g}: accuracy is not known without labels",
            fix="give --labels, or gate on --min-sqnr or --min-cosine",
        )


def check_npu(config: BuildConfig, name: str, *, npu: bool) -> None:
    """Refuse a gate on the share of an NPU that the device `name` does not have."""
    if config.require_npu is not None and not npu:
        raise SettingsError("S118", f"--require-npu {config.require_npu:g}: {name} has no NPU")


def check_latency(config: BuildConfig, name: str, why: str | None, timed: Iterable[str]) -> None:
    """Refuse a gate on latency where it cannot be measured on this machine; `why` says so, or is None."""
    if config.max_latency_ratio is not None and why is not None:
        raise SettingsError(
            "S137",
            f"--max-latency-ratio {config.max_latency_ratio:g}: {name} cannot be checked here: {why}",
            allowed=f"the devices {', '.join(timed)}",
            fix="leave the gate out, and time the model on the device",
        )


def check_cycles(config: BuildConfig, name: str, able: Iterable[str], *, estimates: bool) -> None:
    """Refuse a gate on cycles if the compiler of the device estimates none."""
    if config.max_cycles is not None and not estimates:
        raise SettingsError(
            "S214",
            f"--max-cycles {config.max_cycles}: no compiler of {name} estimates cycles",
            allowed=f"the devices {', '.join(able)}",
        )


def check_partner(config: BuildConfig, *, alone: bool) -> None:
    """Refuse to look for differences in one model where no device is named to compare it on."""
    if alone and "device" not in config.compile.model_fields_set:
        raise SettingsError(
            "S198",
            "one model was given, and no device",
            fix="give a second model to compare with, or a --device with a simulator (intact targets)",
        )


def check_cells(names: Sequence[str]) -> None:
    """Refuse a matrix without cells, and cells that are the same."""
    if not names:
        raise SettingsError("S195", "a matrix needs at least one device and one precision")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise SettingsError("S196", f"{twice[0]}: the same device and precision stand there twice")


def check_search(config: BuildConfig) -> None:
    """Refuse a search over precisions without a goal, or one whose outcome is set already."""
    if config.precision != AUTO:
        return
    if all(getattr(config, goal) is None for goal in GOALS):
        fix = "add --min-sqnr 30, --min-cosine 0.999, or --max-accuracy-drop 0.5 with --labels"
        raise SettingsError("S106", "--precision auto needs a goal: the cheapest mix that meets what?", fix=fix)
    quant = config.quantization
    settled = sorted(quant.model_fields_set & _DECIDED) if quant is not None else []
    if settled:
        raise SettingsError("S108", f"--precision auto decides about {', '.join(settled)}", fix="leave them out")


def refuse_auto(config: BuildConfig) -> None:
    """Refuse, where a model is quantized once, the precision that a search over many builds chooses."""
    if config.precision == AUTO:
        fix = "use intact build; its output folder has a plan.toml for --plan"
        raise SettingsError("S105", "--precision auto is found by building and verifying the model", fix=fix)


def check_ways(config: BuildConfig, *, resume: bool, learn: bool) -> None:
    """Refuse to resume or to learn where neither would mean anything."""
    if config.precision == AUTO and resume:
        raise SettingsError(
            "S222",
            "--resume keeps stages of one build, and --precision auto makes many",
            fix="leave --resume out; a mix that was found is built again with --plan plan.toml --resume",
        )
    if learn and resume:
        raise SettingsError("S209", "--learn changes what --resume would go on from", fix="leave one of them out")
    if config.precision == AUTO and learn:
        fix = "build with --plan and the plan.toml that auto writes"
        raise SettingsError("S208", "--learn: --precision auto builds many times, and keeps one build", fix=fix)
