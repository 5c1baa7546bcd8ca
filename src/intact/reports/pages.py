"""Self-contained pages: a template of this folder, filled in and escaped, with the style that all pages share."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from intact.reports.figures import decibels, duration, figure, share, size

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_FILTERS = {
    "db": decibels,
    "figure": figure,
    "share": share,
    "duration": duration,
    "size": size,
    "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
}


def page(template: str, *scripts: str, **values: object) -> str:
    """A template filled in: names in a model may be hostile, so that all but style and scripts are escaped.

    The page's policy lets only the `scripts` of those very digests run.
    """
    codes = [text_of(script) for script in scripts]
    values["scripts"] = [Markup(code) for code in codes]
    allowed = " ".join(f"'{_digest(code)}'" for code in codes)
    values["policy"] = f"{POLICY}; script-src {allowed}" if codes else POLICY
    return _compiled(template).render(style=Markup(text_of("style.css")), **values) + "\n"


@cache
def _compiled(template: str) -> Template:
    """A layout, compiled once: that takes longer than to fill it in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= _FILTERS
    return environment.from_string(text_of(template))


def _digest(code: str) -> str:
    """The digest by which a content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


def text_of(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
