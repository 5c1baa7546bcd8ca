"""`make mutate`: plants faults in the modules that must not be wrong, and lists those that no test notices.

Draws a number of faults with a fixed seed, runs each against the tests of its module, nearest first, and goes on
where it stopped: `output/mutation/` holds what is known. A fault that was noticed is not planted again while its module
stays the same; one that was not is planted again when tests change.
"""

from __future__ import annotations

import argparse
import sys

from tests.mutation import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--count", type=int, default=400, help="faults to draw (default: 400)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--module", default="", help="only modules whose name contains this")
    arguments = parser.parse_args()
    sys.exit(run.main(arguments.count, arguments.seed, arguments.workers, arguments.module))
