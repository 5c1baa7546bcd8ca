"""Pages in Chromium without a window: as they are, and after a script has acted on them."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


def browse(path, *more):
    """The page as Chromium has it after its scripts, and its log."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", *more]
    command = [CHROMIUM, *flags, f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run([*command, f"file://{path}"], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout, done.stderr


def opened(page, folder):
    """The page as Chromium has it; none of its scripts may fail, nor be refused."""
    path = folder / "as_is.html"
    path.write_text(page, encoding="utf-8")
    dom, log = browse(path)
    assert "CONSOLE" not in log, log
    return dom


def said_by(page, folder, script):
    """The list of texts `said` that a script makes of a page, which is let run by taking its policy away."""
    acting = f'<script>const said = [];\n{script}\ndocument.title = said.join(" ;; ");</script></body>'
    path = folder / "acted.html"
    path.write_text(without_policy(page).replace("</body>", acting), encoding="utf-8")
    dom, log = browse(path)
    assert "CONSOLE" not in log, log
    return re.search(r"<title>(.*?)</title>", dom)[1].split(" ;; ")


def without_policy(page, instead=""):
    """A page without its content security policy, for scripts that are not its own."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', lambda _: instead, page)
