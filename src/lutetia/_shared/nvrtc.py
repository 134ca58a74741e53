"""CUDA C++ files, compiled by NVRTC at first use and launched through the CUDA driver.

NVRTC and the driver are plain C interfaces that are stable between versions. Nothing is compiled at installation. A file is
compiled once for each set of constants and each compute capability, and kept on disk (LUTETIA_CACHE, or ~/.cache/lutetia).
A file may include the headers (*.cuh) beside it.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import importlib.util
import os
import struct
import threading
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lutetia._shared import driver
from lutetia._shared.replay import current
from lutetia._shared.steps import Shot
from lutetia.errors import LutetiaError

MAX_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FLOAT = struct.Struct("<f")
MOST_ARGUMENTS = 64  # of a kernel
EIGHT_BYTES = [struct.Struct(f"<{n}Q") for n in range(MOST_ARGUMENTS + 1)]  # by number
OPTIONS = ("--std=c++17", "--fmad=true", "-default-device")


@cache
def compiler() -> ctypes.CDLL | None:
    """The NVRTC library: of an `nvidia` package, or of the system; None where there is none."""
    major = (torch.version.cuda or "13").split(".")[0]
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    inside = [path for folder in folders for path in sorted(glob.glob(f"{folder}/*/lib/libnvrtc.so.{major}"))]
    for name in (*inside, f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def version() -> str:
    """The version of NVRTC, such as "13.0"."""
    library, numbers = compiler(), (ctypes.c_int(), ctypes.c_int())
    assert library is not None
    library.nvrtcVersion(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)


@cache
def compiled(source: Path, constants: tuple[tuple[str, int], ...], arch: str) -> bytes:
    """The machine code of one file with these constants defined, for an architecture such as "sm_90"."""
    library = compiler()
    if library is None:
        raise LutetiaError("NVRTC is not installed, expected libnvrtc: pip install nvidia-cuda-nvrtc")
    texts = {path.name.encode(): path.read_bytes() for path in (source, *sorted(source.parent.glob("*.cuh")))}
    options = [*OPTIONS, f"--gpu-architecture={arch}", *(f"-D{key}={value}" for key, value in constants)]
    stamp = b"\0".join([*texts.values(), version().encode(), *(option.encode() for option in options)])
    kept = cache_folder() / f"{source.stem}-{arch}-{hashlib.sha256(stamp).hexdigest()[:24]}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        code = _compile(library, texts, options)
    _keep(kept, code)
    return code


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    return Path(os.environ.get("LUTETIA_CACHE") or Path.home() / ".cache" / "lutetia") / "cuda"


def _keep(path: Path, code: bytes) -> None:
    """Write a file whole, or not at all; where nothing can be written the next process compiles again."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(code)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)


