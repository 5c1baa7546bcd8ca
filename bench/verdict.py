"""How often the verdict is right, against the bars that it was built to.

faults: 300 faults planted in QDQ models of zoo and examples, judged by `verify` alone. Every one that leaves less than
20 dB, or turns more than a tenth of the clear decisions, by a float64 reference of this file, has to be suspect or
worse. sound: 300 builds without a fault (precisions, devices, seeds); at most 2 % may be suspect or worse.
Exit status 1 where a bar does not hold.

python bench/verdict.py [faults] [sound]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product, zip_longest
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from intact.api.quantize import quantize  # noqa: E402
from intact.api.verify import verify  # noqa: E402
from intact.errors import IntactError  # noqa: E402
from intact.pipeline.stages import BuildOptions  # noqa: E402
from intact.runtime.host_cpu import adds_pairs_in_16_bits  # noqa: E402
from intact.search.builds import build_any  # noqa: E402
from intact.settings.config import BuildConfig  # noqa: E402
from tests.planted import FAULTS, planted  # noqa: E402
from tests.zoo import cnn, data, transformer, variants  # noqa: E402

CASES = 300
LEAST_DB, MOST_TURNED, LEAST_DECISIONS = 20.0, 0.1, 20
MOST_SUSPECT = 0.02
DOUBTED = ("suspect", "failed", "broken")
BUILDERS = {
    "residual_cnn": cnn.residual_cnn,
    "depthwise_cnn": cnn.depthwise_cnn,
    "inverted_residual_cnn": cnn.inverted_residual_cnn,
    "bert": transformer.bert,
    "vit": transformer.vit,
    **{f"variant_{name}": getattr(variants, name) for name in ("residual_cnn", "depthwise_cnn", "bert", "vit")},
}
EXAMPLES = ("digits_cnn", "digits_vit", "topics_bert")


def saved(name: str, folder: Path, seed: int | None = None, rows: int = 96) -> tuple[Path, Path]:
    """A model of the zoo with these weights, and inputs for it, as files."""
    model = BUILDERS[name]() if seed is None else BUILDERS[name](seed=seed)
    path, inputs = folder / f"{name}_{seed}.onnx", folder / f"{name}_{seed}.npz"
    if not path.exists():
        onnx.save(model, path)
        if name.startswith("variant_"):
            given = variants.rows(model, rows)
            np.savez(inputs, **{key: np.concatenate([row[key] for row in given]) for key in given[0]})
        else:
            np.savez(inputs, **data(model, rows, seed or 0))
    return path, inputs


def measured(reference: Path, model: onnx.ModelProto, rows: dict[str, np.ndarray]) -> tuple[float, float]:
    """The least SQNR in dB, and the greatest share of clear decisions that turned, in float64."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    sessions = [ort.InferenceSession(source, options) for source in (str(reference), model.SerializeToString())]
    names = [value.name for value in sessions[0].get_outputs()]
    count = len(next(iter(rows.values())))
    runs = [
        [session.run(names, {key: value[i : i + 1] for key, value in rows.items()}) for i in range(count)]
        for session in sessions
    ]
    least, turned = np.inf, 0.0
    for index in range(len(names)):
        a, b = (np.stack([row[index] for row in run]).astype(np.float64) for run in runs)
        noise = float(np.sum((a - b) ** 2))
        least = min(least, 10 * np.log10(np.sum(a * a) / noise) if noise else np.inf)
        if a.ndim == 3 and a.shape[1] == 1 and a.shape[2] > 1:
            a, b = a[:, 0], b[:, 0]
            ordered = np.sort(a, axis=1)
            clear = ordered[:, -1] - ordered[:, -2] > np.sqrt(noise / a.size)
            if clear.sum() >= LEAST_DECISIONS:
                turned = max(turned, float(np.mean(a.argmax(1)[clear] != b.argmax(1)[clear])))
    return float(least), turned


def subjects(folder: Path) -> Iterator[tuple[str, Path, Path]]:
    for name in BUILDERS:
        yield (name, *saved(name, folder, rows=48))
    for name in EXAMPLES:
        yield name, ROOT / "examples" / name / "model.onnx", ROOT / "examples" / name / "calibration.npz"


