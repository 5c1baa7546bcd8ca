"""What automatic mixed precision finds and costs, against the bars that it was built to.

`goals`: on the examples and the zoo, 30 dB on the simulator of Hexagon V73 are met, at no more than the cost of w8a16
throughout, and below it on at least half. `ranking`: of the five groups of nodes of a trained example that cost the
most by themselves, four are among the five that building each alone would find. `curves`: for the accuracy of every one
precision throughout, as a gate judges it, the search finds a mix that costs no more, with at most 12 compiles. `time`:
the noise of the groups of a 12-layer transformer is measured in at most three times the time of one calibration. Exit
status 1 where a bar does not hold. Nothing else should run on the machine meanwhile.

python bench/mixed.py [goals] [ranking] [time] [curves] [MODEL...]
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from intact.errors import IntactError  # noqa: E402
from intact.events import Log  # noqa: E402
from intact.pipeline import execution, preparation  # noqa: E402
from intact.results import Build  # noqa: E402
from intact.search import builds  # noqa: E402
from intact.search.mixed import cheapest, precisions, unseen  # noqa: E402
from intact.search.mixed.curve import Curve, curve_of  # noqa: E402
from intact.settings.config import BuildConfig, merge  # noqa: E402
from intact.targets.registry import load_target  # noqa: E402
from intact.verification.compare import compare  # noqa: E402
from tests.zoo import ZOO, data, transformer  # noqa: E402

GOAL_DB = 30.0
MOST_TIMES = 3.0
TOP, LEAST_SHARED = 5, 4
MOST_COMPILES = 12
ROWS = 160
EXAMPLES = ("digits_cnn", "digits_vit", "topics_bert")
EFFORTS = ("fast", "normal")
TRAINED_TRANSFORMERS = ("digits_vit", "topics_bert")
DEEP = {"LAYERS": 12, "HEADS": 4, "HEAD_WIDTH": 64, "WIDTH": 256, "HIDDEN": 1024, "TOKENS": 64}


def example(name: str, effort: str = "normal") -> tuple[Path, BuildConfig]:
    folder = ROOT / "examples" / name
    return folder / "model.onnx", config(folder / "calibration.npz", effort, test_path=str(folder / "test.npz"))


def saved(name: str, folder: Path, effort: str = "normal") -> tuple[Path, BuildConfig]:
    """A model of the zoo, with rows of inputs."""
    model = ZOO[name]()
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **data(model, ROWS))
    return folder / f"{name}.onnx", config(folder / f"{name}.npz", effort)


def config(inputs: Path, effort: str, **more: object) -> BuildConfig:
    quant = {"load_path": str(inputs), "effort": effort}
    values = {"precision": "auto", "min_sqnr": GOAL_DB, "quant": quant, **more}
    return BuildConfig.from_dict(merge(values, {"compile": {"device": "qnn", "arch": "v73"}}))


def goals(folder: Path) -> bool:
    """Whether 30 dB are met everywhere, for no more than 16-bit activations would cost."""
    below, fine = 0, True
    names = (*EXAMPLES, *ZOO)
    for name in names:
        model, settings = example(name) if name in EXAMPLES else saved(name, folder)
        start = time.perf_counter()
        built = cheapest.build(model, settings, folder / f"out-{name}")
        seconds = time.perf_counter() - start
        assert built.search is not None, "auto searches"
        point, usual = built.search.points[built.search.chosen], built.search.uniform["w8a16"]
        least = min(row.sqnr_db for row in built.accuracy if row.form == "compiled" and row.sqnr_db is not None)
        mix = ", ".join(f"{count} {level}" for level, count in point.groups.items())
        print(f"{name}: {least:.2f} dB, cost {point.cost:.3f} (w8a16 {usual:.3f}): {mix}; {seconds:.0f} s", flush=True)
        fine &= least >= GOAL_DB and point.cost <= usual and built.placement.partitions == 1
        below += point.cost < usual
    print(f"below the cost of w8a16 on {below} of {len(names)}")
    return fine and 2 * below >= len(names)


def curves(folder: Path) -> bool:
    """Whether a mix as accurate as each precision throughout costs no more, and is found with few compiles."""
    fine = True
    for name in asked_models():
        model, settings = example(name) if name in EXAMPLES else saved(name, folder)
        target = load_target("qnn", arch="v73")
        for precision in precisions.throughout(target, settings):
            fine &= _dominates(name, model, settings, precision, folder / f"out-{name}-{precision}")
    return fine


def _dominates(name: str, model: Path, settings: BuildConfig, precision: str, output: Path) -> bool:
    """Whether the search finds a mix with the accuracy of a precision throughout that costs no more than it does."""
    alike = settings.model_copy(update={"precision": precision, "min_sqnr": None})
    try:
        reached = gated_db(builds.build_any(model, alike, output))
    except IntactError as error:
        print(f"{name}, {precision}: not built: {error.message.splitlines()[0][:120]}", flush=True)
        return True
    goal = math.floor(100 * reached) / 100
    asked = settings.model_copy(update={"min_sqnr": goal})
    built = cheapest.build(model, asked, output.with_name(f"{output.name}-auto"))
    assert built.search is not None, "auto searches"
    cost = built.search.points[built.search.chosen].cost
    level = levels_of(asked)[precision]
    compiles = next(stage for stage in built.stages if stage.name == "search").details["builds"]
    least, usual = gated_db(built), built.search.uniform[level]
    held = least >= goal and cost <= usual + 1e-9 and compiles <= MOST_COMPILES
    print(
        f"{name}, {precision}: {reached:.2f} dB at {usual:.3f}; auto {least:.2f} dB at {cost:.3f}, "
        f"{compiles} compiles   {'holds' if held else 'FAILS'}",
        flush=True,
    )
    return held


def gated_db(built: Build) -> float:
    """The least SQNR of a build, of every form: what `--min-sqnr` holds it to."""
    found = [row.sqnr_db for row in built.accuracy if row.sqnr_db is not None]
    return min(found, default=math.inf)


def levels_of(config: BuildConfig) -> dict[str, str]:
    """The name of the level of costs that each precision throughout has."""
    target = load_target("qnn", arch="v73")
    assert target.costs is not None, "the target has costs"
    found = precisions.throughout(target, config)
    return {precision: target.costs.levels[position].name for precision, position in found.items()}


def asked_models() -> list[str]:
    """The models of the command line, or all."""
    return [name for name in sys.argv[1:] if name not in PARTS] or [*EXAMPLES, *ZOO]


def ranking(_: Path) -> bool:
    """Whether the measured noise names the same groups as quantizing each of them alone, without and with care."""
    fine = True
    for name in TRAINED_TRANSFORMERS:
        for effort in EFFORTS:
            begun = optimized(*example(name, effort))
            curve = curve_of(begun)
            quick = [alone.group for alone in curve.alone[:TOP]]
            slow = np.argsort(-np.array(built_alone(begun, curve)), kind="stable")[:TOP]
            shared = len(set(quick) & set(slow))
            first = ", ".join(curve.found.groups[index].nodes[0] for index in slow)
            groups = len(curve.found.groups)
            print(f"{name}, {effort}: {shared} of the worst {TOP} of {groups} groups are the same: {first}", flush=True)
            fine &= shared >= LEAST_SHARED
    return fine


def optimized(path: Path, config: BuildConfig) -> preparation.PreparedModel:
    return preparation.optimize(preparation.begin(path, config, Log())[0], Log())


def built_alone(begun: preparation.PreparedModel, curve: Curve) -> list[float]:
    """The noise at the worst output with each group alone quantized, as a share of the signal.

    Each is calibrated, smoothed and rounded as a build would, on the rows that the search observes ranges on, and run
    on all that it holds out.
    """
    observed, rows = unseen.held_out(begun.inputs.calibration)
    begun = replace(begun, inputs=replace(begun.inputs, calibration=observed))
    expected = execution.run(begun.source.path, rows)
    found = []
    for group in curve.found.groups:
        others = {node.name or "": "float" for node in begun.model.graph if node.name not in group.nodes}
        settings = BuildConfig.from_dict(merge(begun.config.to_dict(), {"quant": {"types": others}}))
        quantized = preparation.quantize(replace(begun, config=settings), Log())
        accuracy = compare("quantized", "", expected, execution.run(quantized.model, rows))
        found.append(max(0.0 if row.sqnr_db is None else 10 ** (-row.sqnr_db / 10) for row in accuracy))
    return found


def timing(folder: Path) -> bool:
    """Whether measuring the groups of a deep transformer takes at most three times as long as calibrating it.

    A calibration is what the least effort does: it settles masks, observes all rows, chooses ranges and inserts them.
    """
    for name, size in DEEP.items():
        setattr(transformer, name, size)
    seconds, groups = {}, 0
    for effort in EFFORTS:
        begun = optimized(*saved("bert", folder, effort))
        start = time.perf_counter()
        groups = len(curve_of(begun).found.groups)
        measured = time.perf_counter()
        preparation.quantize(begun, Log())
        seconds[effort] = (measured - start, time.perf_counter() - measured)
    calibration = seconds["fast"][1]
    for effort, (taken, quantizing) in seconds.items():
        print(
            f"{groups} groups, {effort}: {taken:.1f} s, {taken / calibration:.2f} times the {calibration:.1f} s of one "
            f"calibration (quantizing with this effort takes {quantizing:.1f} s)",
            flush=True,
        )
    return max(taken for taken, _ in seconds.values()) <= MOST_TIMES * calibration


PARTS = {"goals": goals, "ranking": ranking, "time": timing, "curves": curves}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        held = [PARTS[name](Path(scratch)) for name in [word for word in sys.argv[1:] if word in PARTS] or PARTS]
    sys.exit(0 if all(held) else 1)
