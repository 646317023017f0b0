"""The ``flowalign`` command."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from flowalign.cli import bench, demo, inspect, run
from flowalign.cli.launch import start_missing_processes
from flowalign.errors import FlowalignError

app = typer.Typer(
    name="flowalign",
    help="Align diffusion and flow-matching generators with rewards.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo.demo,
    run.train,
    bench.bench,
    run.report,
    inspect.explain,
    inspect.list_,
    inspect.doctor,
    run.export,
):
    app.command(name=command.__name__.rstrip("_"))(command)


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; a mistake of the user is one sentence on stderr and exit code 1 (2 for usage)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    sys.path.insert(0, os.getcwd())  # for plug-ins named module:attr beside the recipe
    try:
        start_missing_processes()
        app(args=arguments, prog_name="flowalign")  # leaves by SystemExit
    except FlowalignError as error:
        _tell(str(error), debug)
    except OSError as error:  # a full disk, a folder of somebody else
        what = f"{error.filename}: " if error.filename else ""
        why = error.strerror or error
        _tell(f"{what}{why}; check the path and the free space, then run it again", debug)


def _tell(message: str, debug: bool) -> None:
    """The sentence, and with --debug where it comes from."""
    if debug:
        traceback.print_exc()
    print("error:", " ".join(message.split()), file=sys.stderr)
    _exit(1)


def _exit(code: int) -> None:
    """Leave; under a launcher at once, since other processes may be waiting in a collective."""
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(code)
    sys.exit(code)
