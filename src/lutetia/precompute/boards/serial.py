"""A serial port, and questions over it. The standard library is enough: termios."""

from __future__ import annotations

import errno
import glob
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lutetia.errors import DataError, JobError, MissingFeatureError
from lutetia.precompute.boards.frames import END, OTHER, Answer, Frames, padding, question

RATES = (115_200, 230_400, 460_800, 500_000, 921_600, 1_000_000, 2_000_000, 3_000_000)
AT_ONCE = 64  # questions that may be under way; less than half of the numbers that there are
TRIES = 3
READ = 1 << 14
WAIT = 0.5  # seconds for an answer, besides the time that its bytes and its cycles take
PORTS = ("/dev/ttyUSB*", "/dev/ttyACM*", "/dev/cu.usb*")


class OtherCircuitError(JobError):
    """The board holds another circuit."""

    def __init__(self, message: str, identity: int) -> None:
        super().__init__(message)
        self.identity = identity


@dataclass(frozen=True)
class Talk:
    """What both sides know: the circuit's identity, the bytes of a question and of an answer, whether questions may follow each
    other without waiting, and the seconds that an answer takes at most."""

    identity: int
    question_bytes: int
    answer_bytes: int
    streams: bool
    seconds: float


@contextmanager
def open_port(path: str, baud: int) -> Iterator[int]:
    """A serial port as a file that does not wait: 8 data bits, no parity, one stop bit, no flow control."""
    try:
        import termios
        import tty
    except ImportError as error:
        raise MissingFeatureError("a serial port needs the termios of Linux or macOS") from error
    try:
        port = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as error:
        raise DataError(_why_closed(path, error)) from error
    try:
        try:
            tty.setraw(port)
            speed = getattr(termios, f"B{baud}", None)
            if speed is None:
                raise DataError(f"this system has no serial line of {baud:,} baud: set baud = 115200 in a file of the board")
            settings = termios.tcgetattr(port)
            settings[2] = (settings[2] | termios.CREAD | termios.CLOCAL) & ~(termios.CSTOPB | getattr(termios, "CRTSCTS", 0))
            settings[4] = settings[5] = speed
            termios.tcsetattr(port, termios.TCSANOW, settings)
            termios.tcflush(port, termios.TCIOFLUSH)
        except termios.error as error:
            raise DataError(f"{path} is no serial port: {error.args[-1]}; {_others()}") from error
        yield port
    finally:
        os.close(port)


def _why_closed(path: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no port {path}: {_others()}"
    if error.errno == errno.EACCES:
        return f"{path} may not be opened: {_group(path)}"
    return f"{path} cannot be opened: {error.strerror}"


def _group(path: str) -> str:
    """What gives the right to open a port."""
    import grp

    try:
        group = grp.getgrgid(os.stat(path).st_gid).gr_name
    except (OSError, KeyError):
        return "you lack the right to"
    return f"it is for the group {group}; sudo usermod -aG {group} $USER adds you to it, at the next login"


def _others() -> str:
    found = ports()
    return f"expected one of {', '.join(found)}" if found else "no serial port is there; is the board plugged in?"


def ports() -> list[str]:
    """The serial ports that are there."""
    return sorted(each for pattern in PORTS for each in glob.glob(pattern))


# ---- questions -------------------------------------------------------------------------------------------------------


def ask(port: int, talk: Talk, payloads: Sequence[bytes], progress: Callable[[], None] = lambda: None) -> list[bytes]:
    """The answer to each payload, in their order.

    A question without an answer is asked again. OtherCircuitError where the board holds another circuit; JobError where it says
    nothing.
    """
    line, answers = _Line(port), [b""] * len(payloads)
    waiting = deque((row, TRIES) for row in range(len(payloads)))
    under_way: dict[int, tuple[int, int, float]] = {}  # by number: the row, the tries that are left, until when
    behind = bytes([END]) * padding(talk.question_bytes, talk.answer_bytes)
    line.write(bytes([END, END]))
    while waiting or under_way:
        while waiting and len(under_way) < (AT_ONCE if talk.streams else 1):
            row, left = waiting.popleft()
            line.write(question(row % 256, talk.identity, payloads[row]) + behind)
            under_way[row % 256] = row, left - 1, time.monotonic() + WAIT + talk.seconds * (len(under_way) + 1)
        for answer in line.wait():
            known = under_way.pop(answer.number, None)
            if known is not None:  # else a question that was asked again has two answers
                _check(answer, talk)
                answers[known[0]] = answer.payload
                progress()
        now = time.monotonic()
        late = [number for number, (_, _, until) in under_way.items() if now > until]
        again = [under_way.pop(number)[:2] for number in late]
        for row, left in again:
            if not left:
                raise JobError(f"the board did not answer question {row} in {TRIES} tries")
        waiting.extendleft(reversed(again))
    return answers


def who(port: int, seconds: float = WAIT) -> int | None:
    """The identity of what the board holds; None where nobody answers."""
    line = _Line(port)
    for _ in range(TRIES):
        line.write(bytes([END, END]) + question(0, 0, b""))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for answer in line.wait():
                return answer.identity
    return None


def _check(answer: Answer, talk: Talk) -> None:
    if answer.identity != talk.identity:
        raise OtherCircuitError(
            f"the board holds the circuit {answer.identity:#010x}, expected {talk.identity:#010x}", answer.identity
        )
    if answer.status == OTHER or len(answer.payload) != talk.answer_bytes:
        raise JobError(f"the board takes questions of another length: {answer.status}, {len(answer.payload)} bytes in its answer")


class _Line:
    """The bytes that wait to be written, and those that come."""

    def __init__(self, port: int) -> None:
        self.port, self.waiting, self.frames = port, bytearray(), Frames()

    def write(self, content: bytes) -> None:
        self.waiting += content

    def wait(self, seconds: float = 0.02) -> list[Answer]:
        """Write what can be written, and read what is there."""
        try:
            readable, writable, _ = select.select([self.port], [self.port] if self.waiting else [], [], seconds)
            if writable:
                del self.waiting[: os.write(self.port, self.waiting)]
            heard = os.read(self.port, READ) if readable else b""
        except BlockingIOError:
            return []
        except OSError as error:
            raise JobError(f"the port went away: {error.strerror}") from error
        if readable and not heard:
            raise JobError("the port went away: was the board unplugged?")
        return self.frames.take(heard)
