"""`--log-json`: the stages, notes, warnings and the error of a command, one JSON object a line on stderr.

Every object has `event` (stage, note, warning or error) and `time` (UTC). Nothing else goes to stderr.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

FLAG = "--log-json"


def wanted() -> bool:
    """True if the command that was typed asks for lines of JSON."""
    return FLAG in sys.argv


def write(event: str, **fields: object) -> None:
    """Write one event; ASCII alone, so that no name in it steers a terminal."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    sys.stderr.write(json.dumps({"event": event, "time": stamp, **fields}) + "\n")
