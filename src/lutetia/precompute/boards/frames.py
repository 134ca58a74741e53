"""What goes over the serial line: frames of bytes, as board.v sends and takes them.

    question   number, identity in 4 bytes, the payload, a checksum in 2 bytes; then END
    answer     number, status, identity in 4 bytes, the payload, a checksum in 2 bytes; then END

Whole numbers of several bytes have the highest first. Within a frame END and ESC are two bytes each, as in SLIP (RFC 1055), so
that an END always ends a frame, and what was lost before it matters no more. The checksum is CRC-16 with the polynomial 0x1021,
which begins at 0xFFFF and is sent inverted: else a 0 behind a frame would not be noticed.
"""

from __future__ import annotations

import binascii
from typing import NamedTuple

END, ESC, ESC_END, ESC_ESC = 0xC0, 0xDB, 0xDC, 0xDD
HEAD, CHECK = 6, 2  # bytes of an answer before and behind its payload
FINE, OTHER = 0, 1  # status: answered; the board holds another circuit, or takes questions of another length
LONGEST = 1 << 16  # bytes of an answer: what is longer is noise


class Answer(NamedTuple):
    """A frame that a board sent."""

    number: int
    status: int
    identity: int
    payload: bytes


def question(number: int, identity: int, payload: bytes) -> bytes:
    """The bytes of a question."""
    return framed(bytes([number]) + identity.to_bytes(4, "big") + payload)


def framed(content: bytes) -> bytes:
    """A frame: its checksum, its escapes and its end."""
    whole = content + checksum(content).to_bytes(CHECK, "big")
    whole = whole.replace(bytes([ESC]), bytes([ESC, ESC_ESC])).replace(bytes([END]), bytes([ESC, ESC_END]))
    return whole + bytes([END])


def checksum(content: bytes) -> int:
    return binascii.crc_hqx(content, 0xFFFF) ^ 0xFFFF


def padding(question_bytes: int, answer_bytes: int) -> int:
    """ENDs behind a question so that the next one never comes before its answer is sent, however many follow each other.

    Both have a number, an identity and a checksum. An answer has a status more, and may need two bytes for each of its payload
    and its checksum; one byte is to spare, as the clocks of two sides differ."""
    return max(0, 2 * answer_bytes + 4 - question_bytes)


class Frames:
    """Whole frames from bytes as they come."""

    def __init__(self) -> None:
        self.held = bytearray()

    def take(self, heard: bytes) -> list[Answer]:
        """The answers that are complete; what is damaged is left out."""
        *whole, rest = bytes(self.held + heard).split(bytes([END]))
        self.held = bytearray(rest[-LONGEST:])
        return [answer for each in whole if (answer := read_answer(each)) is not None]


def read_answer(frame: bytes) -> Answer | None:
    """The answer in a frame, without its END; None where it is damaged."""
    plain = bytearray()
    escaped = False
    for byte in frame:
        if escaped and byte not in (ESC_END, ESC_ESC):
            return None
        if escaped:
            plain.append(END if byte == ESC_END else ESC)
        elif byte != ESC:
            plain.append(byte)
        escaped = byte == ESC and not escaped
    if escaped or len(plain) < HEAD + CHECK or checksum(bytes(plain[:-CHECK])) != int.from_bytes(plain[-CHECK:], "big"):
        return None
    return Answer(plain[0], plain[1], int.from_bytes(plain[2:HEAD], "big"), bytes(plain[HEAD:-CHECK]))
