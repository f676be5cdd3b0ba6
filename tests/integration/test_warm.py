#!/usr/bin/python3
"""Warm starts: a worker that began as a warm interpreter must not differ from one that was started cold, in anything that
it can see; whatever is different from the round before must lead to a cold start; nothing may be left.

    test_warm.py [CASE...]    BUILD says where dlaunch is; RESTARTS=20 how often the last case restarts
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from facts import sanitizer, wait_for  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "../../build")))
DLAUNCH = BUILD + "/dlaunch"
RESTARTS = int(os.environ.get("RESTARTS", "20"))
LIMIT_S = 120

# The program of most cases: writes what it sees to a file named by rank and round; waits for its end in the rounds before
# the last one.
PROGRAM = r'''
import decimal
import inspect
import json
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
LAST = int(os.environ["TORCHELASTIC_MAX_RESTARTS"])
ROUND = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def status(*names):
    with open("/proc/self/status") as f:
        return [line.split(":", 1)[1].strip() for line in f if line.split(":")[0] in names]


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def facts():
    import ctypes
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
    main = sys.modules["__main__"].__dict__
    keep = [int(os.environ[n]) for n in ("DLAUNCH_SEGMENT_FD", "DLAUNCH_LISTEN_FD")]
    return {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": str(sys.flags),
        "executable": sys.executable, "warnings": sys.warnoptions, "main": sorted(main),
        "file": main.get("__file__"), "spec": str(main.get("__spec__")), "loader": type(main.get("__loader__")).__name__,
        "cached": str(main.get("__cached__")), "package": main.get("__package__"), "name": __name__,
        "environ": dict(os.environ), "environb": len(os.environb) == len(os.environ), "order": list(os.environ),
        "proc environ": read("/proc/self/environ"), "cmdline": read("/proc/self/cmdline"), "comm": read("/proc/self/comm"),
        "signals": status("SigBlk", "SigIgn", "SigCgt"), "handlers": [str(signal.getsignal(n)) for n in (2, 13, 15, 25)],
        "group": os.getpgid(0) == os.getpid(), "parent": read(f"/proc/{os.getppid()}/comm"), "death": death.value,
        "session": os.getsid(0) == os.getsid(os.getppid()), "cwd": os.getcwd(), "cpus": sorted(os.sched_getaffinity(0)),
        "policy": [os.sched_getscheduler(0), os.nice(0)], "umask": status("Umask"),
        "limits": [resource.getrlimit(n) for n in range(16)], "cgroup": read("/proc/self/cgroup"),
        "threads": len(os.listdir("/proc/self/task")), "main thread": repr(threading.main_thread().name),
        "streams": [[s.line_buffering, s.write_through, s.encoding, s.errors, s.isatty(), s.fileno(), s.name, s.mode]
                    for s in (sys.stdin, sys.stdout, sys.stderr)],
        "frozen": __import__("gc").get_freeze_count(), "oom": read("/proc/self/oom_score_adj"),
        "open": sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) not in keep)[:3], "stdin": sys.stdin.read(),
        "kept": [os.fstat(fd).st_mode for fd in keep], "slack": read("/proc/self/timerslack_ns"),
    }


def main():
    seen = {"facts": facts(), "random": random.random(), "pid": os.getpid()}
    print("out of round", ROUND)
    print("err of round", ROUND, file=sys.stderr)
    path = os.environ["SEEN"] + "/" + os.environ["RANK"] + "." + str(ROUND)
    with open(path + "~", "w") as f:
        json.dump(seen, f)
    os.rename(path + "~", path)
    while ROUND < LAST:
        time.sleep(0.005)
        if os.path.exists(path + ".kill"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
'''


class Job:
    """A launcher with its workers, in a folder of its own."""

    def __init__(self, folder, *command, restarts=1, nproc=2, env=None, options=()):
        self.folder, self.nproc, self.out = folder, nproc, open(f"{folder}/output", "w+")
        os.makedirs(f"{folder}/seen", exist_ok=True)
        os.makedirs(f"{folder}/tmp", exist_ok=True)
        clean = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": f"{folder}/tmp", "LANG": "C.UTF-8",
                 "SEEN": f"{folder}/seen", "PYTHONDONTWRITEBYTECODE": "1",
                 **{name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")}, **(env or {})}
        self.p = subprocess.Popen([DLAUNCH, "--verbose", "--nproc_per_node", str(nproc), "--max_restarts", str(restarts),
                                   "--progress_time", "0", *options, *command], cwd=folder, env=clean,
                                  stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT)

    def text(self):
        with open(f"{self.folder}/output", errors="replace") as f:
            return f.read()

    def count(self, words):
        return self.text().count(words)

    def is_ready(self, times):
        wait_for(f"{times} times warm interpreters", lambda: self.count("warm interpreters are ready") >= times)

    def seen(self, rank, number):
        path = f"{self.folder}/seen/{rank}.{number}"
        wait_for(path, lambda: os.path.exists(path))
        with open(path) as f:
            return json.load(f)

    def kill(self, number, rank=1):
        """Kills a worker of this round once all of them run."""
        for each in range(self.nproc):
            self.seen(each, number)
        open(f"{self.folder}/seen/{rank}.{number}.kill", "w").close()

    def end(self, status=0):
        code = self.p.wait(LIMIT_S)
        assert code == status, f"exit status {code}, not {status}"
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and self.folder in environment(pid)]
        assert not left, f"left: {left}"
        return self.text()


def environment(pid):
    try:
        with open(f"/proc/{pid}/environ", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def normal(facts):
    """Without what is different in each round and each job."""
    text = json.dumps(facts, sort_keys=True, indent=1)
    text = re.sub(r"(RESTART_COUNT(=|\": \"))\d+", r"\1N", text)
    text = re.sub(r"(MASTER_PORT(=|\": \")|_FD(=|\": \"))\d+", r"\1N", text)
    text = re.sub(r"(attempt_| at 0x)[0-9a-f]+", r"\1N", text)
    text = re.sub(r"(/dlaunch\.|torchelastic_dlaunch_|RUN_ID=|RUN_ID\": \")[-\w]+", r"\1N", text)
    return text.splitlines()


def write(folder, name, text, mode=0o644):
    os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
    with open(f"{folder}/{name}", "w") as f:
        f.write(text)
    os.chmod(f"{folder}/{name}", mode)


def same(job, ranks=2):
    """Round 0 began cold, round 1 warm."""
    for rank in range(ranks):
        cold, warm = normal(job.seen(rank, 0)["facts"]), normal(job.seen(rank, 1)["facts"])
        assert len(cold) == len(warm) and cold == warm, f"rank {rank}: cold - warm +\n" + "\n".join(
            f"- {a}\n+ {b}" for a, b in zip(cold, warm) if a != b) or f"{len(cold)} and {len(warm)} lines"
    assert job.seen(0, 1)["random"] != job.seen(1, 1)["random"], "the ranks have one random state"


def cold_and_warm(folder, *command, **options):
    job = Job(folder, *command, **options)
    job.is_ready(1)
    job.kill(0)
    text = job.end()
    assert text.count(", warm") == 2, "the second round did not begin warm"
    same(job)
    assert text.count("out of round 1") == 2 and text.count("err of round 1") == 2, "output is missing"
    return job


# --------------------------------------------------------------------------------------------- cases


def script(folder):
    write(folder, "train.py", PROGRAM)
    cold_and_warm(folder, "train.py", "--lr", "0.1", "")


def script_in_a_folder(folder):
    write(folder, "below/train.py", PROGRAM)
    cold_and_warm(folder, "./below/../below/train.py", "${local_rank}", options=["--bind", "core", "--tee", "3"])


def absolute_script(folder):
    write(folder, "train.py", PROGRAM)
    cold_and_warm(folder, f"{folder}/train.py", env={"PYTHONPATH": f"{folder}/other", "PYTHONHASHSEED": "1"})


def executable_script(folder):
    write(folder, "train.py", "#!/usr/bin/env python3\n" + PROGRAM, 0o755)
    cold_and_warm(folder, "./train.py", "a")


def executable_script_of_an_interpreter(folder):
    write(folder, "train-with-a-long-name.py", "#!/usr/bin/python3\n" + PROGRAM, 0o755)
    cold_and_warm(folder, "./train-with-a-long-name.py", "a")


def module(folder):
    write(folder, "mod.py", PROGRAM)
    cold_and_warm(folder, "-m", "mod", "a")


def package(folder):
    write(folder, "package/__init__.py", "import string\n")
    write(folder, "package/__main__.py", "from . import part\n" + PROGRAM)
    write(folder, "package/part.py", "import textwrap\n")
    cold_and_warm(folder, "-m", "package", "a")


def standard_input(folder):
    write(folder, "train.py", PROGRAM)
    cold_and_warm(folder, "train.py", options=["--stdin", "all"])


def without_a_pid_namespace_of_ours(folder):
    write(folder, "train.py", PROGRAM)
    cold_and_warm(folder, "train.py", options=["--isolate", "none"])


def in_a_pid_namespace(folder):
    if subprocess.run(["unshare", "-Urp", "--fork", "true"], capture_output=True).returncode:
        print("SKIPPED: in_a_pid_namespace: this host permits no namespaces")
        return
    write(folder, "train.py", PROGRAM)
    # LeakSanitizer looks for its process in /proc, by the number that it has in the namespace.
    options = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    cold_and_warm(folder, "train.py", options=["--isolate", "pidns"], env={"ASAN_OPTIONS": options})


def an_end(folder, end, status):
    """The first end, cold, and the last one, warm, have the same status and say the same."""
    write(folder, "train.py", PROGRAM + f"\nif ROUND == LAST: {end}\n")
    job = Job(folder, "train.py", nproc=1)
    wait_for("a warm interpreter", lambda: job.count("1 warm interpreter is ready"))
    job.kill(0, rank=0)
    warm = job.end(status)
    assert warm.count(", warm") == 1
    cold = Job(folder, "train.py", nproc=1, restarts=0).end(status)
    trace = lambda text: [re.sub(r", line \d+|if ROUND == LAST: ", "", line) for line in
                          re.sub("(?s)^.*?(Traceback|bye)", r"\1", text).split("\n-----")[0].split("\n")
                          if not line.startswith(("dlaunch:", "out of", "err of")) and "^" not in line][:6]
    assert trace(cold) == trace(warm), f"{trace(cold)}\n{trace(warm)}"


def raises(folder):
    an_end(folder, "import package_that_is_not_there", 1)


def divides_by_zero(folder):
    an_end(folder, "[1 / 0 for _ in 'x']", 1)


def exits_with_a_text(folder):
    an_end(folder, "sys.exit('bye')", 1)


def exits_with_a_number(folder):
    an_end(folder, "sys.exit(7)", 7)


def is_interrupted(folder):
    an_end(folder, "os.kill(os.getpid(), 2) or time.sleep(60)", 130)


def runs_exit_handlers(folder):
    an_end(folder, "__import__('atexit').register(print, 'bye', file=sys.stderr) and sys.exit(3)", 3)


def has_a_hook(folder):
    an_end(folder, "setattr(sys, 'excepthook', lambda k, e, t: print('bye', len(__import__('traceback').extract_tb(t)), "
                   "file=sys.stderr)) or 1 / 0", 1)


def changed_program(folder):
    write(folder, "train.py", PROGRAM)
    job = Job(folder, "train.py")
    job.is_ready(1)
    write(folder, "train.py", PROGRAM.replace("out of round", "new text of round"))
    job.kill(0)
    assert job.end().count("new text of round 1") == 2
    same(job)


def changed_import(folder):
    """A module of the program that hides one that was imported, and a changed one of its own."""
    write(folder, "train.py", "import part\n" + PROGRAM)
    write(folder, "part.py", "import string\n")
    job = Job(folder, "train.py")
    job.is_ready(1)
    write(folder, "decimal.py", "print('own decimal')\n")
    job.kill(0)
    assert job.end().count("own decimal") == 2


def import_of_the_rank(folder):
    """What depends on the rank is imported by one interpreter for each rank; what depends on the round, anew."""
    write(folder, "lib/ranked.py", "import os\nrank = os.environ['RANK']\n")
    write(folder, "lib/rounded.py", "import os\nnumber = os.getenv('TORCHELASTIC_RESTART_COUNT')\n")
    text = PROGRAM.replace("print(\"out", "import ranked; assert ranked.rank == os.environ['RANK']; print(\"out")
    write(folder, "train.py", text)
    env = {"PYTHONPATH": f"{folder}/lib"}
    job = Job(folder, "train.py", options=["--warm", "decimal,ranked"], env=env)
    for rank in (0, 1):
        wait_for("an interpreter", lambda: job.count(f"the interpreter of local rank {rank} is warm"))
    job.kill(0)
    assert job.end().count(", warm") == 2
    same(job)
    os.rename(f"{folder}/seen", f"{folder}/seen1")
    write(folder, "train.py", PROGRAM.replace("print(\"out", "import rounded; print('number', rounded.number); print(\"out"))
    job = Job(folder, "train.py", options=["--warm", "rounded"], env=env)
    job.is_ready(1)
    job.kill(0)
    assert job.end().count("number 1\n") == 2


def import_that_sets_variables(folder):
    write(folder, "lib/setting.py", "import os\nos.environ['SET'] = 'set'\nos.environ.pop('UNSET', None)\n"
                                    "os.environb[b'BYTES'] = b'1'\nprint('banner', flush=True)\n")
    write(folder, "train.py", "import setting\n" + PROGRAM)
    job = Job(folder, "train.py", options=["--warm", "setting"], env={"PYTHONPATH": f"{folder}/lib", "UNSET": "1"})
    job.is_ready(1)
    job.kill(0)
    text = job.end()
    assert text.count("banner") == 4 and job.seen(0, 1)["facts"]["environ"]["SET"] == "set", text
    same(job)


def import_that_starts_a_thread(folder):
    write(folder, "lib/threaded.py", "import threading, time\n"
                                     "threading.Thread(target=time.sleep, args=[1000], daemon=True).start()\n")
    write(folder, "train.py", "import threaded\n" + PROGRAM)
    job = Job(folder, "train.py", options=["--warm", "threaded"], env={"PYTHONPATH": f"{folder}/lib"})
    for rank in (0, 1):
        wait_for("an interpreter", lambda: job.count(f"the interpreter of local rank {rank} is warm"))
    job.kill(0)
    text = job.end()
    assert text.count(", warm") == 2 and job.seen(1, 1)["facts"]["threads"] == 2
    assert job.seen(0, 1)["facts"]["policy"] == job.seen(0, 0)["facts"]["policy"]


def useless_import(folder):
    """Cold starts, and one line that says why."""
    write(folder, "train.py", PROGRAM)
    for number, (text, why) in enumerate([("f = open('/dev/full')", "has opened /dev/full"), ("1 / 0", "ZeroDivisionError"),
                                          ("import os; os._exit(3)", "it died while it imported")]):
        write(folder, "lib/bad.py", text)
        job = Job(folder, "train.py", options=["--warm", "bad"], env={"PYTHONPATH": f"{folder}/lib"})
        wait_for(why, lambda: job.count("no warm starts: ") and job.count(why))
        job.kill(0)
        assert job.end().count(", warm") == 0
        same(job)
        os.rename(f"{folder}/seen", f"{folder}/seen{number}")


def killed_interpreters(folder):
    write(folder, "train.py", PROGRAM)
    job = Job(folder, "train.py", restarts=2)
    job.is_ready(1)
    workers = [job.seen(rank, 0)["pid"] for rank in (0, 1)]
    agent = int(subprocess.check_output(["pgrep", "-P", str(job.p.pid)]))
    warm = [int(p) for p in subprocess.check_output(["pgrep", "-P", str(agent)]).split() if int(p) not in workers]
    assert len(warm) == 3, warm
    for pid in warm:
        os.kill(pid, signal.SIGKILL)
    wait_for("their ends", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in warm))
    job.kill(0)
    job.is_ready(2)
    job.kill(1)
    text = job.end()
    assert text.count(", warm") == 2 and "left behind" not in text


def elastic_node(folder):
    """The workers of the first node begin the round with the second node warm."""
    write(folder, "train.py", PROGRAM.replace("ROUND < LAST", "os.environ['WORLD_SIZE'] == '2'"))
    options = ["--nnodes", "1:2", "--rdzv_backend", "file", "--rdzv_endpoint", f"{folder}/meeting", "--elastic",
               "--rdzv_conf", "last_call_timeout=0", "--rdzv_id", "warm"]
    job = Job(folder, "train.py", options=options)
    job.is_ready(1)
    os.makedirs(f"{folder}/second")
    second = Job(f"{folder}/second", f"{folder}/train.py", options=options)
    assert second.p.wait(LIMIT_S) == 0  # job.end() looks for what is left of both
    assert job.end().count(", warm") == 2 and second.end()


def with_torch(folder, text, more=""):
    """A program that imports a package with this name and text; the job's options and environment."""
    write(folder, "lib/site-packages/torch/__init__.py", text)
    write(folder, "lib/site-packages/other/__init__.py", "")
    write(folder, "train.py", "import torch\n" + more + PROGRAM)
    return {"PYTHONPATH": f"{folder}/lib/site-packages"}


