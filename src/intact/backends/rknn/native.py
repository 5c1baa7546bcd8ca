"""The deployment of a model in C, through the vendor's runtime (librknnrt) on the board."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Documented: rknn_api.h of airockchip/rknn-toolkit2, enum rknn_tensor_type.
_TYPES = {
    "float": ("float", "RKNN_TENSOR_FLOAT32"),
    "float16": ("uint16_t", "RKNN_TENSOR_FLOAT16"),
    "int8": ("int8_t", "RKNN_TENSOR_INT8"),
    "uint8": ("uint8_t", "RKNN_TENSOR_UINT8"),
    "int16": ("int16_t", "RKNN_TENSOR_INT16"),
    "int32": ("int32_t", "RKNN_TENSOR_INT32"),
    "int64": ("int64_t", "RKNN_TENSOR_INT64"),
}
_GRIDS = (
    "  // The runtime converts to and from the grids of the model: attributes have their scale and zero point (zp)."
)


def program(model: str, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]]) -> str | None:
    """C that runs the file `model` once on inputs in the layout of the ONNX model; None where a type has no name."""
    if any(port["dtype"] not in _TYPES for port in inputs):
        return None
    lines = ["#include <rknn_api.h>", "#include <stdint.h>", "#include <stdlib.h>", "", "int main(void) {"]
    lines += ["  rknn_context context;", f"  rknn_init(&context, {json.dumps(model)}, 0, 0, NULL);", _GRIDS]
    lines += [f"  rknn_input inputs[{len(inputs)}] = {{0}};"]
    for number, port in enumerate(inputs):
        lines += _input(number, port)
    lines += [f"  rknn_inputs_set(context, {len(inputs)}, inputs);", "  rknn_run(context, NULL);"]
    lines += [f"  rknn_output outputs[{len(outputs)}] = {{0}};"]
    lines += [f"  outputs[{number}].want_float = 1;  // {port['name']}" for number, port in enumerate(outputs)]
    lines += [f"  rknn_outputs_get(context, {len(outputs)}, outputs, NULL);"]
    lines += [f"  float *result{number} = outputs[{number}].buf;" for number in range(len(outputs))]
    lines += [f"  rknn_outputs_release(context, {len(outputs)}, outputs);", "  rknn_destroy(context);", "}"]
    return "\n".join(lines)


def _input(number: int, port: Mapping[str, Any]) -> list[str]:
    kind, name = _TYPES[port["dtype"]]
    grid = (
        f"q = round(real / {port['scale']:.9g}) + {port['zero_point']}" if port["scale"] is not None else "fill it in"
    )
    attribute = f"attribute{number}"
    return [
        f"  rknn_tensor_attr {attribute} = {{.index = {number}}};",
        f"  rknn_query(context, RKNN_QUERY_INPUT_ATTR, &{attribute}, sizeof {attribute});",
        f"  inputs[{number}] = (rknn_input){{.index = {number}, .type = {name}, .fmt = RKNN_TENSOR_NCHW}};",
        f"  inputs[{number}].size = {attribute}.n_elems * sizeof({kind});",
        f"  inputs[{number}].buf = malloc(inputs[{number}].size);  // {port['name']}: {grid}",
    ]
