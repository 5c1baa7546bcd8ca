"""Models before and after rules, run side by side: every rule is held to what it claims."""
