"""Policies: one file per model family, all seen through one call, ``velocity``."""
