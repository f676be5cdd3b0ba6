"""Jobs that a program starts, watches and stops: dlaunch.h through ctypes."""
import codecs
import ctypes
import json
import os
import select
import signal as signals
import sys
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Union

from . import _find

OUT, ERR, LOG, EVENT, END = "out", "err", "log", "event", "end"
TYPES = {1: OUT, 2: ERR, 3: LOG, 4: EVENT, 5: END}
LEVELS = ("error", "warning", "notice", "verbose")


class _Options(ctypes.Structure):
    """struct dlaunch_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("argv", ctypes.POINTER(ctypes.c_char_p)),
                ("env", ctypes.POINTER(ctypes.c_char_p)), ("cwd", ctypes.c_char_p), ("hosts", ctypes.c_char_p),
                ("nnodes", ctypes.c_char_p), ("nproc_per_node", ctypes.c_int), ("max_restarts", ctypes.c_int),
                ("options", ctypes.POINTER(ctypes.c_char_p)), ("dlaunch", ctypes.c_char_p),
                ("version", ctypes.c_uint)]


_OPTIONS_VERSION = 2


class _Event(ctypes.Structure):
    """struct dlaunch_event."""

    _fields_ = [("type", ctypes.c_int), ("data", ctypes.POINTER(ctypes.c_char)), ("len", ctypes.c_size_t),
                ("name", ctypes.c_char_p), ("level", ctypes.c_int), ("exit_status", ctypes.c_int),
                ("report", ctypes.c_char_p), ("report_json", ctypes.c_char_p)]


def _load() -> ctypes.CDLL:
    lib = ctypes.CDLL(_find.library())
    lib.dlaunch_job_start.argtypes = [ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p,
                                      ctypes.c_size_t]
    lib.dlaunch_job_fd.argtypes = [ctypes.c_void_p]
    lib.dlaunch_job_next.argtypes = [ctypes.c_void_p]
    lib.dlaunch_job_next.restype = ctypes.POINTER(_Event)
    lib.dlaunch_job_signal.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.dlaunch_job_free.argtypes = [ctypes.c_void_p]
    lib.dlaunch_job_free.restype = None
    return lib


_lib: Optional[ctypes.CDLL] = None


@dataclass(frozen=True)
class Event:
    """What a job has said. type: "out", "err" (data: the bytes that workers have printed), "log" (data: a line of
    dlaunch, level: "error", "warning", "notice" or "verbose"), "event" (data: the event as a dict, see EVENTS in
    dlaunch(1), name: its name), or "end" (data: the Result), the last one."""

    type: str
    data: Any
    name: str = ""
    level: str = ""


@dataclass(frozen=True)
class Result:
    """How a job ended: exit_status as that of the command dlaunch, why it failed in one line (""), what dlaunch prints
    of a failure (""), the report as --report writes it (a dict; None: the options were refused), and, of
    run(capture_output=True), what the workers have printed."""

    exit_status: int
    why: str
    text: str
    report: Optional[Dict[str, Any]]
    stdout: Optional[bytes] = None
    stderr: Optional[bytes] = None


class JobError(RuntimeError):
    """The job failed; result tells how."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"{result.why} (exit status {result.exit_status})")
        self.result = result


def _words(list_: Sequence[str]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(list_) + 1))(*[os.fsencode(w) for w in list_], None)


def _text(value: Union[str, int, None]) -> Optional[bytes]:
    return None if value is None else os.fsencode(str(value))


