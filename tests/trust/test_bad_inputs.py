"""The table of bad inputs: whatever is wrong with a file, each command that reads it refuses it in the right way."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import intact
from intact.cli import main
from tests.conftest import SavedZoo
from tests.trust import bad_inputs
from tests.trust.bad_inputs import Make

SECONDS = 10.0
FILE = "bad"

MODEL_COMMANDS = {
    "build": "build {bad} --device cpu -o {out}",
    "compile": "compile {bad} --device cpu -o {out}",
    "quantize": "quantize {bad} -o {out}.onnx",
    "plan": "plan {bad} -o {out}.toml",
    "rewrite": "rewrite {bad} --device cpu -o {out}.onnx",
    "convert": "convert {bad} --to qdq -o {out}.onnx",
    "verify": "verify {bad} {model}",
    "verify a candidate": "verify {model} {bad}",
    "perf": "perf {bad}",
    "debug": "debug {bad} {model}",
    "analyze": "analyze {bad} --device qnn",
    "inspect": "inspect {bad}",
    "lint": "lint {bad}",
    "matrix": "matrix {bad} --devices cpu --precisions uint8 -o {out}",
    "encodings export": "encodings export {bad} -o {out}.json",
    "encodings diff": "encodings diff {bad} {model}",
}
COMMANDS = {words.split()[0] for words in MODEL_COMMANDS.values()}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: its ending, what may be wrong with it, and the commands that read it."""

    suffix: str
    faults: dict[str, Make]
    commands: dict[str, str]


KINDS = {
    "model": Kind(".onnx", bad_inputs.MODELS, MODEL_COMMANDS),
    "unrunnable model": Kind(
        ".onnx", bad_inputs.UNRUNNABLE, {name: MODEL_COMMANDS[name] for name in ("build", "quantize", "verify", "perf")}
    ),
    "external data": Kind(
        ".onnx", bad_inputs.EXTERNAL, {name: MODEL_COMMANDS[name] for name in ("build", "inspect", "verify", "lint")}
    ),
    "compiled model": Kind(
        ".onnx",
        bad_inputs.COMPILED,
        {name: MODEL_COMMANDS[name] for name in ("quantize", "plan", "perf", "rewrite", "convert")},
    ),
    "data": Kind(
        ".npz",
        bad_inputs.DATA,
        {
            "build": "build {model} --device cpu --data {bad} -o {out}",
            "build to test": "build {model} --device cpu --data {data} --test-data {bad} -o {out}",
            "verify": "verify {model} {model} --data {bad}",
            "perf": "perf {model} --data {bad}",
        },
    ),
    "labels": Kind(
        ".npz",
        bad_inputs.LABELS,
        {
            "build": "build {model} --device cpu --data {data} --labels {bad} --max-accuracy-drop 1 -o {out}",
            "verify": "verify {model} {model} --data {data} --labels {bad}",
        },
    ),
    "config": Kind(
        ".toml",
        bad_inputs.CONFIGS,
        {
            "build": "build {model} --config {bad} -o {out}",
            "quantize": "quantize {model} --config {bad} -o {out}.onnx",
            "plan": "plan {model} --config {bad} -o {out}.toml",
        },
    ),
    "config in JSON": Kind(".json", bad_inputs.JSON_CONFIGS, {"build": "build {model} --config {bad} -o {out}"}),
    "plan": Kind(
        ".toml",
        bad_inputs.PLANS,
        {
            "build": "build {model} --plan {bad} --device cpu -o {out}",
            "quantize": "quantize {model} --plan {bad} -o {out}.onnx",
            "plan": "plan {model} --plan {bad} -o {out}.toml",
        },
    ),
    "encodings": Kind(
        ".json",
        bad_inputs.ENCODINGS,
        {
            "quantize": "quantize {model} --encodings {bad} -o {out}.onnx",
            "encodings diff": "encodings diff {bad} {bad}",
        },
    ),
    "table": Kind(
        ".toml",
        bad_inputs.TABLES,
        {
            "build": "build {model} --device {bad} -o {out}",
            "analyze": "analyze {model} --device {bad}",
            "plan": "plan {model} --device {bad} -o {out}.toml",
        },
    ),
    "manifest": Kind(".json", bad_inputs.MANIFESTS, {"verify": "verify {bad}"}),
}
ALL = [(name, fault, command) for name, kind in KINDS.items() for fault in kind.faults for command in kind.commands]
# Every third case is enough for every day: three has no factor in common with the numbers of commands.
QUICK = set(ALL[::3])
CASES = [
    pytest.param(KINDS[name], fault, command, id=f"{name}-{fault}-{command}", marks=() if quick else pytest.mark.slow)
    for name, fault, command in ALL
    for quick in [(name, fault, command) in QUICK]
]


def test_the_table_is_long_enough() -> None:
    assert len(ALL) >= 1000 and len(QUICK) >= 300
    assert {command.split()[0] for name, _, key in QUICK for command in [KINDS[name].commands[key]]} >= COMMANDS
    assert {(name, fault) for name, fault, _ in QUICK} >= {
        (name, fault) for name, kind in KINDS.items() for fault in kind.faults if len(kind.commands) > 3
    }


@pytest.mark.parametrize(("kind", "fault", "command"), CASES)
def test_a_bad_input_is_refused(
    kind: Kind,
    fault: str,
    command: str,
    zoo: SavedZoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / f"{FILE}{kind.suffix}"
    kind.faults[fault](bad)
    before = {path.name for path in tmp_path.iterdir()}
    places = {"bad": bad, "out": tmp_path / "out", "model": zoo.model("residual_cnn"), "data": zoo.data("residual_cnn")}
    monkeypatch.setattr("sys.argv", ["intact", *kind.commands[command].format(**places).split()])
    start = time.process_time()
    with pytest.raises(SystemExit) as end:
        main.main()
    told = capsys.readouterr().err
    assert end.value.code in range(1, 6), told
    code = re.search(r"^error\[([SDOMTEG]\d{3})\]: ", told, re.MULTILINE)
    assert code is not None, told
    assert intact.explain(code[1])
    assert str(bad) in told.partition("error[")[2]
    assert "\x1b" not in told
    assert time.process_time() - start < SECONDS
    assert {path.name for path in tmp_path.iterdir()} <= before | {"out"}
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())
