"""Loops compiled with numba: what is kept of them on disk, and how they load numbers. `lutetia._shared.threads` runs them.

numba tracks only the file that a function is in. Here compiled code is stored under a hash of that file, of every file of loops
that it imports, and of what those import: a change in a shared file recompiles its users. Stored files have a checksum and appear
whole: a damaged one, or a folder that cannot be written, costs a recompilation, never an error.
Processes that need the same loop at the same time, as the ranks of a run do, take turns: one compiles it, the others load it.

    jit = compiled.jit(nogil=True)  # as numba.njit(nogil=True, cache=True)
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from lutetia._shared.notices import say_once
from lutetia.errors import require

numba = require("numba", "compiled code on a CPU")
ir = require("llvmlite.ir", "compiled code on a CPU", "numba")
from numba.core.caching import FunctionCache  # noqa: E402  (needs numba)

try:
    import fcntl
except ImportError:  # Windows: there each process compiles for itself
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0  # seconds to wait for a process that compiles the same loop, which takes one to ten
COMPILING = "compiling loops for this processor, once: later runs find them ready"
LOOPS = re.compile(r"\b(numba|llvmlite|@?jit\w*)\b")  # what a file of loops mentions
IMPORT = re.compile(r"^[ \t]*(?:from (lutetia[\w.]*) import (\([^)]*\)|[^\n#]*)|import (lutetia[\w.]*))", re.MULTILINE)


# ---- the cache -------------------------------------------------------------------------------------------------------


def jit(inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options, whose results are kept on disk under a hash of their sources.

    An `inner` function is called by compiled code only. It has no entry point for Python, which would be a quarter of the
    compiled code.
    """
    options |= {"no_cpython_wrapper": inner, "no_cfunc_wrapper": True}
    return lambda function: _keep(numba.njit(**options)(function), function)


