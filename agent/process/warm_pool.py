"""A warm Python interpreter: it imports what the program imports first, waits, and becomes a worker.

dlaunch runs this text as "python -c ... MODULES COMM FIRST AT ARGV...". ARGV is a worker's command line, whose word AT
is the script, or the module behind -m. COMM, where the program is an executable file that names the interpreter, is the
name of such a process; else "". FIRST is "first" if the workers of the first round wait for this process; else "". FD is
a socket to dlaunch, one packet a message:

    us: "later", if the first workers should not wait; "ready fork" | "ready once" | "useless <why>"
    dlaunch: "fork", one socket for each child     us: "forked <pid> ..." | "stale"
    dlaunch: "work", the worker's standard streams and other descriptors, a file with arguments and environment

A process that can be forked (it has one thread, and what it has imported does not depend on the rank) makes children of
dlaunch that wait for "work" on their own sockets. Another one becomes the worker of its rank itself. What has become
different since the import is found on "work"; then the process executes the command, as a cold start does.
"""
import sys

BASELINE = set(sys.modules)

import _signal  # noqa: E402
import _socket  # noqa: E402
import ctypes  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import os  # noqa: E402
import time  # noqa: E402
from importlib.machinery import PathFinder, SourceFileLoader  # noqa: E402

MODULES, COMM, FIRST, AT, ARGV = sys.argv[1], sys.argv[2], sys.argv[3] == "first", int(sys.argv[4]), sys.argv[5:]
MODULE = ARGV[AT - 1] == "-m"
LIBC = ctypes.CDLL(None)
ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without its module
# What a module imports at its first use: if the program imports the first and its text has the second, the third.
LATER = [("torch", b"DistributedDataParallel", "torch._dynamo"), ("torch", b"optim.", "torch._dynamo")]
# The first workers wait for imports of these: they take long, a fork is as good as another import, and the workers share
# their memory. Others may open a device, start threads or read the rank, for which the wait would be in vain.
AWAITED, KNOWN = "torch", {"torch", "numpy", "dlcoll"}
# Different for each worker of a node.
OF_A_RANK = {b"RANK", b"LOCAL_RANK", b"ROLE_RANK", b"TORCHELASTIC_ERROR_FILE", b"DLAUNCH_LISTEN_FD"}


# ------------------------------------------------------------------------------------- what is imported


class Useless(Exception):
    pass


def library_folders():
    return [os.path.dirname(os.__file__)] + [
        p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]


class Scan:
    """The imports at the beginning of the program and of its own modules, up to the first statement that may change
    what a later import does. Only modules of Python's library folders are listed: others may be the user's own."""

    def __init__(self, folder):
        self.folder, self.found, self.files, self.text, self.installed = folder, [], [], b"", set()
        self.libraries = library_folders()

    def own(self, names, start):
        """The program's own files that `import a.b.c` executes; None: it is not the program's own."""
        files, at = [], start
        for name in names:
            package, module = f"{at}/{name}/__init__.py", f"{at}/{name}.py"
            if os.path.isfile(package):
                files.append(package)
            elif os.path.isfile(module):
                files.append(module)
            elif not os.path.isdir(f"{at}/{name}"):
                return files or None
            at = f"{at}/{name}"
        return files

    def take(self, name, names, start=None):
        own = self.own(name.split(".") if name else [], start or self.folder)
        if own or start:
            below = [self.own((name.split(".") if name else []) + [n], start or self.folder) or [] for n in names]
            return all(self.read(f) for f in own + [f for files in below for f in files])
        top = name.partition(".")[0]
        spec = top not in sys.builtin_module_names and top not in sys.modules and PathFinder.find_spec(top)
        if spec is None or (spec and not any((spec.origin or "").startswith(p + "/") for p in self.libraries)):
            return False
        self.found.append((name, names))
        if spec and any((spec.origin or "").startswith(p + "/") for p in self.libraries[1:]):
            self.installed.add(top)
        return True

    def statement(self, node, path):
        kind = type(node).__name__
        if kind == "Import":
            return all(self.take(alias.name, ()) for alias in node.names)
        if kind == "ImportFrom":
            start = None
            for _ in range(node.level):
                start = os.path.dirname(start or path)
            return self.take(node.module or "", tuple(a.name for a in node.names), start)
        if kind == "Expr":
            return type(node.value).__name__ in ("Constant", "Str")
        if kind == "If":
            return getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING" and not node.orelse
        if kind == "Try":
            return not node.orelse and not node.finalbody and all(self.statement(n, path) for n in node.body)
        if kind in ("Assign", "AnnAssign"):
            targets = node.targets if kind == "Assign" else [node.target]
            return all(type(t).__name__ == "Name" for t in targets) and "Call" not in self.kinds(node.value)
        return kind in ("FunctionDef", "AsyncFunctionDef", "ClassDef", "Pass")

    def kinds(self, node):
        if not hasattr(node, "_fields"):
            return {type(node).__name__}
        below = [getattr(node, f) for f in node._fields if hasattr(node, f)]
        nodes = [n for b in below for n in (b if isinstance(b, list) else [b])]
        return {type(node).__name__}.union(*(self.kinds(n) for n in nodes))

    def read(self, path):
        """Whether the whole file was understood."""
        path = os.path.realpath(path)
        if path in self.files:
            return True
        self.files.append(path)
        try:
            with open(path, "rb") as f:
                text = f.read()
            self.text += text
            body = compile(text, path, "exec", ONLY_AST, dont_inherit=True).body
        except (OSError, SyntaxError, ValueError):
            return False
        return all(self.statement(node, path) for node in body)