def _compile(library: ctypes.CDLL, texts: dict[bytes, bytes], options: list[str]) -> bytes:
    """The machine code of the first of these files, which may include the others; by name."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    (name, text), *headers = texts.items()
    names, contents = ((ctypes.c_char_p * len(headers))(*part) for part in (zip(*headers, strict=True) if headers else ((), ())))
    library.nvrtcCreateProgram(ctypes.byref(program), text, name, len(headers), contents, names)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        failed = library.nvrtcCompileProgram(program, len(options), given)
        if failed:
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise LutetiaError(f"NVRTC could not compile {name.decode()} with {' '.join(options)}:\n{log.value.decode()}")
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


class Kernel:
    """One function of a compiled source on one device."""

    __slots__ = ("function", "shared", "threads", "what")

    def __init__(self, module: ctypes.c_void_p, name: str, threads: int, shared: int) -> None:
        self.function, self.what, self.threads, self.shared = ctypes.c_void_p(), f"launching {name}", threads, shared
        driver.call("cuModuleGetFunction", f"finding the kernel {name}", ctypes.byref(self.function), module, name.encode())
        if shared > 48 * 1024:
            driver.call("cuFuncSetAttribute", f"giving {name} {shared} bytes of shared memory", self.function, MAX_SHARED, shared)

    def __call__(self, grid: tuple[int, int, int], *given: Any) -> None:
        """Launch on the current stream: tensors (None is a null pointer), 32-bit integers and 32-bit floats."""
        bits = [bits_of(each) for each in given]
        self.launch(grid, bits)
        if current.recorder is not None:
            current.recorder.add_kernel(self, grid, given, bits)

    def shot(self, grid: tuple[int, int, int], given: tuple[Any, ...]) -> Shot:
        """The launch, to be made among others."""
        return Shot(self.function.value or 0, grid, self.threads, self.shared, given)

    def launch(self, grid: tuple[int, int, int], bits: list[int]) -> None:
        """The same for arguments as `bits_of` gives them."""
        pointers = arguments.of(bits)
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))
        sizes = (*grid, self.threads, 1, 1, self.shared)
        driver.call("cuLaunchKernel", self.what, self.function, *sizes, stream, pointers, None)


class Arguments(threading.local):
    """Room for the arguments of a launch, one for each thread: the driver has read them when it returns."""

    def __init__(self) -> None:
        self.values = (ctypes.c_uint64 * MOST_ARGUMENTS)()
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * MOST_ARGUMENTS)(*range(first, first + 8 * MOST_ARGUMENTS, 8))

    def of(self, bits: list[int]) -> Any:
        """The addresses of these arguments, eight bytes each, as the driver takes them; until the next call."""
        EIGHT_BYTES[len(bits)].pack_into(self.values, 0, *bits)
        return self.pointers


arguments = Arguments()


def bits_of(value: Any) -> int:
    """A tensor as its address, a number of 32 bits as it lies in memory."""
    if type(value) is int:
        return value & 0xFFFFFFFF
    if type(value) is float:
        return int.from_bytes(FLOAT.pack(value), "little")
    return 0 if value is None else int(value.data_ptr())


@cache
def _module(source: Path, constants: tuple[tuple[str, int], ...], device: int, features: str = "") -> ctypes.c_void_p:
    major, minor = torch.cuda.get_device_capability(device)
    code, module = compiled(source, constants, f"sm_{major}{minor}{features}"), ctypes.c_void_p()
    driver.call("cuModuleLoadData", f"loading {source.name}", ctypes.byref(module), code)
    return module


@cache
def kernel(
    source: Path, name: str, constants: tuple[tuple[str, int], ...], launch: tuple[int, int], device: int, features: str = ""
) -> Kernel:
    """A kernel of a file, compiled with these constants; `launch` is threads of a block and bytes that they share. `features`
    "a" allows instructions that only GPUs of exactly this compute capability have."""
    return Kernel(_module(source, constants, device, features), name, *launch)


class Limits(NamedTuple):
    """The limits that all GPUs of this machine meet: shared bytes per block, multiprocessors, compute capability."""

    shared: int = 227 * 1024
    multiprocessors: int = 132
    capability: tuple[int, int] = (9, 0)


@cache
def limits() -> Limits:
    """The limits of all GPUs together; those of an H200 if there is none."""
    if not torch.cuda.is_available():
        return Limits()
    found = [torch.cuda.get_device_properties(device) for device in range(torch.cuda.device_count())]
    shared = min(getattr(each, "shared_memory_per_block_optin", 48 * 1024) for each in found)
    return Limits(shared, min(each.multi_processor_count for each in found), min((each.major, each.minor) for each in found))


def available(trial: Path, least: tuple[int, int], otherwise: str) -> bool:
    """Whether a source like this one can be compiled and launched here, on GPUs of this compute capability at least.

    Where only the compiler is missing, or fails, a warning says what happens otherwise. LUTETIA_NVRTC=0 turns all of it off.
    """
    if os.environ.get("LUTETIA_NVRTC") == "0" or not torch.cuda.is_available() or torch.version.cuda is None:
        return False
    if limits().capability < least:
        return False
    try:
        compiled(trial, (), "sm_{}{}".format(*limits().capability))
    except LutetiaError as error:
        warnings.warn(f"{otherwise}: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True
