"""The command line: one file per verb, and one place that turns errors into sentences."""

from flowalign.cli.app import main

__all__ = ["main"]
