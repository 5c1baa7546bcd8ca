"""The command as from outside, in the process of the test: to start another takes longer than most commands do."""

from __future__ import annotations

import contextlib
import io

import pytest

from intact.cli import main


def run(*arguments: object) -> tuple[int, str, str]:
    """The status of `intact` with these arguments, and what it writes to stdout and to stderr."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr("sys.argv", ["intact", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main.main()
    assert "Traceback" not in err.getvalue()
    return int(end.value.code or 0), out.getvalue(), err.getvalue()