def cfunc(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.cfunc`, likewise."""

    def decorate(function: Callable[..., Any]) -> Any:
        library = numba.core.ccallback.CFunc(function, numba.core.sigutils.normalize_signature(signature), {}, options)
        _keep(library, function).compile()
        return library

    return decorate


def _keep(compiles: Any, function: Callable[..., Any]) -> Any:
    """Give a dispatcher its cache, where there is a folder for one."""
    with suppress(RuntimeError):  # no folder that can be written: then it is compiled in every process
        compiles._cache = cache = SourceCache(function)
        compiles.compile = partial(_in_turn, compiles.compile, cache)
    return compiles


def _in_turn(compile: Callable[..., Any], cache: SourceCache, *signature: Any) -> Any:
    """Compile, or load, and end the turns that were taken for it, also where it fails."""
    with numba.core.compiler_lock.global_compiler_lock:  # numba's own; the threads of a process take turns by it
        before = len(cache.turns)
        try:
            return compile(*signature)
        finally:
            for turn in cache.turns[before:]:
                turn.end()
            del cache.turns[before:]


class SourceCache(FunctionCache):
    """numba's cache of one function, in our own files; no problem with them breaks a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        path = function.__code__.co_filename
        self._files = CacheFiles(Path(self.cache_path), self._impl.filename_base, source_hash(path))
        self._cache_file = self._files  # numba's name for it
        self.turns: list[Turn] = []  # those that the compilations under way have taken

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for a signature; None if this process must compile it, and then it has the turn."""
        loaded = self._load(sig, target_context)
        if loaded is None:
            say_once(COMPILING)
        if loaded is not None or fcntl is None:
            return loaded
        turn = Turn(self._files.path(self._index_key(sig, target_context.codegen())))
        turn.take()
        self.turns.append(turn)
        return self._load(sig, target_context)  # another process may have compiled it meanwhile

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever a file of another machine or version makes numba raise
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store compiled code, if the disk allows it."""
        with suppress(OSError, pickle.PicklingError):
            super().save_overload(sig, data)


class Turn:
    """A lock on one file of the cache, which need not exist: a byte of a file for all of them, at a place that its name decides.

    The system takes it back when the process ends. Where files cannot be locked, or nobody ends its turn, everybody compiles.
    """

    def __init__(self, path: Path) -> None:
        self.file = _lock_file(path.parent)
        self.place = int.from_bytes(hashlib.sha256(path.name.encode()).digest()[:7], "little")

    def take(self) -> None:
        """Wait for whoever has it."""
        until = time.monotonic() + PATIENCE
        while self.file is not None and time.monotonic() < until:
            try:
                return fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self.place)
            except (BlockingIOError, PermissionError):  # which of the two, systems decide
                time.sleep(0.02)
            except OSError:
                return None
        return None

    def end(self) -> None:
        """Let the next one have it."""
        if self.file is not None:
            with suppress(OSError):
                fcntl.lockf(self.file, fcntl.LOCK_UN, 1, self.place)


@cache
def _lock_file(folder: Path) -> int | None:
    """A descriptor, which stays open: closing any of a file would end all turns in it. None where there can be no such file."""
    try:
        return os.open(folder / ".compiling", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


class CacheFiles:
    """One file for each signature: its name is a hash of what it depends on, and it begins with the checksum of the rest."""

    def __init__(self, folder: Path, name: str, stamp: str) -> None:
        self.folder, self.name = folder, name
        self.stamp = hashlib.sha256(f"{numba.__version__} {stamp}".encode()).hexdigest()[:16]

    def path(self, key: Any) -> Path:
        """The file of a key."""
        return self.folder / f"{self.name}.{self.stamp}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: Any) -> Any:
        """What was saved for a key; None where there is nothing, or a damaged file."""
        try:
            content = self.path(key).read_bytes()
        except OSError:
            return None
        checksum, data = content[:32], content[32:]
        return pickle.loads(data) if hashlib.sha256(data).digest() == checksum else None

    def save(self, key: Any, data: Any) -> None:
        """Save the code for a key, and remove files of earlier sources."""
        dumped = numba.core.serialize.dumps(data)
        path = self.path(key)
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            part.write_bytes(hashlib.sha256(dumped).digest() + dumped)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        for old in self.folder.glob(f"{self.name}.*.nbc"):
            if f".{self.stamp}." not in old.name:
                old.unlink(missing_ok=True)

    def flush(self) -> None:
        """Forget everything."""
        for path in self.folder.glob(f"{self.name}.*.nbc"):
            path.unlink(missing_ok=True)


@cache
def source_hash(path: str) -> str:
    """A hash of a file of loops and of all the files it depends on."""
    digest = hashlib.sha256()
    for file in sources(Path(path)):
        digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def sources(path: Path) -> list[Path]:
    """A file of loops, the files of loops that it imports, directly or not, and what of Lutetia these import."""
    seen, waiting = {path}, [path]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        if LOOPS.search(text):
            fresh = set(_imports(text)) - seen
            seen |= fresh
            waiting += fresh
    return sorted(seen)


def _imports(text: str) -> Iterator[Path]:
    """The files of Lutetia that a module imports."""
    for package, names, module in IMPORT.findall(text):
        parts = re.findall(r"\w+", re.sub(r"\bas\s+\w+", "", names))
        for name in (module, package, *(f"{package}.{part}" for part in parts)):
            file = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
            if name and file.is_file():
                yield file


# ---- memory ----------------------------------------------------------------------------------------------------------


def read_scope(builder: Any) -> Any:
    """The alias scope of what is only read: loads "alias.scope" of it never meet stores "noalias" to it, as `restrict` in C."""
    domain = builder.module.add_metadata(["lutetia"])
    return builder.module.add_metadata([builder.module.add_metadata(["read", domain])])


def data_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """The pointer to the first element of an array of this numba type.

    numba's `make_array` would put the whole array into memory first, for a compiler to take out again: a sixth of its time.
    """
    return context.data_model_manager[kind].get(builder, array, "data")


def load_number(builder: Any, pointer: Any, stored: Any, lanes: int = 1, scope: Any = None) -> Any:
    """The number at a pointer, or a vector of `lanes` from there on; `scope` is the alias scope of what is read.

    `stored` is the numba type of the memory: uint16 holds the bits of bfloat16, int16 those of float16. These and int8 come as
    float32.
    """
    own = ir.HalfType() if stored == numba.types.int16 else pointer.type.pointee
    value = builder.load(builder.bitcast(pointer, _of(own, lanes).as_pointer()), align=stored.bitwidth // 8)
    if scope is not None:
        value.set_metadata("alias.scope", scope)
    if stored == numba.types.uint16:
        return builder.bitcast(_widened(builder, value, lanes), _of(ir.FloatType(), lanes))
    if stored == numba.types.int8:
        return builder.sitofp(value, _of(ir.FloatType(), lanes))
    return builder.fpext(value, _of(ir.FloatType(), lanes)) if stored == numba.types.int16 else value


def _widened(builder: Any, bits: Any, lanes: int) -> Any:
    """The bits of bfloat16 as those of float32."""
    wide, sixteen = _of(ir.IntType(32), lanes), ir.IntType(32)(16)
    return builder.shl(builder.zext(bits, wide), sixteen if lanes == 1 else wide([sixteen] * lanes))


def _of(kind: Any, lanes: int) -> Any:
    return kind if lanes == 1 else ir.VectorType(kind, lanes)
