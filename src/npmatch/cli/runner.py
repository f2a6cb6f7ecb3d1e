"""Run a typer application with one-line errors and this project's exit codes.

0 success, 1 finished with problems, 2 bad input, 130 after Ctrl-C, 143 after SIGTERM. `npmatch` and the benchmarks
beside the package both start here. Nothing heavy is imported, so that help and misspelt commands answer at once.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import warnings
from typing import Any

import typer

from npmatch.errors import NPMatchError, ReportedElsewhereError, StoppedError, escaped
from npmatch.user_code import trusting

TRUST_CODE = "--trust-code"

# Recent versions of typer bundle click: its base exception is reached through a typer exception.
UsageProblem: Any = typer.BadParameter.__mro__[2]  # click.ClickException


def run_app(app: typer.Typer, arguments: list[str], prog_name: str) -> int:
    """Run one command and return the exit code; an error the user can fix is one line on standard error."""
    warnings.filterwarnings("ignore", module="PIL")  # unreadable images are reported by npmatch itself
    words = without_trust_code(arguments)
    try:
        with trusting(len(words) < len(arguments)):
            result = typer.main.get_command(app).main(args=words, prog_name=prog_name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except UsageProblem as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command was given: the message is the help text
            sys.stderr.write(error.format_message() + "\n")
            return 2
        return fail(error.format_message(), prog_name) if is_first_rank() else 2  # every rank has the same arguments
    except ReportedElsewhereError:
        return 2
    except NPMatchError as error:
        return fail(str(error) if is_first_rank() else f"rank {os.environ['RANK']}: {error}", prog_name)
    except StoppedError as stopped:
        if is_first_rank():
            fail(str(stopped), prog_name)
        return stopped.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except OSError as error:  # a failing disk, mount or pipe that no command handles itself
        return fail(f"{error.filename or 'input or output'}: {error.strerror or error}", prog_name)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else "on this machine"
        advice = "lower training.batch or data.image_size, choose a smaller backbone, or --device cpu"
        return fail(f"out of memory ({reason}); {advice}", prog_name)


def without_trust_code(arguments: list[str]) -> list[str]:
    """The arguments less `--trust-code`, which may stand anywhere on the command line."""
    return [word for word in arguments if word != TRUST_CODE]


def is_first_rank() -> bool:
    """Whether this process reports to the user; torch is imported only where torchrun started several processes."""
    if not launched_by_torchrun():
        return True
    from npmatch.distributed.ranks import is_rank_zero

    return is_rank_zero()


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process, judged by its environment variables alone."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the machine ran out of memory; torch's CPU allocator raises a plain RuntimeError."""
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "allocate memory" in str(error)


def fail(message: str, prog_name: str = "npmatch") -> int:
    """Print one line on standard error and return 2, the exit code of bad input."""
    line = escaped(" ".join(message.split()))
    sys.stderr.write(f"{prog_name}: {line}\n")
    return 2


def set_up_process() -> None:
    """Prepare a process for a command: how its threads wait, and how it prints what the terminal cannot show."""
    # OpenMP reads this once, when torch loads it. Threads that spin while waiting slow a busy machine down 4.5 times.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    codecs.register_error("npmatch", as_printable)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="npmatch")


def as_printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Keep the bytes of a file name that is not UTF-8, and escape characters the terminal's encoding lacks."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)