def faults(folder: Path) -> bool:
    """Plant faults in turn in every model at two precisions, as many as there are cases, evenly."""
    kinds: list[list[tuple[str, str, Path, Path, str, onnx.ModelProto]]] = []
    for (name, path, inputs), precision in product(subjects(folder), ("uint8", "w8a16")):
        written = folder / f"{name}_{precision}.qdq.onnx"
        settings = {"precision": precision, "quant": {"load_path": str(inputs), "effort": "fast"}}
        quantize(path, config=BuildConfig.from_dict(settings), output=written)
        model = onnx.load(written)
        for kind in FAULTS:
            found = [(name, precision, path, inputs, f"{kind} at {node}", bad) for node, bad in planted(model, kind)]
            kinds.append([found[i] for i in np.linspace(0, len(found) - 1, min(len(found), 5)).astype(int)])
    cases = [case for group in zip_longest(*kinds) for case in group if case is not None][:CASES]
    missed, words = [], Counter()
    for name, precision, path, inputs, what, bad in cases:
        onnx.save(bad, folder / "bad.onnx")
        rows = dict(np.load(inputs))
        rows = {key: value[-32:] for key, value in rows.items()}
        np.savez(folder / "rows.npz", **rows)
        try:
            least, turned = measured(path, bad, rows)
        except Exception:
            words["does not run"] += 1  # ONNX Runtime refuses some faults itself: they cannot pass for sound
            continue
        word = verify(path, folder / "bad.onnx", test_data=str(folder / "rows.npz")).verdict
        wrong = least < LEAST_DB or turned > MOST_TURNED
        words[f"{'wrong' if wrong else 'harmless'}: {word}"] += 1
        if wrong and word not in DOUBTED:
            missed.append(f"{name} {precision} {what}: {least:.1f} dB, {100 * turned:.0f} % turned: {word}")
    print(f"faults: {len(cases)} planted; {dict(words)}; wrong and not said: {len(missed)}")
    print("\n".join(missed))
    return len(cases) == CASES and not missed


def sound(folder: Path) -> bool:
    """Build models with weights of several seeds for several devices; all of them are sound."""
    seeds = range(11, 17)
    # Without VNNI, OpenVINO itself lets sums saturate: what it loses there is a fault, and rightly told.
    devices = ("cpu", "qnn") if adds_pairs_in_16_bits() else ("cpu", "qnn", "openvino")
    precisions = ("uint8", "int8", "w8a16")
    wanted = [
        (name, seed, device, precision)
        for seed, name, device, precision in product(seeds, BUILDERS, devices, precisions)
        if (device, precision) != ("openvino", "w8a16")
    ]
    examples = [
        (name, None, d, p) for name, d, p in product(EXAMPLES, devices, precisions) if (d, p) != ("openvino", "w8a16")
    ]
    wanted = (examples + wanted)[:CASES]
    words, said, start = Counter(), [], time.monotonic()
    for index, (name, seed, device, precision) in enumerate(wanted):
        if name in EXAMPLES:
            path, inputs = (ROOT / "examples" / name / file for file in ("model.onnx", "calibration.npz"))
        else:
            path, inputs = saved(name, folder, seed)
        values = {
            "precision": precision,
            "compile": {"device": device},
            "quant": {"load_path": str(inputs), "effort": "fast"},
            "strict": False,
        }
        try:
            built = build_any(path, BuildConfig.from_dict(values), folder / "out", BuildOptions(overwrite=True))
            word, why = built.verdict, "; ".join(built.verdict_reasons)
        except IntactError as error:
            word, why = "refused", f"{error.code} {error.message[:200]}"
        words[word] += 1
        if word != "good":
            said.append(f"{name} seed {seed} {device} {precision}: {word}: {why}")
            print(said[-1], flush=True)
        if index % 50 == 49:
            print(f"{index + 1} of {len(wanted)}, {time.monotonic() - start:.0f} s: {dict(words)}", flush=True)
    share = sum(words[word] for word in DOUBTED) / len(wanted)
    figures = f"{100 * share:.1f} % suspect or worse (bar {100 * MOST_SUSPECT:g} %)"
    print(f"sound: {len(wanted)} built; {dict(words)}; {figures}")
    return len(wanted) == CASES and share <= MOST_SUSPECT


def main() -> int:
    parts = {"faults": faults, "sound": sound}
    asked = sys.argv[1:] or list(parts)
    with tempfile.TemporaryDirectory() as name:
        held = [parts[part](Path(name)) for part in asked]
        return int(not all(held))


if __name__ == "__main__":
    sys.exit(main())
