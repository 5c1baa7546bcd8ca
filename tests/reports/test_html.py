"""The report says what the manifest says, is one file, and cannot be attacked by names in a model."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import validate

import intact
from intact.model import io
from intact.numbers.decibels import sqnr_of
from intact.reports import html, snippet
from intact.reports.figures import share
from intact.reports.manifest import schema
from intact.runtime import ort_cpu
from tests.backends import qdq
from tests.reports.sample import gate, manifest, row

HOSTILE = "</code></script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='x"
VOID = {"meta", "br", "rect", "path", "input"}


def text(page: str) -> str:
    """What a reader sees: without styles and tags, blanks collapsed."""
    body = page.split("<body>", 1)[1]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


class Page(HTMLParser):
    """Tags and attributes of a page, and whether every tag is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def fp32(values: dict[str, Any]) -> None:
    values["calibration"] = {"kind": "none", "samples": 0, "sha256": None}
    values["stages"][0] = {"name": "quantize", "status": "skipped", "reason": "fp32 stays float", "seconds": 0.0}
    values["accuracy"] = [row("compiled", "y", 120.0)]


def compile_only(values: dict[str, Any]) -> None:
    values["accuracy"] = []
    values["stages"][-1] = {"name": "verify", "status": "skipped", "reason": "compile does not verify", "seconds": 0.0}


def identical(values: dict[str, Any]) -> None:
    values["accuracy"] = [row("quantized", "y", None), row("compiled", "y", None)]


def nothing(values: dict[str, Any]) -> None:
    for key in ("stages", "rewrites", "io", "accuracy", "artifacts"):
        values[key] = []
    values["environment"] = {}
    values["placement"] = {"npu_nodes": [], "cpu_nodes": [], "partitions": 0}


def as_small_as_allowed(values: dict[str, Any]) -> None:
    values["config"]["precision"] = None
    values["accuracy"] = [dict(row("compiled", "y", 20.0), cosine=None, top1_agreement=None)]
    values["gates"] = [dict(gate(passed=True), value=None)]


def without_signal(values: dict[str, Any]) -> None:
    values["accuracy"] = [
        dict(row("compiled", "y", -3.4028234e38), max_abs_error=float("inf"), mean_abs_error=float("nan"))
    ]


def foreign_figures(values: dict[str, Any]) -> None:
    values["stages"][0] |= {"shards": {"a": [1, None]}, "note": None, "ratio": 0.125, "load_sqnr_db": None}
    values["stages"][0] |= {"exact": True, "memory_bytes": 1500}


