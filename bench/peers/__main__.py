"""Compare intact with other quantizers on this machine: `python -m bench.peers`, or `make bench-peers`.

Makes an environment for each tool, quantizes every model with each, and writes RESULTS.md with its pictures and the raw
figures. It goes on where it stopped. All of it takes hours; `--quick` takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.peers import judge, models, report, store
from bench.peers.environments import ROOT, made
from bench.peers.measure import Bench, describe, judge_all, measure, note_models, tasks
from bench.peers.models import Case
from bench.peers.tools import PACKAGES, TOOLS

OUTPUT = ROOT / "output/peers"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"models [default: {' '.join(models.NAMES)}]")
    parser.add_argument("--quick", action="store_true", help="the smallest models, once each")
    parser.add_argument("--model", type=Path, help="an ONNX model of your own, in place of others")
    parser.add_argument("--data", type=Path, help="its inputs, an .npz; a quarter of the rows judges the results")
    parser.add_argument("--tools", nargs="+", metavar="TOOL", help="some tools only, by their names in the tables")
    parser.add_argument("--repeats", type=int, help="times that each is run [default: 3; 1 with --quick]")
    parser.add_argument("--no-curve", action="store_true", help="one number of samples for each model")
    parser.add_argument("--no-simulator", action="store_true", help="judge on the CPU alone, which is much quicker")
    parser.add_argument("--into", type=Path, help="folder of RESULTS.md [default: bench, or output/peers for a part]")
    parser.add_argument("--retry", action="store_true", help="try again to install what could not be installed")
    parser.add_argument("--report", action="store_true", help="measure nothing, draw RESULTS.md again")
    asked = parser.parse_args()
    if (asked.model is None) != (asked.data is None):
        parser.error("--model and --data belong together")
    return asked


def chosen(asked: argparse.Namespace) -> list[Case]:
    """The models that are asked for; one that is not there is named and left out."""
    folder = OUTPUT / "models"
    if asked.model is not None:
        return [models.of_user(asked.model, asked.data, folder)]
    found = []
    for name in asked.names or (models.QUICK if asked.quick else models.NAMES):
        try:
            found.append(models.case(name, folder, curve=not (asked.quick or asked.no_curve)))
        except models.Unknown as error:
            _say(f"left out: {error}")
    return found


def main() -> int:
    """Measure what is asked for, and write the report."""
    asked = arguments()
    part = asked.quick or asked.model is not None or bool(asked.names) or bool(asked.tools)
    into = asked.into or (OUTPUT if part else ROOT / "bench")
    simulators = [] if asked.no_simulator else judge.simulators()
    bench = Bench(OUTPUT / "envs", OUTPUT / "work", into / "results/peers.json", _say, simulators)
    results = store.read(bench.file)
    if not asked.report:
        wanted = [tool for tool in TOOLS if not asked.tools or tool.label in asked.tools]
        _say("environments: made once, some are large")
        # All of them where none is asked for: one that does not install is named in the report.
        names = dict.fromkeys(tool.package for tool in wanted) if asked.tools else PACKAGES
        ready = {name: made(bench.environments, PACKAGES[name], retry=asked.retry) for name in names}
        describe(bench, ready, results)
        usable = [tool for tool in wanted if ready[tool.package].usable]
        cases = chosen(asked)
        note_models(cases, results)
        measure(bench, tasks(cases, usable, asked.repeats or (1 if asked.quick else 3)), results)
        judge_all(bench, cases, usable, results)
    # As the file has them: the order of runs is not that of the page.
    report.write(into, store.read(bench.file))
    _say(str(into / "RESULTS.md"))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