def first_round(folder):
    """The first workers of a PyTorch program begin warm, and do not differ from cold ones."""
    env = with_torch(folder, "import string\n")
    for program in (["train.py", "a"], ["-m", "train", "a"]):
        job = Job(folder, *program, options=["--warm", "off"], env=env)
        job.kill(0)
        assert job.end().count(", warm") == 0
        cold = [normal(job.seen(rank, 0)["facts"]) for rank in (0, 1)]
        os.rename(f"{folder}/seen", f"{folder}/cold{len(program)}")
        job = Job(folder, *program, env=env)
        job.is_ready(2)
        job.kill(0)
        text = job.end()
        assert text.count(", warm") == 4 and text.count("out of round 0") == text.count("err of round 0") == 2, text
        for number in (0, 1):
            for rank in (0, 1):
                warm = normal(job.seen(rank, number)["facts"])
                assert warm == cold[rank], "\n".join(f"- {a}\n+ {b}" for a, b in zip(cold[rank], warm) if a != b)
            assert job.seen(0, number)["random"] != job.seen(1, number)["random"]
        os.rename(f"{folder}/seen", f"{folder}/warm{len(program)}")


def first_round_does_not_wait(folder):
    """The first workers do not wait for imports of another package, which may read the rank; these last until a file is
    there."""
    blocks = "import os, time\nwhile 'dlaunch' in os.readlink('/proc/self/fd/1') + open('/proc/self/cmdline').read() " \
             f"and not os.path.exists('{folder}/go'): time.sleep(0.005)\n"
    env = with_torch(folder, blocks, more="import other\n")
    job = Job(folder, "train.py", env=env)
    for rank in (0, 1):
        job.seen(rank, 0)
    open(f"{folder}/go", "w").close()
    job.is_ready(1)
    job.kill(0)
    assert job.end().count(", warm") == 2
    same(job)


