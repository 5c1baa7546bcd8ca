"""The deployment of a build in C++, C# and Kotlin through ONNX Runtime, or in what the vendor's own runtime takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from intact.backends import installed
from intact.backends.base import NativeProvider
from intact.numbers.integer_types import limits
from intact.results import BINARY, DEPLOYABLE

Record = Mapping[str, Any]

# The types of elements in C++, C# and Kotlin's buffers; a model with another one gets no snippet.
_TYPES = {
    "float": ("float", "float", "FloatBuffer"),
    "uint8": ("uint8_t", "byte", "ByteBuffer"),
    "int8": ("int8_t", "sbyte", "ByteBuffer"),
    "uint16": ("uint16_t", "ushort", "ShortBuffer"),
    "int16": ("int16_t", "short", "ShortBuffer"),
    "int32": ("int32_t", "int", "IntBuffer"),
    "int64": ("int64_t", "long", "LongBuffer"),
}
# The conversion of an integer to an element of a buffer.
_KOTLIN_TYPES = {"ByteBuffer": "toByte", "ShortBuffer": "toShort", "IntBuffer": "toInt", "LongBuffer": "toLong"}
# Kotlin's buffers do not tell all types.
_JAVA_TYPES = {"uint8": "UINT8", "int8": "INT8"}


class NativeSnippet(NamedTuple):
    """Code in a language; none of it is compiled where the report is made."""

    language: str
    code: str


def native_snippets(manifest: Record) -> list[NativeSnippet]:
    """One snippet a language; none where no runtime is known to run what is deployed, or a type has no name there."""
    device = manifest["config"]["compile"]["device"]
    backend = installed.find(device) if installed.is_backend(device) else None
    ports = {d: [p for p in manifest["io"] if p["direction"] == d] for d in ("input", "output")}
    own = None if backend is None else backend.native_code(ports["input"], ports["output"])
    if own is not None:
        return [NativeSnippet(*own)]
    provider = None if backend is None else backend.native
    if provider is None or not ports["input"] or any(port["dtype"] not in _TYPES for port in manifest["io"]):
        return []
    makers = {"C++": _cpp, "C#": _csharp, "Kotlin": _kotlin}
    if any(port["dtype"] == "uint16" for port in ports["input"]):
        del makers["Kotlin"]  # ONNX Runtime for Java makes no tensors of uint16
    return [NativeSnippet(language, make(provider, **ports)) for language, make in makers.items()]


def systems(manifest: Record) -> dict[str, str]:
    """Instructions by system: the packages to install, and the place for the files that an application needs."""
    device = manifest["config"]["compile"]["device"]
    provider = installed.find(device).native if installed.is_backend(device) else None
    needed = [item["path"] for item in manifest["artifacts"] if item["kind"] in (DEPLOYABLE, BINARY)]
    if provider is None or not needed:
        return {}
    files = " and ".join(filter(None, [", ".join(needed[:-1]), needed[-1]]))
    return {system: words.format(files=files) for system, words in provider.systems.items()}


def _cpp(provider: NativeProvider, *, input: Sequence[Record], output: Sequence[Record]) -> str:
    options = ", ".join(f"{{{json.dumps(key)}, {json.dumps(value)}}}" for key, value in provider.options.items())
    grids = any(port["scale"] is not None for port in (*input, *output))
    headers = [*(("algorithm", "cmath") if grids else ()), "cstdint", "vector"]
    lines = ["#include <onnxruntime_cxx_api.h>", "", *(f"#include <{name}>" for name in headers), "", "int main() {"]
    lines += ["  Ort::Env env;", "  Ort::SessionOptions options;"]
    lines += [f'  options.AppendExecutionProvider("{provider.name}", {{{options}}});'] if provider.name else []
    lines += ['  Ort::Session session(env, ORT_TSTR("model.onnx"), options);']
    lines += ["  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);"]
    lines += ["  std::vector<Ort::Value> inputs;"]
    for number, port in enumerate(input):
        kind = _TYPES[port["dtype"]][0]
        lines += [
            f"  auto type{number} = session.GetInputTypeInfo({number});",
            f"  auto info{number} = type{number}.GetTensorTypeAndShapeInfo();",
            f"  auto shape{number} = info{number}.GetShape();",
            *_cpp_data(number, port, kind),
            f"  inputs.push_back(Ort::Value::CreateTensor<{kind}>(",
            f"      memory, data{number}.data(), data{number}.size(), shape{number}.data(), shape{number}.size()));",
        ]
    lines += [f"  const char* in[] = {{{_names(input)}}};", f"  const char* out[] = {{{_names(output)}}};"]
    run = f"session.Run(Ort::RunOptions{{}}, in, inputs.data(), {len(input)}, out, {len(output)})"
    read = [line for number, port in enumerate(output) for line in _cpp_result(number, port)]
    return "\n".join([*lines, f"  auto results = {run};", *read, "}"])


def _cpp_data(number: int, port: Record, kind: str) -> list[str]:
    """The values of an input; one that the model takes as integers is quantized."""
    if port["scale"] is None:
        name = json.dumps(port["name"])
        return [f"  std::vector<{kind}> data{number}(info{number}.GetElementCount());  // fill in {name}"]
    scale, point, (low, high) = _literal(port["scale"]), port["zero_point"], limits(port["dtype"])
    level = f"std::nearbyint(real{number}[i] / {scale}) + {_literal(point)}"
    return [
        f"  std::vector<float> real{number}(info{number}.GetElementCount());  // fill in {json.dumps(port['name'])}",
        f"  std::vector<{kind}> data{number}(real{number}.size());",
        f"  for (size_t i = 0; i < real{number}.size(); ++i)",
        f"    data{number}[i] = static_cast<{kind}>(std::clamp({level}, {_literal(low)}, {_literal(high)}));",
    ]


def _cpp_result(number: int, port: Record) -> list[str]:
    """The values of an output; integers are brought back to real values."""
    kind, name = _TYPES[port["dtype"]][0], json.dumps(port["name"])
    lines = [f"  auto* result{number} = results[{number}].GetTensorData<{kind}>();  // {name}"]
    if port["scale"] is None:
        return lines
    return [
        *lines,
        f"  std::vector<float> output{number}(results[{number}].GetTensorTypeAndShapeInfo().GetElementCount());",
        f"  for (size_t i = 0; i < output{number}.size(); ++i)",
        f"    output{number}[i] = (result{number}[i] - {_literal(port['zero_point'])}) * {_literal(port['scale'])};",
    ]


def _literal(value: float) -> str:
    """A number as a float of C++."""
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _csharp(provider: NativeProvider, *, input: Sequence[Record], output: Sequence[Record]) -> str:
    options = ", ".join(f"[{json.dumps(key)}] = {json.dumps(value)}" for key, value in provider.options.items())
    table = f"new Dictionary<string, string> {{ {options} }}"
    lines = ["using Microsoft.ML.OnnxRuntime;", "", "using var options = new SessionOptions();"]
    lines += [f'options.AppendExecutionProvider("{provider.name}", {table});'] if provider.name else []
    lines += ['using var session = new InferenceSession("model.onnx", options);']
    for number, port in enumerate(input):
        kind, name = _TYPES[port["dtype"]][1], json.dumps(port["name"])
        lines += [
            f"var shape{number} = session.InputMetadata[{name}].Dimensions.Select(d => (long)d).ToArray();",
            *_csharp_data(number, port, kind),
            f"using var input{number} = OrtValue.CreateTensorValueFromMemory(data{number}, shape{number});",
        ]
    values = ", ".join(f"input{number}" for number in range(len(input)))
    run = f"session.Run(new RunOptions(), [{_names(input)}], [{values}], [{_names(output)}])"
    read = [line for number, port in enumerate(output) for line in _csharp_result(number, port)]
    return "\n".join([*lines, f"using var results = {run};", *read])


def _csharp_data(number: int, port: Record, kind: str) -> list[str]:
    """The values of an input; one that the model takes as integers is quantized."""
    size, name = f"shape{number}.Aggregate(1L, (a, b) => a * b)", json.dumps(port["name"])
    if port["scale"] is None:
        return [f"var data{number} = new {kind}[{size}];  // fill in {name}"]
    low, high = limits(port["dtype"])
    level = f"MathF.Round(r / {_literal(port['scale'])}) + {_literal(port['zero_point'])}"
    clamped = f"({kind})Math.Clamp({level}, {_literal(low)}, {_literal(high)})"
    return [
        f"var real{number} = new float[{size}];  // fill in {name}",
        f"var data{number} = real{number}.Select(r => {clamped}).ToArray();",
    ]


def _csharp_result(number: int, port: Record) -> list[str]:
    """The values of an output; integers are brought back to real values."""
    kind, name = _TYPES[port["dtype"]][1], json.dumps(port["name"])
    lines = [f"var result{number} = results[{number}].GetTensorDataAsSpan<{kind}>();  // {name}"]
    if port["scale"] is None:
        return lines
    real = f"(q - {_literal(port['zero_point'])}) * {_literal(port['scale'])}"
    return [*lines, f"var output{number} = result{number}.ToArray().Select(q => {real}).ToArray();"]


def _kotlin(provider: NativeProvider, *, input: Sequence[Record], output: Sequence[Record]) -> str:
    options = ", ".join(f"{json.dumps(key)} to {json.dumps(value)}" for key, value in provider.options.items())
    lines = ["import ai.onnxruntime.*", "import java.nio.*", "", "val env = OrtEnvironment.getEnvironment()"]
    lines += ["val options = OrtSession.SessionOptions()"]
    lines += [f"options.{provider.java}(mapOf({options}))"] if provider.java else []
    lines += ['val session = env.createSession("model.onnx", options)', "val inputs = HashMap<String, OnnxTensor>()"]
    for number, port in enumerate(input):
        buffer, name = _TYPES[port["dtype"]][2], _dollars(json.dumps(port["name"]))
        kind = f", OnnxJavaType.{_JAVA_TYPES[port['dtype']]}" if port["dtype"] in _JAVA_TYPES else ""
        lines += [
            f"val shape{number} = (session.inputInfo[{name}]!!.info as TensorInfo).shape",
            *_kotlin_data(number, port, buffer),
            f"inputs[{name}] = OnnxTensor.createTensor(env, data{number}, shape{number}{kind})",
        ]
    read = [line for number, port in enumerate(output) for line in _kotlin_result(number, port)]
    return "\n".join([*lines, "val results = session.run(inputs)", *read])


def _kotlin_data(number: int, port: Record, buffer: str) -> list[str]:
    """The values of an input; one that the model takes as integers is quantized."""
    size, name = f"shape{number}.reduce(Long::times).toInt()", json.dumps(port["name"])
    if port["scale"] is None:
        return [f"val data{number} = {buffer}.allocate({size})  // fill in {name}"]
    low, high = limits(port["dtype"])
    level = f"Math.rint((r / {_literal(port['scale'])}).toDouble()).toInt() + {port['zero_point']}"
    return [
        f"val real{number} = FloatArray({size})  // fill in {name}",
        f"val data{number} = {buffer}.allocate(real{number}.size)",
        f"for (r in real{number}) data{number}.put(({level}).coerceIn({low}, {high}).{_KOTLIN_TYPES[buffer]}())",
        f"data{number}.rewind()",
    ]


def _kotlin_result(number: int, port: Record) -> list[str]:
    """The values of an output; integers, which Kotlin's buffers have as signed, are brought back to real values."""
    lines = [f"val result{number} = results.get({_dollars(json.dumps(port['name']))}).get() as OnnxTensor"]
    if port["scale"] is None:
        return lines
    buffer = _TYPES[port["dtype"]][2]
    mask = f" and {limits(port['dtype'])[1]}" if port["dtype"].startswith("u") else ""
    whole = f"IntArray(levels{number}.remaining()) {{ levels{number}.get().toInt(){mask} }}"
    real = f"(q - {port['zero_point']}) * {_literal(port['scale'])}"
    return [
        *lines,
        f"val levels{number} = result{number}.{buffer[0].lower()}{buffer[1:]}",
        f"val output{number} = {whole}.map {{ q -> {real} }}",
    ]


def _names(ports: Sequence[Record]) -> str:
    return ", ".join(json.dumps(port["name"]) for port in ports)


def _dollars(text: str) -> str:
    """A string of Kotlin, which would take what follows a dollar for a variable."""
    return text.replace("$", "\\$")