class Variables(dict):
    """os.environ's values; which of them were asked for by name."""

    def __init__(self, values):
        super().__init__(values)
        self.first = dict(values)  # before the imports
        self.asked, self.walked, self.walk = set(), None, type(os.environ).__iter__

    def __getitem__(self, name):
        if name != self.walked:
            self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):
        self.asked.add(name)
        return super().__contains__(name)

    def watch(self):
        def walk(environ):
            for name in self.walk(environ):
                self.walked = environ.encodekey(name)
                yield name
            self.walked = None
        os.environ._data = os.environb._data = self
        type(os.environ).__iter__ = walk

    def unwatch(self):
        os.environ._data = os.environb._data = dict(self)
        type(os.environ).__iter__ = self.walk


class Pace:
    """In sys.meta_path: notes which modules are asked for, and leaves the CPUs to the running round, if there is one.
    Idle priority, where it can be given up again; after IDLE_S, a quarter of one CPU."""

    IDLE_S = 10

    def __init__(self, awaited):
        self.asked, self.began, self.policy = set(), time.monotonic(), os.sched_getscheduler(0)
        self.awaited = self.idle = awaited
        if not awaited:
            self.idle = self.policy == os.SCHED_OTHER and self.can_return()
            self.set(os.SCHED_IDLE if self.idle else os.SCHED_BATCH)

    def set(self, policy):
        if self.policy == os.SCHED_OTHER:
            for thread in os.listdir("/proc/self/task"):
                os.sched_setscheduler(int(thread), policy, os.sched_param(0))

    def can_return(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.set(os.SCHED_IDLE)
                self.set(os.SCHED_OTHER)
            except OSError:
                os._exit(1)
            os._exit(0)
        return os.waitpid(pid, 0)[1] == 0

    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
        if self.awaited:
            return None
        passed = time.monotonic() - self.began
        if self.idle and passed > self.IDLE_S:
            self.idle = False
            self.set(os.SCHED_BATCH)
        if not self.idle:
            time.sleep(max(0.0, min(1.0, 4 * time.process_time() - passed)))
        return None

    def find_module(self, name, path=None):  # Python before 3.4 asks for it
        return None


def stamp(path):
    try:
        s = os.stat(path)
        return s.st_dev, s.st_ino, s.st_size if os.path.isfile(path) else 0, s.st_mtime_ns
    except OSError:
        return None


class Program:
    """What the worker runs, and the state of the files that it depends on."""

    def __init__(self):
        self.name = ARGV[AT]
        self.cwd = os.getcwd()
        if MODULE:
            self.folder = self.cwd
            self.file = next((f for f in (f"{self.cwd}/{self.name.replace('.', '/')}{end}"
                                          for end in (".py", "/__main__.py")) if os.path.isfile(f)), None)
        else:
            self.folder = os.path.dirname(os.path.realpath(self.name))
            self.file = self.name if sys.version_info < (3, 9) else os.path.join(self.cwd, self.name)
        self.watched, self.imported = {}, set()

    def watch(self, files):
        files = files + [sys.executable, self.file] + library_folders()
        self.watched = {path: stamp(path) for path in files}

    def changed(self):
        """What has become different since the imports; None: nothing."""
        for path, was in self.watched.items():
            if stamp(path) != was:
                return path
        return self.shadow()

    def shadow(self):
        """A module of the program that has the name of one that was imported."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return self.folder
        for name in names:
            top = name.partition(".")[0]
            if top in self.imported and (name.endswith((".py", ".so", ".pyc")) or
                                         os.path.exists(f"{self.folder}/{name}/__init__.py")):
                return f"{self.folder}/{name}"
        return None


def imports(program):
    """The modules with what is imported from each, the program's files, and which installed packages these are of."""
    if MODULES != "auto":
        names = MODULES.split(",")
        return [(name, ()) for name in names], [], {name.partition(".")[0] for name in names}
    scan = Scan(program.folder)
    packages = scan.own(program.name.split(".")[:-1], program.folder) or [] if MODULE else []
    all(scan.read(file) for file in packages + [program.file])
    names = {name for name, _ in scan.found}
    later = {third for first, word, third in LATER if first in names and word in scan.text}
    return scan.found + [(name, ()) for name in sorted(later)], scan.files, scan.installed


def be_main(program):
    """sys and __main__ as the program sees them, but for sys.path."""
    main = sys.modules["__main__"].__dict__
    main.pop("os", None)  # of -c
    sys.argv[:] = ARGV[AT:]
    if MODULE:
        sys.argv[0] = "-m"
    else:
        main["__file__"] = program.file
        main["__loader__"] = SourceFileLoader("__main__", program.file)
        if sys.version_info < (3, 15):
            main["__cached__"] = None
    program.in_path = sys.path[:1] == [""]  # of -c; not there in safe mode (-P)
    del sys.path[:program.in_path]


def load(program, variables, sock):
    if not program.file:
        raise Useless(f"module {program.name} is not in this folder")
    names, files, packages = imports(program)
    awaited = FIRST and AWAITED in packages and packages <= KNOWN
    if FIRST and not awaited:
        sock.send(b"later")
    pace = Pace(awaited)
    program.watch(files)
    be_main(program)
    sys.meta_path.insert(0, pace)
    variables.watch()
    try:
        for name, members in names:
            try:
                __import__(name, {}, {}, members)
            except ImportError as e:
                if MODULES != "auto":
                    raise Useless(f"import {name}: {e}")
            except Exception as e:
                raise Useless(f"import {name}: {type(e).__name__}: {e}")
    finally:
        variables.unwatch()
        sys.meta_path.remove(pace)
    program.imported = (pace.asked | {n.partition(".")[0] for n in set(sys.modules) - BASELINE})
    sys.stdout.flush()
    sys.stderr.flush()
    LIBC.fflush(None)
    if not awaited:
        pace.set(os.SCHED_OTHER)
    device = devices()
    if device:
        raise Useless(f"an imported module has opened {device}")


def devices():
    """A device that an import has opened: a warm interpreter must not hold it."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if path.startswith("/dev/") and not path.startswith(("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom",
                                                             "/dev/tty", "/dev/pts/", "/dev/shm/")):
            return path
    return None


def threads():
    return len(os.listdir("/proc/self/task"))


# -------------------------------------------------------------------------------------------- messages


def receive(sock):
    """A message's text and descriptors; ends the process when dlaunch has closed the socket."""
    try:
        text, control, _, _ = sock.recvmsg(64, _socket.CMSG_SPACE(256 * 4), _socket.MSG_CMSG_CLOEXEC)
    except OSError:
        text, control = b"", []
    if not text:
        os._exit(0)
    fds = [int.from_bytes(data[i:i + 4], sys.byteorder) for _, kind, data in control if kind == _socket.SCM_RIGHTS
           for i in range(0, len(data), 4)]
    return text, fds


def make_children(sock, fds):
    """Forks one process for each socket. They are dlaunch's children: their parent, a child of this process, ends at
    once, and dlaunch is a subreaper. Returns a child's own socket in a child, else None."""
    ours, theirs = os.pipe()
    middle = os.fork()
    if middle == 0:
        for fd in fds:
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                for other in [ours, theirs, sock.detach()] + [f for f in fds if f != fd]:
                    os.close(other)
                return _socket.socket(fileno=fd)
            os.write(theirs, b" %d" % pid)
        os._exit(0)
    pids = b""
    for fd in [theirs] + fds:
        os.close(fd)
    while True:
        part = os.read(ours, 4096)
        if not part:
            break
        pids += part
    os.close(ours)
    os.waitpid(middle, 0)
    sock.send(b"forked" + pids)
    return None


def stand_by(program, variables):
    """Returns the message "work", and whether this is a fork."""
    sock, forked = _socket.socket(fileno=FD), False
    try:
        load(program, variables, sock)
        if threads() > 1:  # a fork ends the threads of OpenBLAS, which starts them again when it needs them
            pid = os.fork() or os._exit(0)
            os.waitpid(pid, 0)
    except Useless as e:
        sock.send(f"useless {e}".encode()[:400])
        os._exit(0)
    can_fork = threads() == 1 and not variables.asked & OF_A_RANK
    gc.collect()
    if can_fork:
        gc.freeze()
    sock.send(b"ready fork" if can_fork else b"ready once")
    while True:
        text, fds = receive(sock)
        if text != b"fork":
            sock.close()
            return fds, forked
        if program.changed() or threads() > 1:
            sock.send(b"stale")
            os._exit(0)
        child = make_children(sock, fds)
        if child:
            sock, forked = child, True


# --------------------------------------------------------------------------------------- the worker


class Order:
    """What "work" brings."""

    def __init__(self, fds):
        with open(fds[0], "rb") as f:
            parent, keep, cpus, path, n, *words = f.read().split(b"\0")
        self.parent, self.path = int(parent), path
        self.cpus = [int(c) for c in cpus.split()]
        self.argv, self.env = words[:int(n)], words[int(n):-1]
        self.keep, self.fds = [int(k) for k in keep.split()], fds[1:]

    def command_line(self):
        if not COMM:
            return self.argv
        return [os.fsencode(w) for w in ARGV[:AT]] + [self.path] + self.argv[1:]

    def variables(self):
        return dict(v.split(b"=", 1) for v in self.env)


def connect(order):
    """Streams and descriptors get their numbers. False: something imported has opened one of these."""
    above = max(order.keep + [2]) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in order.fds]
    for fd in order.fds:
        os.close(fd)
    free = True
    for number in order.keep:
        try:
            os.fstat(number)
            free = False
        except OSError:
            pass
    for number, fd in zip([0, 1, 2] + order.keep, moved):
        os.dup2(fd, number)
        os.close(fd)
    return free