def first_round_cold_after_all(folder):
    """An import that fails, one that ends the process, one that reads the rank: then the first rank's interpreter is
    there, and the others are started cold."""
    for number, (text, warm) in enumerate([("1 / 0\n", 0), ("import os\nif not os.environ.get('SEEN_IT'): os._exit(3)\n", 0),
                                           ("import os\nos.environ['RANK']\n", 1)]):
        env = with_torch(folder, text)
        write(folder, "train.py", ("try:\n    import torch\nexcept ArithmeticError:\n    pass\n" if number == 0 else
                                   "import torch\n" if number == 2 else
                                   "if 1:\n    import os; os.environ['SEEN_IT'] = '1'\nimport torch\n") + PROGRAM)
        options = ["--warm", "torch"] if number == 1 else []
        job = Job(folder, "train.py", env=env, restarts=1, options=options)
        for rank in (0, 1):
            job.seen(rank, 0)
        assert job.count(", warm") == warm, job.text()
        assert warm or job.count("no warm starts: ") == 1
        job.kill(0)
        job.end()
        os.rename(f"{folder}/seen", f"{folder}/seen{number}")


def first_round_stopped(folder):
    """While it waits for an interpreter whose import does not end."""
    env = with_torch(folder, f"import time\nopen('{folder}/began', 'w').close()\nwhile True: time.sleep(0.005)\n")
    job = Job(folder, "train.py", env=env)
    wait_for("the import", lambda: os.path.exists(f"{folder}/began"))
    job.p.send_signal(signal.SIGTERM)
    assert job.end(128 + signal.SIGTERM).count("is pid") == 0


