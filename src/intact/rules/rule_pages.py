"""Writes the page about the rules: `python -m intact.rules.rule_pages > docs/rewriting.md`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from intact.matching.rewriter import Rule
from intact.rules.quantized.families import CONVERSIONS, FAMILIES, Latitude, conversion, rules_for
from intact.targets.registry import known_backends, load_target

_HEAD = """\
# Rewriting quantized graphs

```sh
intact quantize model.onnx --device cpu --data inputs.npz -o model.qdq.onnx
intact rewrite model.qdq.onnx --device cpu -o rewritten.onnx
intact rewrite model.qdq.onnx --device cpu --explain node_Conv_109 -o explained.onnx
intact convert model.qdq.onnx --to qlinear -o qlinear.onnx
intact convert qlinear.onnx --to qdq -o qdq.onnx
```

`rewrite` brings a quantized model, from whatever tool, to the form that a device takes and runs fast. It prints which
rule fired how often, with its claim, and the operators before and after; `--json` has the same. `--explain NODE` says
for one node which rules fired there, and why each other that has a place for it did not; `--explain` alone says it
wherever a rule matches and does not fire. `build` applies the same rules after quantizing, and its manifest lists them.

## Claims

| claim | what it means | how it is held |
| --- | --- | --- |
| exact | not one integer differs | against plain integer arithmetic over types, shapes and extremes |
| within one step | an integer moves by 1 at most, from the same inputs | the same; guards refuse other places |
| bounded | the same sums, in floats that are added in another order | the same |
| near | a weight gets another grid, and its layer keeps 40 dB | on data, layer by layer |

`--exact` takes no rule that may move an integer; `--near`, the default, takes all. After rewriting, the model runs
before and after on held-back inputs in ONNX Runtime without its optimizations: every replaced tensor is held to the
claim of its rule, and outputs are compared. A rule that breaks its claim stops the build, by name.

Where ONNX Runtime would refuse to load the result with its optimizations, or spoil it by fusing nodes for a CPU, exact
repairs of `intact lint` follow, in the same list (`propagated_int8` and others, [what lint finds](lint.md)).

Rules match the structure of a graph only. Which rules a device gets, and in which order they are tried at a node, is in
`backends/<device>/table.toml` under `[rewrite]`.

## Rules

This part is written from the rules themselves. The last column names the devices whose table asks for a rule, and
`to qdq` and `to qlinear` for `intact convert`; a rule with none is for tables of devices that are installed besides.
"""


def markdown() -> str:
    """The page."""
    return _HEAD + "".join(part for family in FAMILIES for part in _family(family))


def _family(name: str) -> Iterator[str]:
    yield f"\n### {name}\n\n| rule | claim | equation | for |\n| --- | --- | --- | --- |\n"
    for rule in FAMILIES[name]:
        equation = (inspect.getdoc(rule) or "").partition("\n")[0].replace("|", "\\|")
        yield f"| `{rule.name}` | {rule.exactness.value} | {equation} | {', '.join(_users(rule))} |\n"


def _users(rule: Rule) -> list[str]:
    """The devices and conversions that ask for a rule."""
    # An old runtime needs more rules than a new one.
    devices = {name: load_target(name, vnni=False, ort="1.26") for name in known_backends()}
    asked = {**devices, **{f"to {form}": conversion(form) for form in CONVERSIONS}}
    return [
        name for name, target in asked.items() if rule.name in {one.name for one in rules_for(target, Latitude.NEAR)}
    ]


if __name__ == "__main__":
    sys.stdout.write(markdown())