def execute(order):
    """As a cold start does."""
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) > 2 and int(fd) not in order.keep:
            try:
                os.set_inheritable(int(fd), False)
            except OSError:
                pass  # that of the listing
    for number in range(1, 65):
        if number not in (9, 19, 32, 33):
            ignored = number not in (13, 25) and _signal.getsignal(number) == _signal.SIG_IGN
            _signal.signal(number, _signal.SIG_IGN if ignored else _signal.SIG_DFL)
    try:
        os.execve(order.path, order.argv, order.variables())
    except OSError as e:
        os.write(2, b"dlaunch: exec %s: %s\n" % (order.path, os.strerror(e.errno).encode()))
        os._exit(127 if e.errno == 2 else 126)


class Memory(ctypes.Structure):
    """struct prctl_mm_map"""
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start", "arg_end",
        "env_start", "env_end", "auxv")] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


def show(order):
    """/proc/self/cmdline, environ and comm. One thread: another one may move the end of the heap meanwhile."""
    if COMM:
        LIBC.prctl(15, os.fsencode(COMM)[:15], 0, 0, 0)  # PR_SET_NAME
    if threads() > 1:
        return
    with open("/proc/self/stat", "rb") as f:
        stat = [b""] * 3 + f.read().rpartition(b")")[2].split()
    args = b"".join(w + b"\0" for w in order.command_line())
    show.text = ctypes.create_string_buffer(args + b"".join(v + b"\0" for v in order.env))
    at = ctypes.addressof(show.text)
    LIBC.sbrk.restype = ctypes.c_void_p
    places = dict(start_code=26, end_code=27, start_stack=28, start_data=45, end_data=46, start_brk=47)
    memory = Memory(arg_start=at, arg_end=at + len(args), env_start=at + len(args), env_end=at + len(show.text) - 1,
                    brk=LIBC.sbrk(0), exe_fd=0xffffffff, **{name: int(stat[i]) for name, i in places.items()})
    LIBC.prctl(35, 14, ctypes.byref(memory), ctypes.sizeof(memory), 0)  # PR_SET_MM, PR_SET_MM_MAP