def first_round_ends_early(folder):
    """A worker of another node fails while this node waits: the wait goes on in the next round."""
    env = with_torch(folder, f"import os, time\nwhile os.environ['WAITS'] == '1' and not os.path.exists('{folder}/go'): "
                             "time.sleep(0.005)\n")
    os.makedirs(f"{folder}/second")
    options = ["--nnodes", "2", "--rdzv_backend", "file", "--rdzv_endpoint", f"{folder}/meeting", "--rdzv_id", "warm"]
    env["SEEN"] = f"{folder}/seen"
    second = Job(f"{folder}/second", f"{folder}/train.py", options=options + ["--warm", "off", "--node_rank", "1"],
                 env={**env, "WAITS": "0"})
    job = Job(folder, "train.py", options=options + ["--node_rank", "0"], env={**env, "WAITS": "1"})
    wait_for("the wait", lambda: job.count("the first workers wait"))
    job.seen(3, 0)
    open(f"{folder}/seen/3.0.kill", "w").close()
    job.seen(3, 1)
    open(f"{folder}/go", "w").close()
    assert second.p.wait(LIMIT_S) == 0
    text = job.end()
    assert text.count(", warm") == 2 and text.count("the first workers wait") == 2 and second.end(), text
    assert not os.path.exists(f"{folder}/seen/0.0")


