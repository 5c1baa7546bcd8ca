"""The manifest, which is a build written down, and the report, which is drawn from the manifest alone."""