class Job:
    """A job, which ends at the end of the `with` block at the latest, and with this process.

    argv is the program and its arguments; hosts, nnodes, nproc_per_node and max_restarts are dlaunch's options of
    these names, options further ones ("--log_dir=logs"), env is set in addition to this process's environment.
    OSError: dlaunch cannot be run; ValueError: no job can have such arguments. Options that dlaunch refuses end the job
    with exit status 2. One thread at a time may use a job."""

    def __init__(self, argv: Sequence[Union[str, "os.PathLike[str]"]], *, nproc_per_node: Optional[int] = None,
                 nnodes: Union[str, int, None] = None, hosts: Optional[str] = None,
                 max_restarts: Optional[int] = None, env: Optional[Mapping[str, str]] = None,
                 cwd: Union[str, "os.PathLike[str]", None] = None, options: Sequence[str] = ()) -> None:
        global _lib
        _lib = _lib or _load()
        self._job = ctypes.c_void_p()
        self.result: Optional[Result] = None
        why = ctypes.create_string_buffer(512)
        opts = _Options(size=ctypes.sizeof(_Options), argv=_words([os.fspath(a) for a in argv]),
                        env=_words([f"{k}={v}" for k, v in (env or {}).items()]),
                        cwd=_text(None if cwd is None else os.fspath(cwd)), hosts=_text(hosts), nnodes=_text(nnodes),
                        nproc_per_node=nproc_per_node or 0, max_restarts=-1 if max_restarts is None else max_restarts,
                        options=_words(list(options)), dlaunch=_text(os.environ.get("DLAUNCH") or _find.program()),
                        version=_OPTIONS_VERSION)
        self._owner = os.getpid()
        code = _lib.dlaunch_job_start(ctypes.byref(opts), ctypes.byref(self._job), why, len(why))
        if code < 0:
            text = os.fsdecode(why.value)
            raise ValueError(text) if -code == 22 else OSError(-code, text)

    def fileno(self) -> int:
        """Readable, for select and asyncio, when next() may have an event."""
        return _lib.dlaunch_job_fd(self._handle())

    def next(self) -> Optional[Event]:
        """The next event; None: none has come, or the end was the last."""
        found = _lib.dlaunch_job_next(self._handle())
        if not found:
            return None
        e = found.contents
        data = ctypes.string_at(e.data, e.len)
        kind = TYPES[e.type]
        if kind == LOG:
            return Event(kind, data.decode(errors="replace"), level=LEVELS[e.level])
        if kind == EVENT:
            return Event(kind, json.loads(data), name=e.name.decode())
        if kind == END:
            report = json.loads(e.report_json) if e.report_json else None
            self.result = Result(e.exit_status, data.decode(errors="replace"), e.report.decode(errors="replace"), report)
            return Event(kind, self.result)
        return Event(kind, data)

    def wait(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, waited for; None: none has come within `timeout` seconds, or the end was the last."""
        until = None if timeout is None else time.monotonic() + timeout
        poll = select.poll()  # not in the library, so that a signal's handler runs meanwhile
        poll.register(self.fileno(), select.POLLIN)
        while True:
            event = self.next()
            left = None if until is None else until - time.monotonic()
            if event is not None or self.result is not None or (left is not None and left <= 0):
                return event
            poll.poll(None if left is None else 1000 * min(left, 3600))  # which an int has room for

    def __iter__(self) -> Iterator[Event]:
        """All events to the end."""
        while self.result is None:
            event = self.wait()
            if event is not None:
                yield event

    def signal(self, signo: int) -> None:
        """As kill(1) to dlaunch, which passes the signal on. ProcessLookupError: the job has ended."""
        code = _lib.dlaunch_job_signal(self._handle(), signo)
        if code < 0:
            raise OSError(-code, os.strerror(-code))

    def stop(self) -> None:
        """Asks the job to end, as SIGTERM does; its events go on until the end."""
        if self.result is None:
            self.signal(signals.SIGTERM)

    def close(self) -> None:
        """Ends the job if it has not ended, and waits until its processes are gone. In a forked child of the process
        that has started the job: frees the copy."""
        job, self._job = self._job, ctypes.c_void_p()
        if job:
            _lib.dlaunch_job_free(job)

    def _handle(self) -> ctypes.c_void_p:
        if not self._job:
            raise ValueError("the job is closed")
        if self._owner != os.getpid():
            raise ValueError("the job is that of the process that has started it, not of its forked children")
        return self._job

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_job", None):
            self.close()


def _printer(stream: Any) -> Callable[[bytes], None]:
    """Writes bytes as they are; to a stream of text only (a notebook's), decoded across pieces, with escapes for what
    its encoding lacks."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    binary = getattr(stream, "buffer", None)

    def put(data: bytes) -> None:
        stream.flush()
        if binary is not None:
            binary.write(data)
        else:
            encoding = getattr(stream, "encoding", None) or "utf-8"
            stream.write(decoder.decode(data).encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    return put


def run(argv: Sequence[Union[str, "os.PathLike[str]"]], *, check: bool = True, capture_output: bool = False,
        on_event: Optional[Callable[[Event], Any]] = None, **job: Any) -> Result:
    """Runs a job to its end; the arguments in `job` are those of Job.

    What workers and dlaunch print goes to this program's standard output and error, or, with capture_output, what the
    workers print into the result. on_event is called for each event. check: a job that fails raises JobError."""
    kept: Dict[str, list] = {OUT: [], ERR: []}
    put = {OUT: _printer(sys.stdout), ERR: _printer(sys.stderr)}
    with Job(argv, **job) as j:
        for event in j:
            if on_event:
                on_event(event)
            if event.type in kept and capture_output:
                kept[event.type].append(event.data)
            elif event.type in kept:
                put[event.type](event.data)
            elif event.type == LOG and not capture_output:
                put[ERR](f"dlaunch: {event.data}\n".encode())
        result = j.result
    assert result is not None
    if capture_output:
        result = Result(result.exit_status, result.why, result.text, result.report, b"".join(kept[OUT]),
                        b"".join(kept[ERR]))
    if check and result.exit_status != 0:
        raise JobError(result)
    return result
