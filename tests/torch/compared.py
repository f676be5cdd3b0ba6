"""Runs one case by torchrun and by dlaunch, and makes the results comparable.

A case is a list of launchers' command lines with their environments. Its facts are the exit status of
each launcher and, of every start of every worker, the command it was run by and each environment variable
that the launcher added, changed or took away. What differs from run to run (free ports, random names,
folders) is replaced by a word in <>.
"""
import atexit
import glob
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

from jobs import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 240
PYTHON_NAMES = re.compile(r"^(.*/)?(python[0-9.]*|interpreter)$")
UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")


class Case:
    """`lines` are command lines, one per launcher, split as a shell would, without expansions; in them and
    in env {dir} is the case's folder, {port} a free port."""

    def __init__(self, name, *lines, env=None, envs=None, program="torchrun", argv_only=False, live_only=False):
        self.name, self.lines, self.program = name, list(lines), program
        self.envs = [{**(env or {}), **(envs[i] if envs else {})} for i in range(len(lines))]
        self.argv_only = argv_only  # compare the arguments that the script sees, not the command of the process
        self.live_only = live_only  # the right result depends on the machine

    def may_restart(self):
        return any(re.search("max.restarts", " ".join([line, *env]), re.IGNORECASE)
                   for line, env in zip(self.lines, self.envs))


def lay_out(folder, imports):
    """Makes the files that the command lines of the cases run."""
    with open(os.path.join(HERE, "capture.py")) as f:
        text = f.read().replace("import json\n", "import json\n" + imports)
    os.mkdir(f"{folder}/package")
    for name, mode in (("script.py", 0o644), ("script_0.py", 0o644), ("script_1.py", 0o644), ("mod.py", 0o644),
                       ("tool", 0o755), ("-dash.py", 0o644), ("package/__main__.py", 0o644)):
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
        os.chmod(f"{folder}/{name}", mode)
    os.symlink(sys.executable, f"{folder}/interpreter")
    os.mkdir(f"{folder}/capture")
    os.mkdir(f"{folder}/tmp")


# ------------------------------------------------------------------------------------- launchers


class Dlaunch:
    """dlaunch under the name that the case asks for; `warm`: its workers begin in warm interpreters, as they do in the
    first round if they may be restarted and import torch, which is an empty module here."""

    def __init__(self, build, warm=False):
        self.program = os.path.abspath(f"{build}/dlaunch")
        self.label, self.warm = "dlaunch", warm

    def environment(self, case, folder):
        """The variables that are added to the environment of the launchers."""
        if not self.warm:
            return {}
        os.makedirs(f"{folder}/lib/site-packages/torch")
        open(f"{folder}/lib/site-packages/torch/__init__.py", "w").close()
        restarts = {} if case.may_restart() else {"DLAUNCH_MAX_RESTARTS": "1"}
        return {"DLAUNCH_WARM": "auto", "DLAUNCH_VERBOSE": "1", "PYTHONPATH": f"{folder}/lib/site-packages", **restarts}

    def run(self, case, argv, env):
        link = f"./{case.program}"
        try:
            os.symlink(self.program, link)
        except FileExistsError:
            pass  # another launcher of the same case has made it
        os.execve(link, [link, *argv], env)


class Torchrun:
    """main() of this interpreter's torchrun, in a fork of a process that has imported PyTorch."""

    def __init__(self):
        import torch
        if torch.__version__.startswith("1."):
            import torchrun_debian  # noqa: F401  (repairs Debian's)
        import torch.distributed.launch
        import torch.distributed.run
        self.main = {"torchrun": torch.distributed.run.main, "torch.distributed.launch": torch.distributed.launch.main}
        self.version = torch.__version__.split("+")[0]
        self.label = "torchrun " + self.version

    def environment(self, case, folder):
        return {}

    def run(self, case, argv, env):
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
        sys.argv = [case.program, *argv]
        self.main[case.program]()


