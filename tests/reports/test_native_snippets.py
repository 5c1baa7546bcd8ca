"""Snippets in other languages: for this device, these inputs and their grids, and marked as not compiled."""

from __future__ import annotations

import os
import shutil
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
    quantized = {"direction": "input", "dtype": "uint16", "scale": 0.125, "zero_point": 7}
    values["io"].insert(1, {"name": 'se"cond$x', **quantized})
    found = codes(values)
    assert "std::vector<uint16_t> data1" in found["C++"] and "new ushort[" in found["C#"]
    assert "ShortBuffer.allocate" in found["Kotlin"] and 'se\\"cond\\$x' in found["Kotlin"]
    assert all('se\\"cond' in code for code in found.values())
    for language in ("C#", "Kotlin"):
        assert "round(real / 0.125) + 7" in found[language] and "real = (q - 128) * 0.25" in found[language]
    assert "std::clamp(std::nearbyint(real1[i] / 0.125f) + 7.0f, 0.0f, 65535.0f)" in found["C++"]
    assert "output0[i] = (result0[i] - 128.0f) * 0.25f" in found["C++"]


def test_a_type_or_a_device_without_a_name_there_gets_none():
    strange = manifest()
    strange["io"][0]["dtype"] = "bfloat16"
    assert codes(strange) == {} and codes(manifest("openvino")) == {} and codes(manifest("dml")) == {}


def test_the_report_says_that_they_are_not_compiled():
    page = html.render(manifest())
    assert page.count("not compiled here") == 3 and "#include &lt;onnxruntime_cxx_api.h&gt;" in page


def headers():
    """The folder of ONNX Runtime's headers: Debian's libonnxruntime-dev and others have them, wheels do not."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
    return next((place for place in places if place and Path(place, "onnxruntime_cxx_api.h").is_file()), None)


@pytest.mark.skipif(headers() is None, reason="no onnxruntime_cxx_api.h; ONNXRUNTIME_INCLUDE may name its folder")
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
