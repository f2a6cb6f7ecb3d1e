"""The command line: verbs → functions. A token containing `=` is a configuration override."""

from __future__ import annotations

import codecs
import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer

from npmatch.cli import compare, data, export, label, predict, serve, train
from npmatch.cli.shared import fail
from npmatch.errors import NPMatchError

# Newer versions of typer carry click inside themselves: its exceptions are reached through typer's own names.
UsageProblem: Any = typer.BadParameter.__mro__[2]  # click.ClickException

TRUST_CODE = "--trust-code"
ON_RANKS = ("train", "evaluate", "predict")  # verbs that several processes of torchrun do together

app = typer.Typer(
    help="From a folder of images of which a few are labelled to a classifier that says how sure it is.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(data.check_data)
app.command()(train.train)
app.command()(predict.evaluate)
app.command()(predict.calibrate)
app.command()(predict.predict)
app.command()(predict.report)
app.command()(label.suggest)
app.command()(label.label)
app.command()(export.export)
app.command()(compare.compare)
app.command()(compare.sweep)
app.command()(compare.recipes)
app.command()(serve.serve)


@app.callback()
def options(
    trust_code: Annotated[
        bool, typer.Option(TRUST_CODE, help="With any verb: run the Python code that a run's files name.")
    ] = False,
) -> None:
    """From a folder of images of which a few are labelled to a classifier that says how sure it is."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb; what the user can put right is one line on standard error and exit code 2."""
    warnings.filterwarnings("ignore", module="PIL")  # its remarks on odd files; what cannot be read is said by us
    from npmatch.distributed.ranks import is_first, launched
    from npmatch.errors import InterruptedRunError, ToldElsewhereError
    from npmatch.user_code import trusting

    command = typer.main.get_command(app)
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != TRUST_CODE]  # wherever it stands
    if launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1 and words and words[0] not in (*ON_RANKS, "--help"):
        line = f"{words[0]}: torchrun is for {', '.join(ON_RANKS)}; leave it out"
        return fail(line) if is_first() else 2
    try:
        with trusting(len(words) < len(given)):
            result = command.main(args=words, prog_name="npmatch", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UsageProblem as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group of verbs without a verb: its help, as it stands
            sys.stderr.write(error.format_message() + "\n")
            return 2
        return fail(error.format_message()) if is_first() else 2  # all ranks have the same words
    except ToldElsewhereError:
        return 2
    except NPMatchError as error:
        return fail(str(error) if is_first() else f"rank {os.environ['RANK']}: {error}")
    except InterruptedRunError as stopped:
        if is_first():
            fail(str(stopped))
        return stopped.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:  # a disk, a mount or a pipe that fails where no verb has more to say of it
        return fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        advice = "lower training.batch or data.image_size, choose a smaller backbone, or --device cpu"
        return fail(f"out of memory ({str(error).splitlines()[0] if str(error) else 'on this machine'}); {advice}")


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the machine has no more to give; torch's allocator for the CPU has no type of its own."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "allocate memory" in str(error)


def console_script() -> None:
    """The `npmatch` command."""
    codecs.register_error("npmatch", as_printable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="npmatch")
    sys.exit(main())


def as_printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """File names are bytes, which need not be UTF-8; and a terminal need not know every character of ours."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)
