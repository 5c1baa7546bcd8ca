"""Snippets in other languages: for this device, these inputs and their grids, and marked as not compiled."""

from __future__ import annotations

import pytest

from intact.reports import html
from intact.reports.native_snippets import native_snippets
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
    for code in found.values():
        assert "round(real / 0.125) + 7" in code and "real = (q - 128) * 0.25" in code and 'se\\"cond' in code


def test_a_type_or_a_device_without_a_name_there_gets_none():
    strange = manifest()
    strange["io"][0]["dtype"] = "bfloat16"
    assert codes(strange) == {} and codes(manifest("openvino")) == {} and codes(manifest("dml")) == {}


def test_the_report_says_that_they_are_not_compiled():
    page = html.render(manifest())
    assert page.count("not compiled here") == 3 and "#include &lt;onnxruntime_cxx_api.h&gt;" in page
