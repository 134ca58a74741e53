"""Between a command and the shell: exit codes, and errors as one sentence.

Exit codes: 0 done · 1 the job failed · 2 the command was misused · 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lutetia._shared import notices
from lutetia.cli.show import console, forgive_encoding, one_line, print_error, print_json
from lutetia.errors import LutetiaError, nearest

# click's ClickException by way of a public name: recent typers carry a click of their own.
ClickException: type[Any] = typer.BadParameter.__mro__[2]
EXIT_CODES = {"usage": 2, "interrupted": 130}  # by kind of error; every other kind is 1
LONGEST = 2000  # characters of an error
COMMON_OPTIONS = ("--json", "--debug")
# In the order of a first day: see it, train, ask, look inside, build, then the tools.
ORDER = (
    "demo",
    "train",
    "import",
    "compare",
    "predict",
    "evaluate",
    "explain",
    "evaluate-explanations",
    "generate",
    "info",
    "quantize",
    "build",
    "board",
    "page",
    "flow",
    "bench",
    "doctor",
)


class UsageError(LutetiaError):
    """The command line asks for something that does not exist."""

    kind = "usage"


class InterruptedByUser(LutetiaError):
    """Ctrl-C."""

    kind = "interrupted"


@dataclass(frozen=True)
class Common:
    """The options that every command takes."""

    json: bool
    debug: bool


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run the app and return the exit code."""
    screen = console(stderr=True)
    if screen.is_terminal:
        notices.screens.append(lambda text: screen.print(text, style="dim", soft_wrap=True))
    code = get_command(app).main(arguments, prog_name="lutetia", standalone_mode=False)
    return int(code)


class Group(TyperGroup):
    """A typer group that reports every error in one sentence, or as JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments, common = place_common_options(list(sys.argv[1:] if args is None else args))

        def job() -> Any:
            return super(Group, self).main(arguments, "lutetia", complete_var, False, windows_expand_args, **extra)

        code = guarded(job, common)
        if standalone_mode:
            sys.exit(code)
        return code

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            raise UsageError(f"there is no command {name!r}: {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # here, for typer's own way is to leave without a word
            raise InterruptedByUser("interrupted") from error


def place_common_options(arguments: list[str]) -> tuple[list[str], Common]:
    """Move --json and --debug from before the sub-command to after it, where it parses them; what follows `--` is not ours."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    head, tail = arguments[:end], arguments[end:]
    common = Common(*(option in head for option in COMMON_OPTIONS))
    command = next((i for i, word in enumerate(head) if not word.startswith("-")), None)
    if command is not None:
        early = [word for word in head[:command] if word in COMMON_OPTIONS]
        before = [word for word in head[:command] if word not in COMMON_OPTIONS]
        head = [*before, head[command], *early, *head[command + 1 :]]
    return head + tail, common


def guarded(job: Callable[[], Any], common: Common) -> int:
    """Run a job and return its exit code; errors become a sentence, never an exception."""
    forgive_encoding()
    code = 0
    try:
        code = attempt(job, common)
        sys.stdout.flush()
    except BrokenPipeError:  # a reader such as `head` has left; nobody is there to be told
        sys.stdout = None  # else the interpreter flushes it, and complains, on its way out
        return 1
    except OSError as error:  # the output goes to a file, and its disk is full
        sys.stdout = None
        if not code:  # else an error has been told
            print_error(f"the output cannot be written: {error.strerror or error}")
        return code or 1
    return code


def attempt(job: Callable[[], Any], common: Common) -> int:
    try:
        with ctrl_c_is_the_reason():
            result = job()
    except SystemExit as left:  # shell completion, or typer and rich when a reader has left
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        return report(error, common)
    if result == EXIT_CODES["interrupted"]:  # outside of `invoke`, typer has left without a word
        return report(InterruptedByUser("interrupted"), common)
    return result if isinstance(result, int) else 0


_came: list[int] = []  # each Ctrl-C of the command that runs


@contextmanager
def ctrl_c_is_the_reason() -> Iterator[None]:
    """Treat a failure after Ctrl-C as an interruption: packages swallow Ctrl-C while they are imported or compile, and fail oddly
    later, or not at all, for which there is `stop_if_interrupted`.
    """
    came, hook = _came, sys.unraisablehook
    came.clear()

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    def unraisable(told: sys.UnraisableHookArgs) -> None:
        if not issubclass(told.exc_type, KeyboardInterrupt):  # else it came while an object was cleared away
            hook(told)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # else someone else looks after it, or it is ignored, as behind nohup
        signal.signal(signal.SIGINT, note)
        sys.unraisablehook = unraisable
    try:
        yield
    except InterruptedByUser:
        raise
    except Exception as error:
        if came:
            raise InterruptedByUser("interrupted") from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            sys.unraisablehook = hook


def stop_if_interrupted() -> None:
    """For long loops: raise what Ctrl-C should have raised, if a package swallowed it."""
    if _came:
        raise KeyboardInterrupt


def report(error: BaseException, common: Common) -> int:
    """Tell the user, or the machine, what went wrong; return the exit code."""
    kind, message = explain(error)
    if common.debug:
        traceback.print_exception(error, file=sys.stderr)
    if common.json:
        print_json({"error": {"kind": kind, "message": message}})
    else:
        print_error(message)
    return EXIT_CODES.get(kind, 1)


def explain(error: BaseException) -> tuple[str, str]:
    """The kind of an error and one sentence about it."""
    if isinstance(error, LutetiaError):
        return error.kind, shortened(one_line(str(error)))
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", "interrupted"
    if isinstance(error, ClickException):
        return "usage", usage_sentence(error)
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch says it with a RuntimeError
        return "memory", shortened(one_line(f"there is not enough memory: {error}".rstrip(": ")))
    if isinstance(error, OSError) and error.strerror is not None:
        return "file", one_line(f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror)
    return "internal", one_line(f"unexpected {type(error).__name__}: {error} (run again with --debug to see where)")


def shortened(sentence: str) -> str:
    """A sentence that quotes something very long, without its middle."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 4 :]}"


def usage_sentence(error: Any) -> str:
    """click's own message as one sentence, with the help that explains more."""
    where = f"{error.ctx.command_path} --help" if getattr(error, "ctx", None) else ""
    option = getattr(error, "option_name", None)
    if option and hasattr(error, "possibilities"):
        hint = did_you_mean(option, error.possibilities) if error.possibilities else f"{where or 'lutetia --help'} lists them"
        return one_line(f"there is no option {option}: {hint}")
    said = one_line(error.format_message()).rstrip(".")
    return said[:1].lower() + said[1:] + (f" ({where} shows the usage)" if where else "")


def did_you_mean(word: str, names: Collection[str]) -> str:
    """The most similar name, or all of them if none is similar."""
    near = nearest(word, names)
    return f"did you mean one of {listed(names)}?" if near is None else f"did you mean {near}?"


def listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
