"""`intact.schema`: JSON Schemas of settings and manifest."""

from __future__ import annotations

from intact.errors import SettingsError
from intact.json_types import JsonObject
from intact.reports import manifest
from intact.settings.config import BuildConfig


def schema(of: str = "config") -> JsonObject:
    """The JSON Schema of settings files (`config`) or of the `manifest`."""
    schemas = {"config": BuildConfig.model_json_schema, "manifest": manifest.schema}
    if of not in schemas:
        raise SettingsError("S144", f"there is no schema of {of!r}", allowed="config, manifest")
    return schemas[of]()