def first_round_killed_interpreter(folder):
    env = with_torch(folder, f"import os, time\nif not os.path.exists('{folder}/killed'):\n"
                             f"    open('{folder}/killed', 'w').close()\n    os.kill(os.getpid(), 9)\n")
    job = Job(folder, "train.py", env=env)
    job.kill(0)
    assert job.end().count(", warm") == 0


def script_with_the_name_of_an_option(folder):
    """The interpreter takes it for options that it does not have."""
    env = with_torch(folder, "")
    os.rename(f"{folder}/train.py", f"{folder}/-q.py")
    assert Job(folder, "--", "-q.py", env=env, restarts=1).end(2).count(", warm") == 0


def no_restart(folder):
    write(folder, "train.py", PROGRAM)
    assert Job(folder, "train.py", restarts=0).end().count("warm") == 0
    assert Job(folder, "train.py", options=["--warm", "off"], restarts=0).end().count("warm") == 0


def refused_values(folder):
    write(folder, "train.py", PROGRAM)
    for value in ("", "torch,", "a b", "1x", "a..", ".a", "a..b", "a.1", "no such", "off,", "auto off"):
        for program in ("train.py", "./x"):  # the value is refused before the program is looked for
            text = Job(folder, program, options=["--warm", value]).end(2)
            assert text == f"dlaunch: --warm: '{value}' is neither auto, off nor names of Python modules\n", text
    text = Job(folder, "/bin/true", options=["--warm", "torch"]).end(2)
    assert text.count("\n") == 1 and "--warm: /bin/true is not a Python script" in text, text


