"""Snippets in other languages: for this device, these inputs and their grids, and marked as not compiled."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
from pathlib import Path

import pytest

from intact.reports import html
from intact.reports.native_snippets import native_snippets, systems
from tests.reports.sample import manifest


def codes(values):
    return {snippet.language: snippet.code for snippet in native_snippets(values)}


@pytest.mark.parametrize(("device", "said"), [("qnn", 3), ("cpu", 0)])
def test_the_provider_of_the_device_is_asked_for(device, said):
    found = codes(manifest(device))
    assert list(found) == ["C++", "C#", "Kotlin"]
    assert sum("backend_type" in code for code in found.values()) == said
    assert ('AppendExecutionProvider("QNN"' in found["C++"]) == (device == "qnn")


def test_every_input_and_output_is_there_with_its_type_and_grid():
    values = manifest()
    quantized = {"direction": "input", "dtype": "int16", "scale": 0.125, "zero_point": 7}
    values["io"].insert(1, {"name": 'se"cond$x', **quantized})
    found = codes(values)
    assert "std::vector<int16_t> data1" in found["C++"] and "new float[" in found["C#"]
    assert "ShortBuffer.allocate" in found["Kotlin"] and 'se\\"cond\\$x' in found["Kotlin"]
    assert all('se\\"cond' in code for code in found.values())
    assert "(short)Math.Clamp(MathF.Round(r / 0.125f) + 7.0f, -32768.0f, 32767.0f)" in found["C#"]
    assert "Select(q => (q - 128.0f) * 0.25f)" in found["C#"]
    assert "(Math.rint((r / 0.125f).toDouble()).toInt() + 7).coerceIn(-32768, 32767).toShort()" in found["Kotlin"]
    assert "levels0.get().toInt() and 255" in found["Kotlin"] and "{ q -> (q - 128) * 0.25f }" in found["Kotlin"]
    assert "std::clamp(std::nearbyint(real1[i] / 0.125f) + 7.0f, -32768.0f, 32767.0f)" in found["C++"]
    assert "output0[i] = (result0[i] - 128.0f) * 0.25f" in found["C++"]


def test_java_makes_no_tensors_of_uint16():
    values = manifest()
    values["io"][0] |= {"dtype": "uint16", "scale": 0.125, "zero_point": 7}
    found = codes(values)
    assert list(found) == ["C++", "C#"] and "std::vector<uint16_t> data0" in found["C++"]


def test_a_type_or_a_device_without_a_name_there_gets_none():
    strange = manifest()
    strange["io"][0]["dtype"] = "bfloat16"
    assert codes(strange) == {} and codes(manifest("openvino")) == {} and codes(manifest("dml")) == {}


def test_the_report_says_that_they_are_not_compiled():
    page = html.render(manifest())
    assert page.count("not compiled here") == 3 and "#include &lt;onnxruntime_cxx_api.h&gt;" in page


ROOT = Path(__file__).parents[2]
HEADER = "onnxruntime_cxx_api.h"


def headers():
    """The folder of ONNX Runtime's headers: Debian's libonnxruntime-dev has them, and the wheel of amd-quark."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    wheels = [*map(Path, site.getsitepackages()), *ROOT.glob("output/peers/envs/amd-quark/lib/python3*/site-packages")]
    found = (one for wheel in wheels for one in wheel.glob("quark/onnx/operators/custom_ops/include/*/*/core/session"))
    return next((place for place in (*places, *found) if place and Path(place, HEADER).is_file()), None)


@pytest.mark.skipif(headers() is None, reason=f"no {HEADER}; ONNXRUNTIME_INCLUDE may name its folder")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("device", ["cpu", "qnn"])
def test_the_snippet_in_c_plus_plus_compiles_as_printed(device, tmp_path):
    values = manifest(device)
    values["io"].insert(1, {"name": "q", "direction": "input", "dtype": "int16", "scale": 3.0, "zero_point": -7})
    (tmp_path / "main.cpp").write_text(codes(values)["C++"], encoding="utf-8")
    command = ["c++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-isystem", headers(), "main.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_the_report_says_what_goes_where_on_each_system():
    values = manifest()
    values["artifacts"].append(
        {"path": "model_qnn.bin", "kind": "binary of the model", "bytes": 1, "sha256": "d4" * 32}
    )
    found = systems(values)
    assert list(found) == ["Windows on Snapdragon", "Android", "Linux on Qualcomm boards"]
    assert all("Copy model.onnx and model_qnn.bin " in words for words in found.values())
    assert all(words.replace("'", "&#39;") in html.render(values) for words in found.values())
    assert systems(manifest("openvino")) == {}