def take_environment(order, variables):
    """The worker's variables, and on top of them what the imports have set or unset."""
    changed = {name: os.environb.get(name) for name in list(os.environb) + list(variables.first)
               if variables.first.get(name) != os.environb.get(name)}
    os.environ.clear()
    for name, value in order.variables().items():
        os.environb[name] = value
    for name, value in changed.items():
        if value is not None:
            os.environb[name] = value
        else:
            os.environb.pop(name, None)


def forget_parent():
    """What forks would have in common, and separate processes have not."""
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if hasattr(modules.get("torch"), "default_generator"):
        modules["torch"].default_generator.seed()
    if hasattr(modules.get("logging"), "_startTime"):
        modules["logging"]._startTime = time.time() if sys.version_info < (3, 13) else time.time_ns()


def become(program, variables, fds, forked):
    order = Order(fds)
    printed = [os.pread(fd, 1 << 24, 0) for fd in (1, 2)]
    free = connect(order)
    LIBC.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    LIBC.prctl(0x59616D61, order.parent, 0, 0, 0)  # PR_SET_PTRACER
    if os.getppid() != order.parent:
        os._exit(125)
    if order.cpus:
        os.sched_setaffinity(0, order.cpus)
    new = order.variables()
    if not free or program.changed() or any(variables.first.get(n) != new.get(n) for n in variables.asked):
        execute(order)
    for fd, text in zip((1, 2), printed):  # what the imports have printed
        while text:
            text = text[os.write(fd, text):]
    show(order)
    take_environment(order, variables)
    words = [os.fsdecode(w) for w in order.command_line()]
    sys.argv[:] = words[AT:]
    if MODULE:
        sys.argv[0] = "-m"
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words
    if program.in_path:
        sys.path.insert(0, program.folder)
    if forked:
        gc.unfreeze()
        forget_parent()
    if COMM:  # without -u
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
        sys.stdin.reconfigure(line_buffering=os.isatty(0))


def run(program):
    """The program, as `python SCRIPT` or `python -m MODULE` runs it."""
    try:
        if MODULE:
            import runpy
            runpy._run_module_as_main(program.name)
        else:
            with open(program.file, "rb") as f:
                code = compile(f.read(), program.file, "exec", dont_inherit=True)
            exec(code, sys.modules["__main__"].__dict__)
    except SystemExit:
        raise
    except BaseException:
        hook = sys.excepthook

        def without_our_frames(kind, error, trace):
            sys.excepthook = hook
            while trace and trace.tb_frame.f_code.co_filename in ("<dlaunch>", "<string>"):
                trace = trace.tb_next
            error.__traceback__ = trace
            hook(kind, error, trace)

        sys.excepthook = without_our_frames
        raise


def main():
    try:
        variables = Variables(os.environ._data)
        program = Program()
        become(program, variables, *stand_by(program, variables))
    except BaseException as e:
        os.write(2, f"dlaunch: warm start: {type(e).__name__}: {e}\n".encode(errors="replace"))
        os._exit(125)
    run(program)


main()
