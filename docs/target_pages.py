"""Writes docs/targets from the tables, the predicates' sentences and the answers of the library.

`python docs/target_pages.py FOLDER` writes the pages; a test fails where they are out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from intact.backends.probing import chips
from intact.backends.probing.answers import Answer, Probed, shipped
from intact.backends.probing.atlas import AS_IT_STANDS
from intact.backends.probing.wrong_regions import shipped_regions
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
    wrong = {f"{name}-where-it-is-wrong.md": "\n".join(_wrong_page(name)) + "\n" for name in devices.shipped()}
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
    yield f"Generated from `backends/{name}/table.toml` by `python docs/target_pages.py`; do not edit."
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


def _wrong_page(name: str) -> Iterator[str]:
    """Where a device takes an operator and computes something else, and what a build does about it."""
    shown = shipped_regions(name)
    if shown is None:
        return
    library, regions = shown.library, shown.wrong
    about = "every operator" if shown.asked is None else f"{', '.join(shown.asked)} and what follows or precedes them"
    target = load_target(name)
    yield f"# Where {name} is wrong"
    yield ""
    yield "Generated by `python docs/target_pages.py` from the target's table and the regions beside it; do not edit."
    yield ""
    yield (
        "The compiler takes these, places them on the NPU, and its simulator computes something else, without a word "
        f"({library}; `intact probe --device {name} --numeric` asks again). Decibels are those of the simulator's "
        "result against the CPU's, on the same quantized model. A build compares both in any case: where much is "
        "lost, it looks for the piece, tries other forms of it, and says what it did."
    )
    yield ""
    yield f"Asked about in full so far: {about}; others in part. What is not listed was not asked, or is right."
    yield from ("", "## What builds avoid beforehand", "")
    yield "`intact analyze` and every build name what a model that was quantized elsewhere has of it (T118)."
    yield from ("", "| operator | requirement | source |", "| --- | --- | --- |")
    for (_, op), spec in sorted(target.ops.items(), key=lambda item: item[0][1]):
        for rule in spec.require:
            if rule["check"] in ("input_scale_at_least", "output_grid_holds"):
                yield f"| {op} | {predicates.requirement(rule)} | {spec.source} |"
        for rule in spec.right:
            mended = "; it gets another form" if "remedy" in rule else ""
            yield f"| {op} | {predicates.requirement(rule)[:-1]}{mended} | {rule.get('source', spec.source)} |"
    for dtype in sorted(target.rewrite.requantizes_wrongly):
        yield f"| a {dtype} grid right behind another one | none is left by rewriting | {target.rewrite.source} |"
    yield from ("", "## What was found", "", "| operators and types | where | there | usually | architectures |")
    yield "| --- | --- | --- | --- | --- |"
    for region in regions:
        archs = ", ".join(chips.label(name, arch) for arch in region.archs)
        figures = f"{region.worst_db:g} dB | {'—' if region.where == AS_IT_STANDS else f'{region.usual_db:g} dB'}"
        yield f"| `{region.case}` | {region.where} | {figures} | {archs} |"


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
