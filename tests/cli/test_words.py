"""Words of the command line: mistakes told at once, completion, files for integration, notes and warnings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from rich.console import Console
from rich.progress import Progress

from intact.cli import console, main, panels
from intact.model import io
from tests.cli import command
from tests.linting.wrong import CASES

BIN = Path(sys.executable).parent


@pytest.fixture
def run():
    """Call the command in this process: its status, stdout and stderr."""
    return command.run


@pytest.fixture
def build(run, zoo, tmp_path):
    """`intact build` of a small CNN with data; flags are added."""

    def call(*flags):
        model, rows = zoo.model("residual_cnn"), zoo.data("residual_cnn")
        return run("build", "--onnx", model, "--data", rows, "-o", tmp_path / "out", *flags)

    return call


class TestMistakesInSettings:
    LIGHT = """
import sys
sys.argv = ["intact", *{args!r}]
from intact.cli.main import main
try:
    main()
except SystemExit as end:
    assert end.code == 2, end.code
print("loaded:", sorted({{"numpy", "onnx", "onnx_ir", "onnxruntime", "jinja2", "joblib", "rich"}} & set(sys.modules)))
"""

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (["build", "m.onnx", "--precision", "unit8", "-o", "q"], "did you mean uint8"),
            (["quantize", "m.onnx", "--effort", "norml", "-o", "q"], "did you mean normal?"),
            (["compile", "m.onnx", "--method", "entrpy", "-o", "q"], "did you mean entropy?"),
            (["analyze", "m.onnx", "--device", "qmn"], "did you mean qnn?"),
            (["build", __file__, "-o", Path(__file__).parent.as_posix()], "exists and is not empty"),
            (["build", "-o", "q"], "no model was given"),
            (["matrix", "m.onnx", "--devices", "cpu", "--precisions", "w4", "--min-cosine", "3", "-o", "q"], "cosine"),
            (["verify", "a.onnx", "b.onnx", "--min-cosine", "3"], "min_cosine = 3"),
            (["verify", "a.onnx", "b.onnx"], "cannot read a.onnx"),
            (["lint", "m.onnx"], "cannot read m.onnx"),
            (["debug", ".", "m.onnx"], ". is a folder"),
            (["encodings", "diff", "m.onnx", "n.onnx"], "cannot read m.onnx"),
            (["build", __file__, "--device", "qnn", "--soc", "SM9999", "-o", "q"], "unknown SoC 'SM9999' of qnn"),
            (["quantize", __file__, "--device", "qnn", "--arch", "v99", "-o", "q"], "unknown architecture 'v99'"),
            (["compile", __file__, "--device", "openvino", "--precision", "w4a16", "-o", "q"], "makes no sense on"),
            (["plan", __file__, "--device", "table.toml", "-o", "q"], "table.toml: no such target table"),
            (["rewrite", __file__, "--data", "rows.npz", "-o", "q"], "rows.npz: there is no such file"),
            (["analyze", __file__, "--plan", "plan.toml"], "plan.toml: cannot be read"),
            (["verify", __file__, __file__, "--max-accuracy-drop", "1"], "not known without labels"),
            (["debug", __file__, __file__, "--device", "qnn", "--soc", "SM9999"], "unknown SoC 'SM9999' of qnn"),
            (["matrix", __file__, "--devices", "cpu,qmn", "--precisions", "uint8", "-o", "q"], "did you mean qnn?"),
            (["build", __file__, "--precision", "auto", "-o", "q"], "needs a goal"),
            (["build", __file__, "--device", "qnn", "--max-latency-ratio", "1", "-o", "q"], "the devices cpu"),
            (["build", __file__, "--device", "qnn", "--max-cycles", "9", "-o", "q"], "no compiler of qnn estimates"),
            (["build", __file__, "--precision", "fp16", "--effort", "fast", "-o", "q"], "effort would have no effect"),
            (["build", __file__, "--precision", "uint8", "--block-size", "32", "-o", "q"], "other weights have no"),
            (["debug", __file__], "one model was given, and no device"),
        ],
        ids=lambda value: value[0] if isinstance(value, list) else "",
    )
    def test_are_told_before_anything_heavy_is_loaded(self, args, said, tmp_path):
        code = self.LIGHT.format(args=args)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.stdout == "loaded: []\n", done.stdout + done.stderr
        assert said in done.stderr

    def test_in_a_file_have_the_same_hint(self, run, tmp_path):
        (tmp_path / "s.toml").write_text('precision = "unit8"\n')
        status, _, err = run("build", "m.onnx", "--config", tmp_path / "s.toml", "-o", tmp_path / "q")
        assert status == 2 and "s.toml:1: precision" in err and "did you mean uint8" in err


def test_completion_scripts_for_every_shell():
    for shell in ("bash", "zsh", "fish", "powershell"):
        environment = {**os.environ, "_INTACT_COMPLETE": f"source_{shell}"}
        found = subprocess.run([BIN / "intact"], capture_output=True, text=True, timeout=60, env=environment)
        assert found.returncode == 0 and "_INTACT_COMPLETE" in found.stdout and "omplet" in found.stdout, shell
    typed = {"COMP_WORDS": "intact do", "COMP_CWORD": "1", "_INTACT_COMPLETE": "complete_bash"}
    found = subprocess.run([BIN / "intact"], capture_output=True, text=True, timeout=60, env={**os.environ, **typed})
    assert found.stdout.split() == ["doctor"]


class TestForContinuousIntegration:
    def test_build_writes_its_gates_as_junit(self, build, tmp_path):
        status, _, _ = build("--effort", "fast", "--min-sqnr", "400", "--junit", tmp_path / "junit.xml")
        suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
        assert status == 1 and (suite.get("tests"), suite.get("failures")) == ("2", "2")
        assert [case.get("name") for case in suite] == ["verdict", "gate min_sqnr"]
        assert "400" in suite[0].find("failure").get("message")

    def test_lint_writes_its_findings_as_sarif(self, run, tmp_path):
        path = tmp_path / "faulty.onnx"
        io.save(CASES["a Gemm bias at four times its scale"][1](), path)
        status, out, _ = run("lint", path, "--sarif", tmp_path / "lint.sarif", "--json")
        [found] = json.loads((tmp_path / "lint.sarif").read_text())["runs"]
        findings = json.loads(out)["findings"]
        assert status == 1 and len(findings) == len(found["results"]) > 0
        assert {rule["id"] for rule in found["tool"]["driver"]["rules"]} == {one["code"] for one in findings}
        assert found["results"][0]["locations"][0]["logicalLocations"][0]["name"] == findings[0]["node"]


def test_lint_says_that_a_float_model_is_not_quantized(run, zoo):
    status, out, _ = run("lint", zoo.model("residual_cnn"))
    assert "not quantized" in out and status == 0
    assert json.loads(run("lint", zoo.model("residual_cnn"), "--json")[1])["quantized"] is False


def test_probe_asks_where_its_answers_go(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run("probe")
    assert status == 2 and "--output" in err and not list(tmp_path.iterdir())


class TestWhatIsSaid:
    def test_settings_that_differ_from_the_preset_and_no_others(self, build):
        _, _, err = build("--effort", "fast")
        [line] = [line for line in err.splitlines() if line.startswith("settings:")]
        assert "quant.effort=fast" in line and "quant.load_path=" in line
        assert "weight_type" not in line and "seed" not in line and "verdict" not in line

    def test_all_settings_and_stages_with_verbose(self, build):
        _, out, _ = build("--effort", "fast", "-v")
        assert "quant.weight_type=int8" in out and re.search(r"^verify: \d+\.\d\d s$", out, re.MULTILINE)

    def test_synthetic_inputs_are_told_once(self, run, zoo, tmp_path):
        _, _, err = run("build", zoo.model("residual_cnn"), "--samples", "4", "--effort", "fast", "-o", tmp_path / "o")
        assert err.count("synthetic") == 1 and "no --data" in err

    def test_a_line_for_every_stage_that_ran(self, build, tmp_path):
        _, _, err = build("--effort", "fast")
        done = [line.split()[1] for line in err.splitlines() if line.startswith("✓ ")]
        stages = json.loads((tmp_path / "out/manifest.json").read_text())["stages"]
        assert done == [stage["name"] for stage in stages if stage["status"] == "ran"] and len(done) > 4
        assert re.search(r"^✓ verify +\d+ samples compared +[\d.]+ (ms|s)$", err, re.MULTILINE)
        assert "✓" not in build("--effort", "fast", "--overwrite", "--quiet")[2]


class TestHelp:
    def test_commands_have_whole_summaries_that_fit_a_line(self, run, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        out = run("--help")[1]
        lines = [line for line in out.splitlines() if re.match(r"  [a-z]+ {2,}[A-Z]", line)]
        assert len(lines) == len(typer.main.get_command(main.app).commands)
        assert all(line.endswith(".") and not line.endswith("...") for line in lines)

    def test_options_of_a_build_stand_under_headings_each_once(self, run):
        out = run("build", "--help")[1]
        assert [line for line in out.splitlines() if re.fullmatch(r"\w[\w ]+:", line)] == [
            f"{h}:" for h in panels._PANELS
        ]
        for flag in ("--precision", "--soc", "--data", "--min-sqnr", "--weight-type", "--json", "--output"):
            assert len(re.findall(rf"^  .*{flag}\b", out, re.MULTILINE)) >= 1
        build = typer.main.get_command(main.app).commands["build"]
        assert {param.name for param in build.params} - set(panels._HEADING) == set()

    def test_a_short_list_of_options_has_one_heading(self, run):
        out = run("doctor", "--help")[1]
        assert "Options:" in out and "Messages:" not in out


class TestColours:
    HELP = """Usage: intact build [OPTIONS]

  Builds, as ever: 'm.onnx' and more.

