"""Does Triton's interpreter work here? Run as a separate program: a small kernel, then `ok` on the standard output.

The kernel does what breaks when Triton and numpy do not fit: a loop bound and an offset that are read from memory.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch
import triton
import triton.language as tl


@triton.jit
def add_rows(x, rows, out, columns: tl.constexpr):  # type: ignore[no-untyped-def]  # triton reads the source
    at = tl.arange(0, columns)
    total = tl.zeros([columns], tl.float32)
    n = tl.load(rows)
    for row in range(n):
        total += tl.load(x + row * columns + at)
    tl.store(out + at, total)
    tl.atomic_add(rows + 1, tl.program_id(0) + n)


def main() -> None:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    rows, out = torch.tensor([3, 0], dtype=torch.int32), torch.zeros(4)
    add_rows[(1,)](x, rows, out, 4)
    assert torch.equal(out, x.sum(0)), out
    assert rows[1] == 3, rows
    print("ok")


if __name__ == "__main__":
    main()