@pytest.mark.parametrize(
    ("device", "precision", "change", "said"),
    [
        ("qnn", "uint8", lambda values: None, "The whole model runs on the NPU: 1 compute node in 1 partition"),
        ("cpu", "uint8", lambda values: None, "the whole model runs there: 1 compute node."),
        ("cpu", "fp32", fp32, "fp32: fp32 stays float"),
        ("qnn", "uint8", compile_only, "not measured compile does not verify"),
        ("qnn", "uint8", identical, "identical to the original"),
        ("qnn", "uint8", nothing, "No rule changed the graph"),
        ("openvino", "uint8", lambda values: None, "Intel devices, through OpenVINO"),
        ("qnn", "uint8", as_small_as_allowed, "set by hand"),
        ("qnn", "uint8", without_signal, "−∞ dB"),
        (
            "qnn",
            "uint8",
            foreign_figures,
            "shards a: 1, – note – ratio 0.125 load SQNR identical exact yes memory 1.5 KB",
        ),
    ],
)
def test_every_manifest_that_the_schema_allows_makes_a_whole_page(
    device: str, precision: str, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    values = manifest(device, precision)
    change(values)
    validate(values, schema())

    page = html.render(values)

    assert said in text(page)
    assert Page(page).open == []


def test_the_report_is_written_beside_the_manifest(tmp_path: Path) -> None:
    path = html.write(manifest(), tmp_path)

    assert path == tmp_path / "report.html"
    assert path.read_bytes().startswith(b"<!DOCTYPE html>")


def test_the_same_manifest_gives_the_same_bytes_and_is_left_alone(tmp_path: Path) -> None:
    values = manifest()
    before = copy.deepcopy(values)

    first, second = (html.write(values, tmp_path).read_bytes() for _ in range(2))

    assert first == second
    assert values == before


def test_a_name_that_is_not_unicode_does_not_cost_the_report(tmp_path: Path) -> None:
    values = manifest()
    values["source"]["path"] = "caf\udce9.onnx"

    assert "caf\\udce9.onnx" in html.write(values, tmp_path).read_text(encoding="utf-8")


def test_names_in_a_model_are_escaped_wherever_they_appear() -> None:
    values = manifest()
    values["source"]["path"] = HOSTILE
    values["warnings"] = [HOSTILE]
    values["environment"] = {HOSTILE: HOSTILE}
    values["config"]["dims"] = {HOSTILE: 1}
    values["config"]["quant"]["load_path"] = HOSTILE
    values["stages"][0] |= {"reason": HOSTILE, HOSTILE: HOSTILE}
    values["rewrites"] = [{"rule": HOSTILE, "node": HOSTILE, "exactness": HOSTILE}] * 9
    values["placement"]["cpu_nodes"] = [{"name": HOSTILE, "op": HOSTILE, "reason": HOSTILE}]
    values["gates"] = [dict(gate(passed=False), name=HOSTILE, detail=HOSTILE)]
    values["artifacts"] = [{"path": HOSTILE, "kind": HOSTILE, "bytes": 1, "sha256": HOSTILE}]
    values["accuracy"] = [dict(row("compiled", HOSTILE, 9.0), runtime=HOSTILE)]
    values["io"] = [dict(port, name=HOSTILE, dtype=HOSTILE) for port in values["io"]]

    page = Page(html.render(values))

    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img"})
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = html.render(manifest())
    tags = Page(page).tags

    assert {tag for tag, _ in tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in tags)
    assert not re.search(r"https?:|//\w|url\(|@import|\bsrc=", page)
    policies = [a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.parametrize(
    ("verdict", "gates", "said"),
    [
        ("good", [], "good every form computes what the original does"),
        ("passed", [gate(passed=True)], "passed the gates that were set hold"),
        ("failed", [gate(passed=True), gate(passed=False)], "failed a gate does not hold or could not be checked"),
        ("suspect", [], "suspect something is doubtful"),
        ("broken", [], "broken the result is wrong"),
        ("unverified", [], "unverified what is deployed was not compared"),
    ],
)
def test_the_verdict_comes_first_with_its_meaning_its_reasons_and_the_gates(
    verdict: str, gates: list[dict[str, Any]], said: str
) -> None:
    values = manifest() | {"gates": gates, "verdict": verdict, "verdict_reasons": ["the conv is <off>"]}

    shown = text(html.render(values))

    assert said in shown and shown.index(said) < shown.index("Placement")
    assert "the conv is <off>" in shown
    assert shown.count("the least SQNR is 27.50 dB") == len(gates)


def test_a_manifest_of_schema_1_has_no_verdict_and_its_gates_decide() -> None:
    values = manifest() | {"gates": [gate(passed=False)], "status": "failed"}
    assert "verdict" not in values

    assert "failed a gate does not hold" in text(html.render(values))


def test_every_warning_is_shown_above_the_details() -> None:
    warnings = ["no --data: ranges come from synthetic inputs", "a second <warning>", "a third\n  on two lines"]

    shown = text(html.render(manifest() | {"warnings": warnings}))

    summary = shown.split("Difference from the original")[0]
    assert all(" ".join(warning.split()) in summary for warning in warnings)


def test_synthetic_inputs_are_named_where_accuracy_is_claimed() -> None:
    values = manifest()
    values["config"]["quant"]["load_path"] = None
    values["calibration"]["kind"] = "synthetic"

    shown = text(html.render(values))

    assert "6 samples, synthetic" in shown
    assert "of synthetic inputs, which say little about real ones" in shown
    assert "synthetic: drawn at random, not real data" in shown


def test_nodes_on_the_cpu_are_listed_with_their_reasons_and_conversions_do_not_count_as_compute() -> None:
    values = manifest()
    values["placement"]["cpu_nodes"] = [
        *({"name": f"topk_{i}", "op": "TopK", "reason": "k must be constant"} for i in range(9)),
        {"name": "gather", "op": "GatherND", "reason": "bool data <is refused>"},
        {"name": "q_out", "op": "DequantizeLinear", "reason": "it stands beside them"},
    ]

    shown = text(html.render(values))

    assert "1 of 11 compute nodes" in shown
    assert all(f"topk_{i}" in shown for i in range(9))
    assert "GatherND 1 bool data <is refused> gather" in shown
    assert "DequantizeLinear 1 it stands beside them q_out" in shown
    assert "The whole model runs on the NPU" not in shown


def test_rewrites_are_grouped_by_rule_with_their_claim() -> None:
    shown = text(html.render(manifest()))

    assert "absorb_relu 3 exact : the same numbers for every input relu_0 relu_1 relu_2" in shown


def test_figures_of_accuracy_ports_files_and_stages_are_shown() -> None:
    page = html.render(manifest())
    shown = text(page)

    assert "39.50 dB least SQNR of the compiled model, at y" in shown
    assert "y 41.25 0.999944 0.0270 0.0108 100.0 %" in shown
    assert "real = (q − 128) × 0.25" in shown
    assert f'title="{"c3" * 32}"' in page
    assert "61.4 KB" in shown
    assert "nodes quantized 4321" in shown
    assert "compile ran 1 min 1 s" in shown


def test_the_types_that_a_build_has_are_shown_in_place_of_those_that_auto_began_with() -> None:
    values = manifest()
    values["config"]["precision"] = "auto"
    types = [
        {"activations": "uint16", "weights": "int8", "nodes": 12, "ops": {"Conv": 12}},
        {"activations": "float", "weights": None, "nodes": 2, "ops": {"Softmax": 2}},
    ]
    next(stage for stage in values["stages"] if stage["name"] == "quantize")["types"] = types
    shown = text(html.render(values))

    assert "types of nodes 12 uint16 × int8, 2 float" in shown
    assert "auto: 12 uint16 × int8, 2 float (activations × weights)" in shown
    assert "activations uint8" not in shown


def test_the_lowest_output_and_those_below_the_gate_are_marked() -> None:
    values = manifest()
    values["config"]["min_sqnr"] = 30.0
    values["accuracy"] = [row("compiled", name, value) for name, value in (("a", 29.9), ("b", 12.0), ("c", 30.0))]

    shown = text(html.render(values))

    assert "a below the gate 29.90" in shown
    assert "b below the gate lowest 12.00" in shown
    assert "c 30.00" in shown


def test_outputs_that_look_equal_are_not_told_apart() -> None:
    values = manifest()
    values["accuracy"] = [row("quantized", "y", 41.251), row("compiled", "y", 41.2512)]

    assert "lowest" not in text(html.render(values))


def test_of_many_outputs_the_worst_come_first_and_all_are_there() -> None:
    values = manifest()
    values["accuracy"] = [row("compiled", f"out_{i}", 90.0 - i) for i in range(30)]

    first, everything = text(html.render(values)).split("All outputs", 1)

    assert "out_29" in first
    assert "out_0 " not in first
    assert all(f"out_{i} " in everything for i in range(30))


@pytest.mark.parametrize(("value", "said"), [(1.0, "100.0"), (0.9999, "99.9"), (0.0, "0.0"), (0.5, "50.0")])
def test_only_full_agreement_is_a_hundred_per_cent(value: float, said: str) -> None:
    assert share(value) == f"{said}\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_the_lines_that_load_the_model_are_python_even_with_hostile_names(device: str) -> None:
    values = manifest(device)
    values["io"][0]["name"] = HOSTILE + '"\n\\'

    lines = snippet.lines(values) or ""

    compile(lines, "snippet", "exec")
    assert "model.onnx" in lines
    assert ("QNNExecutionProvider" in lines) == (device == "qnn")


def test_the_lines_run_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    lines = (snippet.lines(manifest("cpu")) or "").replace("...", "np.ones(2, np.float32)")
    names: dict[str, Any] = {"np": np}

    exec(lines, names)

    assert names["outputs"][0].tolist() == [-1, -1]


def test_the_lines_quantize_inputs_and_bring_outputs_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]> g (uint8[4] x) => (uint8[4] y)
        <float s = {0.5}, uint8 z = {100}, float t = {0.25}, uint8 w = {128}>
        { a = DequantizeLinear(x, s, z) b = Neg(a) y = QuantizeLinear(b, t, w) }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    values = manifest("cpu")
    values["io"][0] |= {"dtype": "uint8", "scale": 0.5, "zero_point": 100}
    lines = (snippet.lines(values) or "").replace("...", "[0, 1.26, -3, 1000]")
    names: dict[str, Any] = {}

    exec(lines, names)

    assert names["inputs"]["x"].dtype == np.uint8 and names["outputs"][0].dtype == np.uint8
    assert names["real_0"].tolist() == [0, -1.5, 3, -32.0], "on both grids, and cut off at their ends"


@pytest.mark.qnn
def test_the_lines_run_as_printed_on_the_simulator(tmp_path: Path) -> None:
    model, rows = qdq.cnn(), qdq.images(1)
    io.save(model, tmp_path / "q.onnx")
    built = intact.compile(tmp_path / "q.onnx", device="qnn", io="quantized", output=tmp_path / "out")
    values = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    [(name, image)] = rows[0].items()
    np.save(tmp_path / "out" / "image.npy", image)
    printed = snippet.lines(values) or ""
    ones = f'np.ones({list(image.shape)}, "float32")'
    assert printed.count(ones) == 1
    code = f"{printed}\nimport os, sys\nnp.save('result.npy', real_0)\nsys.stdout.flush()\nos._exit(0)"
    for array, given in ((ones, np.ones_like(image)), ("np.load('image.npy')", image)):
        done = subprocess.run(
            [sys.executable, "-c", code.replace(ones, array)],
            cwd=tmp_path / "out",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

        assert built.io and done.returncode == 0, done.stderr
        [(output, expected)] = ort_cpu.run(model, {name: given}).items()
        assert f"\n{output} {expected.shape} [" in f"\n{done.stdout}", "the vendor's library prints before it"
        assert sqnr_of(expected, np.load(tmp_path / "out" / "result.npy")) > 25


def test_fallback_to_the_cpu_is_only_forbidden_where_the_model_is_whole_on_the_npu() -> None:
    whole, split = manifest(), manifest()
    split["placement"]["cpu_nodes"] = [{"name": "topk", "op": "TopK", "reason": "no"}]

    assert "disable_cpu_ep_fallback" in (snippet.lines(whole) or "")
    assert "disable_cpu_ep_fallback" not in (snippet.lines(split) or "")


def test_a_device_without_lines_to_load_it_has_no_such_section() -> None:
    assert 'id="load"' in html.render(manifest("cpu")) and 'id="load"' not in html.render(manifest("dml"))


def test_a_blob_is_loaded_with_the_options_that_it_was_made_with() -> None:
    given = manifest("openvino")
    given["config"]["compile"]["ep_options"] = {"NUM_STREAMS": "2"}
    lines = snippet.lines(given) or ""
    compile(lines, "snippet", "exec")
    assert 'import_model(blob, "CPU", {"INFERENCE_PRECISION_HINT": "f32", ' in lines and '"NUM_STREAMS": "2"}' in lines


def test_layers_are_shown_with_their_precision_kernel_and_nodes() -> None:
    given = manifest("openvino")
    given["placement"] |= {
        "place": "GPU.1",
        "layers": [
            {"kind": "Convolution", "kernel": "jit_I8", "precision": "u8", "nodes": ["conv", "x_Q"]},
            {"kind": "Softmax", "kernel": "ref_f32", "precision": "f32", "nodes": [HOSTILE]},
        ],
    }
    page = html.render(given)
    assert "The whole model runs on the GPU.1" in text(page) and "on the NPU" not in text(page)
    assert "u8 Convolution jit_I8 1 conv + x_Q" in text(page) and "f32 Softmax ref_f32 1" in text(page)
    assert "<script>" not in page


def test_layers_that_a_compiler_estimates_are_listed_by_their_cycles_and_called_an_estimate() -> None:
    given = manifest("rknn")
    rows = [("Conv", 300, 4096, ["conv", "relu"]), ("Reshape", 0, 0, []), ("ConvAdd", 700, None, [HOSTILE])]
    given["placement"]["layers"] = [
        {"kind": kind, "kernel": "NPU", "precision": "INT8", "nodes": nodes, "cycles": cycles, "moved_bytes": moved}
        for kind, cycles, moved, nodes in rows
    ]
    given["cost"] = {"cycles": 1000, "milliseconds": 0.001, "weight_bytes": 2_000, "activation_bytes": None}
    page = html.render(given)
    shown = text(page)
    assert "estimates, and nothing was measured: 1000 cycles, about 0.001 ms at the chip's clock, 2.0 KB of we" in shown
    assert "conv + relu Conv INT8 NPU 300 30.0\N{NO-BREAK SPACE}% 4.1 KB".replace("\N{NO-BREAK SPACE}", " ") in shown
    assert shown.index("ConvAdd INT8 NPU 700") < shown.index("Conv INT8 NPU 300") < shown.index("Reshape INT8 NPU 0")
    assert "<script>" not in page
    del given["cost"]
    assert "30.0" not in text(html.render(given))
