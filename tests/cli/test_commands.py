"""The commands as a user runs them: statuses, streams, flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest

from intact.reports import manifest
from tests.cli import command

BIN = Path(sys.executable).parent


@pytest.fixture
def run():
    """Call the command in this process: its status, stdout and stderr."""
    return command.run


@pytest.fixture
def build(run, zoo, tmp_path):
    """`intact build` of a small CNN with data; flags are added."""

    def call(*flags, output="out"):
        model, rows = zoo.model("residual_cnn"), zoo.data("residual_cnn")
        return run("build", "--onnx", model, "--data", rows, "-o", tmp_path / output, *flags)

    return call


def spawn(*args, name="intact"):
    environment = {**os.environ, "COLUMNS": "80"}
    return subprocess.run([BIN / name, *map(str, args)], capture_output=True, text=True, timeout=120, env=environment)


class TestTheInstalledCommand:
    def test_has_two_names(self):
        assert spawn("--version", name="wmk").stdout == spawn("--version").stdout
        assert spawn("--version").stdout.startswith("intact ")

    def test_builds_with_the_manifest_on_stdout_and_everything_else_on_stderr(self, zoo, tmp_path):
        result = spawn(
            "build", zoo.model("residual_cnn"), "--json", "--samples", "4", "-o", tmp_path / "out", name="wmk"
        )
        assert result.returncode == 0
        assert json.loads(result.stdout) == json.loads((tmp_path / "out/manifest.json").read_text())
        assert "synthetic" in result.stderr and "target cpu" in result.stderr

    def test_says_what_is_wrong_in_one_sentence_and_a_status(self, tmp_path):
        result = spawn("build", "--onnx", tmp_path / "absent.onnx", "-o", tmp_path / "out")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("error[S") and "absent.onnx" in result.stderr
        assert "Traceback" not in result.stderr and not (tmp_path / "out").exists()

    def test_shows_a_traceback_with_debug_only(self, tmp_path):
        result = spawn("build", "--onnx", tmp_path / "absent.onnx", "-o", tmp_path / "out", "--debug")
        assert result.returncode != 0 and "Traceback" in result.stderr


class TestBuild:
    def test_prints_a_summary_for_people(self, build, tmp_path):
        status, out, err = build("--precision", "uint8")
        assert status == 0
        for part in ("nodes quantized", "calibrated on 18 samples (npz)", "SQNR dB", "manifest.json", "report.html"):
            assert part in out
        assert "precision uint8: activations uint8, weights int8 per channel, auto" in err
        assert max(map(len, out.splitlines())) < 400

    def test_json_is_the_manifest_and_nothing_else(self, build, tmp_path):
        status, out, _ = build("--json")
        jsonschema.validate(json.loads(out, parse_constant=pytest.fail), manifest.schema())
        assert status == 0

    def test_quiet_prints_nothing_but_warnings(self, build, run, zoo, tmp_path):
        assert build("--quiet") == (0, "", "")
        status, out, err = run("build", zoo.model("residual_cnn"), "-q", "--samples", "4", "-o", tmp_path / "other")
        assert (status, out) == (0, "")
        assert err and all(line.startswith("warning: ") for line in err.splitlines())

    def test_a_gate_that_fails_is_status_1_and_keeps_the_artifacts(self, build, tmp_path):
        status, out, err = build("--min-sqnr", "200", "--json")
        assert status == 1 and err.splitlines()[-1].lstrip().startswith("fix:") and "error[G101]" in err
        assert json.loads(out)["gates"][0]["passed"] is False
        assert (tmp_path / "out/model.onnx").exists()
        assert build("--min-sqnr", "10", output="passes")[0] == 0

    @pytest.mark.parametrize(
        ("flags", "status", "part"),
        [
            (("--precision", "banana"), 2, "w8a16"),
            (("--precision", "w8", "--device", "qnn"), 2, "makes no sense on qnn"),
            (("--device", "npu"), 2, "qnn"),
            (("--method", "best"), 2, "percentile"),
            (("--arch", "v73"), 2, "cpu has no architectures"),
            (("--device", "qnn", "--soc", "SM8551"), 2, "SM8550"),
            (("--samples", "0"), 2, "greater than or equal to 1"),
            (("--samples", "many"), 2, "--samples"),
            (("--no-such-flag",), 2, "no-such-flag"),
            (("--exclude-node", "nobody"), 2, "no node 'nobody'"),
            (("--op-type", "Convolution"), 2, "no operator 'Convolution'"),
            (("--dim", "batch=2"), 2, "no free dimension"),
            (("--precision", "fp32", "--method", "mse"), 2, "no effect"),
            (("--ep-option", "a=b"), 2, "CPU provider has none"),
            (("--config", "absent.toml"), 2, "absent.toml"),
            (("--max-accuracy-drop", "1"), 2, "--labels"),
            (("--labels", "absent.npy"), 2, "absent.npy"),
            (("--device", "qnn", "--max-latency-ratio", "1"), 2, "time of the simulator is not latency"),
            (("--min-cosine", "1.5"), 2, "less than or equal to 1"),
        ],
    )
    def test_a_bad_setting_is_status_2_says_what_is_allowed_and_leaves_nothing(
        self, build, tmp_path, flags, status, part
    ):
        found, out, err = build(*flags)
        assert (found, out) == (status, "") and part in err
        assert os.listdir(tmp_path) == []

    def test_a_bad_model_is_status_3_and_bad_data_status_2(self, run, zoo, tmp_path):
        (tmp_path / "junk.onnx").write_bytes(b"\x00\x01 nonsense")
        np.savez(tmp_path / "wrong.npz", z=np.zeros((2, 2)))
        assert run("build", tmp_path / "junk.onnx", "-o", tmp_path / "out")[0] == 3
        model = zoo.model("residual_cnn")
        assert run("build", model, "--data", tmp_path / "wrong.npz", "-o", tmp_path / "out")[0] == 2
        assert run("build", model, "--data", tmp_path / "absent.npz", "-o", tmp_path / "out")[0] == 2
        assert not (tmp_path / "out").exists()

    def test_a_missing_extra_is_status_5(self, build, monkeypatch, tmp_path):
        from intact.backends import installed

        monkeypatch.setattr(installed.find("qnn"), "packages", ("a-package-that-does-not-exist",))
        status, _, err = build("--device", "qnn")
        assert status == 5 and "pip install 'intact[qnn]'" in err and os.listdir(tmp_path) == []

    def test_an_output_that_is_taken_is_status_2_until_overwrite_says_otherwise(self, build, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine.txt").write_text("mine")
        assert build()[0] == 2
        assert os.listdir(tmp_path / "out") == ["mine.txt"]
        assert build("--overwrite")[0] == 0
        assert (tmp_path / "out/mine.txt").read_text() == "mine"

    def test_without_an_output_or_a_model_nothing_happens(self, run, zoo, tmp_path):
        assert run("build", zoo.model("residual_cnn"))[0] == 2
        status, _, err = run("build", "-o", tmp_path / "out")
        assert status == 2 and "no model was given" in err
        status, _, err = run("build", "a.onnx", "--onnx", "b.onnx", "-o", tmp_path / "out")
        assert status == 2 and "two models" in err

    def test_a_file_of_settings_and_flags_over_it(self, build, tmp_path):
        (tmp_path / "s.toml").write_text('precision = "w8a16"\n[quant]\nmethod = "mse"\nsamples = 6\n')
        status, out, _ = build("--config", tmp_path / "s.toml", "--method", "percentile", "--json")
        resolved = json.loads(out)["config"]
        assert status == 0
        assert (resolved["precision"], resolved["quant"]["activation_type"]) == ("w8a16", "uint16")
        assert (resolved["quant"]["method"], resolved["quant"]["samples"]) == ("percentile", 6)

    def test_its_own_resolved_settings_as_a_file_give_the_same_again_and_flags_still_override(self, build, tmp_path):
        first = json.loads(build("--precision", "int8", "--json")[1])
        (tmp_path / "again.json").write_text(json.dumps(first["config"]))
        second = json.loads(build("--config", tmp_path / "again.json", "--json", output="again")[1])
        assert second["config"] == first["config"] and second["artifacts"] == first["artifacts"]
        third = json.loads(build("--config", tmp_path / "again.json", "--method", "mse", "--json", output="mse")[1])
        assert third["config"]["quant"] == first["config"]["quant"] | {"method": "mse"}

    def test_an_internal_error_is_a_sentence_too(self, build, monkeypatch):
        from intact.pipeline import stages

        monkeypatch.setattr(stages, "build", lambda *_, **__: 1 / 0)
        status, _, err = build()
        assert status == 70 and err.startswith("internal error: ZeroDivisionError") and "--debug" in err
        with pytest.raises(ZeroDivisionError):
            build("--debug")

    def test_an_interruption_is_status_130(self, build, monkeypatch):
        from intact.pipeline import stages

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(stages, "build", interrupt)
        assert build()[0] == 130


class TestSingleStages:
    def test_quantize_writes_a_model_and_the_example_of_the_documentation_works(self, run, zoo, tmp_path):
        flags = (
            "--precision",
            "uint8",
            "--method",
            "percentile",
            "--samples",
            "24",
            "--data",
            zoo.data("residual_cnn"),
        )
        status, out, err = run("quantize", "--onnx", zoo.model("residual_cnn"), *flags, "-o", tmp_path / "q.onnx")
        assert status == 0 and "nodes quantized for cpu" in out and "target cpu" in err
        onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"), full_check=True)

    def test_quantize_answers_in_json(self, run, zoo, tmp_path):
        status, out, _ = run(
            "quantize",
            zoo.model("residual_cnn"),
            "--samples",
            "4",
            "--device",
            "qnn",
            "--json",
            "-o",
            tmp_path / "q.onnx",
        )
        answer = json.loads(out)
        assert status == 0 and answer["target"] == "qnn/v73" and answer["nodes_quantized"] > 4
        assert answer["config"]["compile"]["arch"] == "v73" and answer["warnings"]

    def test_quantize_to_float_has_nothing_to_do(self, run, zoo, tmp_path):
        status, _, err = run("quantize", zoo.model("residual_cnn"), "--precision", "fp32", "-o", tmp_path / "q.onnx")
        assert status == 2 and "quantizes nothing" in err and os.listdir(tmp_path) == []

    def test_compile_leaves_the_bytes_of_quantize_and_does_not_verify(self, run, zoo, tmp_path):
        flags = (zoo.model("residual_cnn"), "--precision", "uint8", "--data", zoo.data("residual_cnn"))
        assert run("quantize", *flags, "-o", tmp_path / "q.onnx")[0] == 0
        status, out, _ = run("compile", *flags, "--json", "-o", tmp_path / "out")
        assert status == 0 and json.loads(out)["accuracy"] == []
        assert (tmp_path / "out/model.qdq.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()

    def test_verify_compares_two_models(self, run, zoo, tmp_path):
        model, rows = zoo.model("residual_cnn"), zoo.data("residual_cnn")
        run("quantize", model, "--data", rows, "-o", tmp_path / "q.onnx")
        status, out, _ = run("verify", model, tmp_path / "q.onnx", "--data", rows, "--json")
        (row,) = json.loads(out)["outputs"]
        assert status == 0 and row["output"] == "logits" and row["sqnr_db"] > 15
        assert run("verify", model, tmp_path / "q.onnx", "--data", rows, "--min-sqnr", "200")[0] == 1
        assert "identical" in run("verify", model, model, "--data", rows, "--min-sqnr", "200")[1]
        assert run("verify", model, tmp_path / "absent.onnx")[0] == 2

    def test_verify_takes_any_of_several_as_the_reference(self, run, zoo, tmp_path):
        model, rows = zoo.model("residual_cnn"), zoo.data("residual_cnn")
        run("quantize", model, "--data", rows, "-o", tmp_path / "q.onnx")
        given = ("verify", tmp_path / "q.onnx", model, model, "--data", rows, "--json")
        found = json.loads(run(*given, "--reference", tmp_path / "q.onnx")[1])
        assert found["reference"]["form"] == "quantized" and found["samples"] == 6
        assert [row["model"] for row in found["outputs"]] == [str(model)] * 2
        assert found["models"][0]["form"] == "float" and found["gate"] is None
        least = found["models"][0]["tolerance"]["min_sqnr"]
        assert run(*given, "--min-sqnr", least)[0] == 0
        assert run(*given, "--min-sqnr", least + 0.01)[0] == 1

    def test_verify_shows_a_narrow_table_the_accuracy_and_the_tolerance(self, run, zoo, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        model, rows = zoo.model("residual_cnn"), zoo.data("residual_cnn")
        np.save(tmp_path / "labels.npy", np.zeros(24, np.int64))
        flags = ("--labels", tmp_path / "labels.npy", "--max-accuracy-drop", "0", "--min-cosine", "0.9")
        status, out, _ = run("verify", model, model, "--data", rows, *flags)
        assert status == 0 and "identical" in out and "accuracy of logits" in out and "would pass" in out
        assert "gate max_accuracy_drop 0: passed" in out and "gate min_cosine 0.9: passed" in out
        table = [line for line in out.splitlines() if line.startswith(("output ", "logits "))]
        assert len(table) == 2 and all(len(line) <= 80 for line in table)

    @pytest.mark.parametrize(
        ("flags", "part"),
        [
            ((), "nothing to compare"),
            (("--max-accuracy-drop", "1"), "without labels"),
            (("--labels", "absent.npy"), "absent.npy"),
        ],
    )
    def test_verify_refuses_what_it_cannot_do(self, run, zoo, flags, part):
        models = [zoo.model("residual_cnn")] * (2 if flags else 1)
        status, _, err = run("verify", *models, "--data", zoo.data("residual_cnn"), *flags)
        assert status == 2 and part in err

    def test_perf_gives_ratios_and_has_a_gate(self, run, zoo):
        models = [zoo.model("residual_cnn")] * 2
        status, out, _ = run("perf", *models, "--runs", "5", "--threads", "1", "--json")
        found = json.loads(out)
        assert status == 0 and [model["ratio_to_first"] > 0 for model in found["models"]] == [True, True]
        assert found["runs"] == 5 and found["models"][0]["ops"][0]["share"] > 0
        assert run("perf", *models, "--runs", "5", "--max-latency-ratio", "1000")[0] == 0
        status, _, err = run("perf", *models, "--runs", "5", "--max-latency-ratio", "0.0001")
        assert status == 1 and "max_latency_ratio" in err and "intact perf" in err
        assert run("perf", models[0], "--max-latency-ratio", "1")[0] == 2

    def test_perf_fits_into_eighty_columns(self, run, zoo, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        status, out, _ = run("perf", zoo.model("bert"), zoo.model("bert"), "--runs", "3")
        lines = [line for line in out.splitlines() if str(zoo.folder) not in line]
        assert status == 0 and max(map(len, lines)) <= 80
        # Which operators are the slowest few is up to the noise of the machine; that some are listed is not.
        operators = {node.op_type for node in onnx.load(zoo.model("bert")).graph.node}
        assert (
            "p50 ms" in out and any(f"\n{op} " in out for op in operators) and ("SLOWER" in out or "as fast as" in out)
        )

    def test_inspect_tells_what_is_in_a_model(self, run, zoo):
        status, out, _ = run("inspect", zoo.model("bert"))
        assert status == 0
        for part in ("input input_ids: int64 [1, 16]", "LayerNormalization", "not quantized", "opset ai.onnx 17"):
            assert part in out
        assert json.loads(run("inspect", zoo.model("bert"), "--json")[1])["operators"]["MatMul"] > 4

    def test_schema_prints_json_schemas(self, run):
        for what in ("config", "manifest"):
            jsonschema.Draft202012Validator.check_schema(json.loads(run("schema", what)[1]))
        status, _, err = run("schema", "banana")
        assert status == 2 and "config, manifest" in err
