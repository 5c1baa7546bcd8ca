"""Self-contained pages: a template of this folder, filled in and escaped, with the style that all pages share."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from intact.reports.figures import decibels, duration, figure, share, size

_FILTERS = {
    "db": decibels,
    "figure": figure,
    "share": share,
    "duration": duration,
    "size": size,
    "pretty": lambda value: json.dumps(value, indent=2, ensure_ascii=False),
}


def page(template: str, **values: object) -> str:
    """A template filled in: names in a model may be hostile, so that all but the style is escaped."""
    return _compiled(template).render(style=Markup(text_of("style.css")), **values) + "\n"


@cache
def _compiled(template: str) -> Template:
    """A layout, compiled once: that takes longer than to fill it in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= _FILTERS
    return environment.from_string(text_of(template))


def text_of(name: str) -> str:
    """The text of a file of this folder."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