Model:
  model <path>   The model.
  -o, --output <path>  It.
"""

    def test_of_help_are_for_headings_and_for_what_is_typed(self):
        shown = panels.coloured(self.HELP)
        assert re.findall(r"\x1b\[1m(.*?)\x1b\[0m", shown) == ["Usage", "Model"]
        assert re.findall(r"\x1b\[36m(.*?)\x1b\[0m", shown) == ["model <path>", "-o, --output <path>"]
        assert re.sub(r"\x1b\[\d*m", "", shown) == self.HELP

    @pytest.mark.parametrize(
        ("terminal", "environment", "coloured"),
        [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
        ids=["a terminal", "a pipe", "NO_COLOR", "a dumb terminal"],
    )
    @pytest.mark.parametrize("words", [["--help"], ["build", "--help"]], ids=["all", "one command"])
    def test_are_there_on_a_terminal_unless_not_wanted(self, words, terminal, environment, coloured, monkeypatch):
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        found = typer.main.get_command(main.app)
        command_asked = found if len(words) == 1 else found.commands[words[0]]
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", _Stream(terminal))
            text = command_asked.get_help(command_asked.make_context("intact", [], resilient_parsing=True))
        assert ("\x1b[1m" in text and "\x1b[36m" in text) is coloured


class _Stream:
    """A stream that is a terminal or not."""

    encoding = "utf-8"

    def __init__(self, terminal):
        self.terminal = terminal

    def isatty(self):
        return self.terminal


def test_the_time_left_grows_while_a_step_takes_longer_than_those_before():
    clock = [0.0]
    progress = Progress(get_time=lambda: clock[0])
    progress.add_task("probe", total=100)
    (task,) = progress.tasks
    clock[0] = 1.0
    progress.advance(task.id, 25)
    assert console._Left().render(task).plain == "about 0:00:03 left"
    clock[0] = 20.0
    assert console._Left().render(task).plain == "about 0:01:00 left"
    progress.advance(task.id, 75)
    assert not console._Left().render(task).plain


@pytest.mark.parametrize("columns", [80, 50])
def test_a_stage_shows_steps_and_time_left_whole_within_the_terminal(columns):
    talk, shown = console.Talk(), StringIO()
    talk.console = Console(file=shown, force_terminal=True, width=columns)
    with talk.stage("search"), talk.stage("measure the noise of tensors", 1200) as step:
        for _ in range(600):
            step()
        talk.live.refresh()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", line) for line in shown.getvalue().splitlines()]
    assert max(map(len, lines)) <= columns
    assert any(re.search(r"measure the.* +600/1200 .*0:00:\d\d left", line) for line in lines), lines
