"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from flowalign.errors import FlowalignError
from flowalign.report.data import read_run
from flowalign.report.page import render

__all__ = ["write_report"]


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of the run in folder ``run`` and return its path.

    Args:
        run: a run folder, finished or not.
        out: the page; default ``report.html`` in the run folder.

    Raises:
        FlowalignError: if ``run`` is no run folder or ``out`` cannot be written.
    """
    from flowalign.run import write_atomic

    page = render(read_run(run))
    out = run / "report.html" if out is None else out
    if out.is_dir():
        raise FlowalignError(f"{out} is a folder; give --out the name of a file, such as page.html")
    try:
        write_atomic(out, page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FlowalignError(
            f"the report cannot be written to {out} ({reason}); give --out another path"
        ) from error
    return out