def start_one(launcher, case, argv, env, folder, out):
    """Starts one launcher in a session of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        os.chdir(folder)
        launcher.run(case, argv, env)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


# ----------------------------------------------------------------------------------------- running


def wait_for(pids, folder, limit):
    """Exit statuses as in a shell; None for a launcher that did not end."""
    statuses, deadline = {}, time.monotonic() + limit
    while len(statuses) < len(pids) and time.monotonic() < deadline:
        for pid in pids:
            if pid not in statuses:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    code = os.waitstatus_to_exitcode(status)
                    statuses[pid] = code if code >= 0 else 128 - code
        time.sleep(0.005)
    for pid in pids:
        if pid not in statuses:
            os.killpg(pid, signal.SIGTERM)
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(pid, 0)
    return [statuses.get(pid) for pid in pids]


def normal(text, names):
    for value, word in names:
        text = text.replace(value, word)
    return text


def error_file(value, run_id, names):
    """<base>/<run id>_<random>/attempt_<n>/<local rank>/error.json, or, without log files,
    <base>/attempt_<n>.<local rank>.error.json"""
    flat = re.match(r"^(.*)/(attempt_\d+\.\d+\.error\.json)$", value)
    if flat and re.match(r"^<dir>/tmp/torchelastic_[a-z0-9_]+$", normal(flat.group(1), names)):
        return "<new folder in TMPDIR>/" + flat.group(2)
    parts = value.rsplit("/", 4)
    if len(parts) == 5:
        base, job, *rest = parts
        if run_id and job.startswith(run_id + "_"):
            job = "<run id>_<random>"
        base = normal(base, names)
        if re.match(r"^<dir>/tmp/[a-z]+_[A-Za-z0-9_]+$", base):
            base = "<new folder in TMPDIR>"
        return "/".join([base, job, *rest])
    return normal(value, names)


def facts_of(case, launcher):
    """(facts, what the launchers printed)"""
    folder = os.path.realpath(tempfile.mkdtemp(prefix="dlaunch-torch-"))
    port = str(free_port())
    try:
        pids, inherited = [], []
        fill = lambda s: s.replace("{dir}", folder).replace("{port}", port)
        more = launcher.environment(case, folder)
        lay_out(folder, "import torch\n" if more else "")
        with open(f"{folder}/output", "w+") as out:
            for node, line in enumerate(case.lines):
                env = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "HOME": folder,
                       "TMPDIR": f"{folder}/tmp", "PYTHONDONTWRITEBYTECODE": "1", "PET_MONITOR_INTERVAL": "0.1",
                       "CAPTURE": f"{folder}/capture", "CAPTURE_NODE": str(node), **more}
                for name, value in case.envs[node].items():
                    env[name] = fill(value)
                inherited.append(env)
                pids.append(start_one(launcher, case, [fill(w) for w in shlex.split(line)], env, folder, out))
            statuses = wait_for(pids, folder, LIMIT_S)
            out.seek(0)
            output = out.read()
        names = [(folder, "<dir>"), (port, "<port>")]
        workers, seen = {}, {}
        found = [json.load(open(p)) for p in glob.glob(f"{folder}/capture/*.*.*") if not p.endswith("~")]
        for w in sorted(found, key=lambda w: (w["rank"], w["when"])):
            # Either of two equal launchers may become group 0.
            start = seen[w["rank"]] = seen.get(w["rank"], -1) + 1
            key = f"rank {w['rank']}" + (f", start {start}" if start else "")
            workers[key] = {"command": command_of(case, w, names), "env": changes(w["env"], inherited[w["node"]], names)}
        return {"exit": statuses, "workers": workers}, output
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def command_of(case, worker, names):
    words = worker["argv"] if case.argv_only else worker["command"]
    words = [normal(w, names) for w in words]
    if PYTHON_NAMES.match(words[0]):
        words[0] = "<dir>/interpreter" if words[0].endswith("/interpreter") else "<python>"
    return words


def changes(env, inherited, names):
    """The differences between the environment of the launcher and that of a worker."""
    run_id, out = env.get("TORCHELASTIC_RUN_ID", ""), {}
    for name in sorted(set(env) | set(inherited)):
        value = env.get(name)
        if name in ("LC_CTYPE", "_", "PWD", "SHLVL", "OLDPWD"):  # set by Python or a shell
            continue
        if value == inherited.get(name):
            continue
        if value is None:
            out[name] = None
        elif name == "TORCHELASTIC_ERROR_FILE":
            out[name] = error_file(value, run_id, names)
        elif name == "TORCHELASTIC_RUN_ID" and UUID.match(value):
            out[name] = "<uuid>"
        elif name == "TORCHELASTIC_RUN_ID" and re.match(r"^[0-9]{30,40}$", value):
            out[name] = "<random number>"
        elif name == "MASTER_PORT" and normal(value, names) == value and value not in ("29400", "29500"):
            out[name] = "<free port>"
        elif name == "MASTER_ADDR" and value in (socket.getfqdn(), socket.gethostname()):
            out[name] = "<host name>"
        elif name == "TORCHELASTIC_TIMER_FILE":
            out[name] = re.sub(r"^<dir>/tmp/watchdog_timer_[A-Za-z0-9_-]+$", "<new FIFO in TMPDIR>", normal(value, names))
        elif name.startswith("DLAUNCH_") and name.endswith("_FD"):
            out[name] = "<fd>"
        else:
            out[name] = normal(value, names)
    return out


def compare(theirs, ours):
    """[(what, worker, theirs, ours)] for each difference; what: "exit", "workers", "command", or a variable."""
    out = [] if theirs["exit"] == ours["exit"] else [("exit", "", theirs["exit"], ours["exit"])]
    for key in sorted(set(theirs["workers"]) | set(ours["workers"])):
        a, b = theirs["workers"].get(key), ours["workers"].get(key)
        if a is None or b is None:
            out.append(("workers", key, a and "started", b and "started"))
            continue
        if a["command"] != b["command"]:
            out.append(("command", key, a["command"], b["command"]))
        for name in sorted(set(a["env"]) | set(b["env"])):
            x, y = a["env"].get(name, "(inherited)"), b["env"].get(name, "(inherited)")
            if x != y:
                out.append((name, key, x, y))
    return out