def many_restarts(folder):
    """Nothing is left: processes, descriptors of the agent, files."""
    write(folder, "train.py", PROGRAM)
    job = Job(folder, "train.py", restarts=RESTARTS)
    counts = []
    for number in range(RESTARTS):
        job.is_ready(number + 1)
        if not counts:
            agent = int(subprocess.check_output(["pgrep", "-P", str(job.p.pid)]))
        counts.append((len(os.listdir(f"/proc/{agent}/fd")), len(subprocess.check_output(["pgrep", "-P", str(agent)]).split())))
        job.kill(number, rank=number % 2)
        for rank in (0, 1):
            job.seen(rank, number + 1)
            os.unlink(f"{folder}/seen/{rank}.{number}") if number > 0 else None
    text = job.end()
    assert text.count(", warm") == 2 * RESTARTS, f"{text.count(', warm')} warm workers"
    assert max(counts[1:]) == min(counts[1:]), f"descriptors and children: {counts}"
    files = [name for _, _, names in os.walk(f"{folder}/tmp") for name in names]
    files = [name for name in files if not name.endswith(".ended")]  # what dlaunchctl tells of a job for a day
    assert "left behind" not in text and not files, files


CASES = [script, script_in_a_folder, absolute_script, executable_script, executable_script_of_an_interpreter, module,
         package, standard_input, without_a_pid_namespace_of_ours, in_a_pid_namespace, raises, divides_by_zero,
         exits_with_a_text, exits_with_a_number, is_interrupted, runs_exit_handlers, has_a_hook, changed_program,
         changed_import, import_of_the_rank, import_that_sets_variables, import_that_starts_a_thread, useless_import,
         killed_interpreters, elastic_node, first_round, first_round_does_not_wait, first_round_cold_after_all,
         first_round_stopped, first_round_ends_early, first_round_killed_interpreter, script_with_the_name_of_an_option,
         no_restart, refused_values, many_restarts]


def main():
    checks = failures = 0
    for case in CASES:
        if sys.argv[1:] and case.__name__ not in sys.argv[1:]:
            continue
        checks += 1
        with tempfile.TemporaryDirectory(prefix="dlaunch-warm-") as folder:
            folder = os.path.realpath(folder)
            try:
                case(folder)
            except Exception:
                failures += 1
                print(f"FAILED: {case.__name__}\n{traceback.format_exc()}")
                for path in (f"{folder}/output", f"{folder}/second/output"):
                    if os.path.exists(path):
                        with open(path, errors="replace") as f:
                            print(f.read()[-3000:], flush=True)
            subprocess.run(["pkill", "-KILL", "-f", f"^{DLAUNCH} .*{folder}"])
    print("%d%%: Checks: %d, Failures: %d, Errors: 0" % (100 * (checks - failures) // max(checks, 1), checks, failures))
    sys.exit(failures > 0)


main()
