"""Writes docs/targets from the tables, the predicates' sentences and the answers of the library.

`python -m docs.target_pages FOLDER` writes the pages; a test fails where they are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from docs.wrong_page import wrong_page
from intact.backends.probing import chips
from intact.backends.probing.answers import Answer, Probed, shipped
from intact.settings import devices
from intact.targets import predicates
from intact.targets.registry import disagreements, known_socs, load_target
from intact.targets.spec import OpSpec, Signature, Target

_GRIDS = {
    "own": "The output has a grid of its own.",
    "input": "The output shares the grid of the first input.",
    "common": "All inputs and the output share one grid.",
}


def pages() -> dict[str, str]:
    """The text of every page, by file name."""
    found = {f"{name}.md": "\n".join(_page(name)) + "\n" for name in devices.shipped()}
    wrong = {f"{name}-where-it-is-wrong.md": "\n".join(wrong_page(name)) + "\n" for name in devices.shipped()}
    return found | {name: text for name, text in wrong.items() if text.strip()}


def main(folder: Path) -> None:
    """Write every page into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def _page(name: str) -> Iterator[str]:
    target = load_target(name)
    yield f"# {name}"
    yield ""
    yield f"Generated from `backends/{name}/table.toml` by `python -m docs.target_pages`; do not edit."
    yield from _chips(name)
    yield from _precisions(target)
    yield from _operators(target)
    yield from _answers(name)


def _chips(name: str) -> Iterator[str]:
    socs = known_socs(name)
    if not socs:
        return
    head = "| name | sold as | id | architecture | fast memory |"
    yield from ("", "## Chips", "", head, "| --- | --- | --- | --- | --- |")
    yield from (f"| {soc.name} | {soc.sold_as or '–'} | {soc.id} | v{soc.arch} | {soc.vtcm_mb} MB |" for soc in socs)


def _precisions(target: Target) -> Iterator[str]:
    yield from ("", "## Precisions", "")
    yield ", ".join(target.precisions) or "None yet."


def _operators(target: Target) -> Iterator[str]:
    if not target.ops:
        return
    yield from ("", "## Operators", "")
    yield "Signatures in order of preference. What no signature allows stays on the CPU."
    for (domain, op), spec in sorted(target.ops.items(), key=lambda item: (item[0][1], item[0][0])):
        yield from ("", f"### {f'{domain}::{op}' if domain else op}", "")
        yield from (f"- {_sentence(signature)}" for signature in spec.signatures)
        yield ""
        yield " ".join(_rules(spec))


def _sentence(signature: Signature) -> str:
    words = [f"`{signature}`"]
    words += [f"from v{signature.arch}"] if signature.arch else []
    words += ["computed in float"] if signature.runs == "float" else []
    words += [_inside(predicates.requirement(rule)) for rule in signature.require]
    return ", ".join(words)


def _inside(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


_MUSTS = {"": "", "zero_point": " (the zero point is a must)", "both": " (both are a must)"}


def _rules(spec: OpSpec) -> Iterator[str]:
    yield _GRIDS[spec.grid] if spec.must_share or spec.grid == "own" else f"{_GRIDS[spec.grid]} It need not."
    for dtype, (scale, zero_point) in spec.fixed.items():
        must = _MUSTS[spec.must_fix.get(dtype, "")]
        yield f"A {dtype} output has scale {scale:g} and zero point {zero_point}{must}."
    yield from (predicates.requirement(rule) for rule in spec.require)
    if spec.absorbed:
        yield "It is part of the node before it where the grid behind it cuts off the same values."
    yield f"Source: {spec.source}."


def _answers(name: str) -> Iterator[str]:
    probed = shipped(name)
    if probed is None:
        return
    numbers = chips.numbers(name)
    what = "chip" if load_target(name).by_chip else "architecture"
    yield from ("", "## What the library answered", "")
    each = f" for each {what}" if len(numbers) > 1 else ""
    yield f"{probed.library}, {len(probed.answers)} questions{each} (`intact probe --device {name}` asks them again)."
    for other in sorted(set(probed.alike.values())):
        same = ", ".join(chips.label(name, number) for number in probed.alike if probed.alike[number] == other)
        yield f"Asked a sample only, and taken to answer the rest like {chips.label(name, other)}: {same}."
    yield from (
        "",
        f"| {what} | integer | float | wrong | refused | died |",
        "| --- | --- | --- | --- | --- | --- |",
    )
    yield from (_counts(name, probed, number) for number in numbers)
    yield from ("", "### Taken, and computed wrongly", "")
    yield from ("What it computes differs from ONNX by more than rounding explains.", "")
    yield from _wrong_cases(name, probed)
    yield from ("", "### Where a document says otherwise", "", "The probe wins; both are kept.", "")
    yield from ("| what | documented | probed |", "| --- | --- | --- |")
    yield from (f"| {row.what} | {row.documented} | {row.probed} |" for row in disagreements(name))


def _counts(name: str, probed: Probed, arch: int) -> str:
    found = [row[arch] for row in probed.answers.values() if arch in row]
    kinds = ["wrong" if _is_wrong(answer) else answer.verdict for answer in found]
    numbers = [str(kinds.count(kind)) for kind in ("integer", "float", "wrong", "refused", "died")]
    return f"| {chips.label(name, arch)} | {' | '.join(numbers)} |"


def _wrong_cases(name: str, probed: Probed) -> Iterator[str]:
    for case, row in sorted(probed.answers.items()):
        wrong = [f"{chips.label(name, arch)} {_kept(row[arch])}" for arch in sorted(row) if _is_wrong(row[arch])]
        if wrong:
            yield f"- `{case}`: {', '.join(wrong)}"


def _kept(answer: Answer) -> str:
    return "(no result)" if answer.sqnr_db is None else f"{answer.sqnr_db} dB"


def _is_wrong(answer: Answer) -> bool:
    return answer.verdict in ("integer", "float") and not answer.right


if __name__ == "__main__":
    main(Path(sys.argv[1]))
