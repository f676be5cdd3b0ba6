#!/usr/bin/python3
"""Collective operations on this machine: libdlcoll beside Open MPI, MPICH and Gloo, and what the machine
allows, interleaved in one run; medians over the rounds of each rank's median (the slowest rank's).

    bench-coll.py BUILD_DIR

    QUICK=1          few sizes, 2 and 4 ranks, under 2 minutes
    RANKS="2 4 8"  OPS="all_reduce ..."  SIZES="8 1K ..."  BUDGET_MS=10 (a cell of a round)
    ROUNDS=30  MINUTES=12   after the first round nothing is started when the time is over
    BUSY="1 2"       also beside as many processes that compute as CPUs, and beside twice as many
    QUIET_S=2        before each run, waits so long for the other processes of the machine to pause
    RAW=FILE         keeps every line that was measured

Large sizes, and the peers that take milliseconds for a small operation, come in every third round.

A virtual machine's CPUs may be two of one core for a while, of two cores then, and of two that have no
cache in common after that: a flag between them takes two or ten times as long, and everything else changes
with it. So the flag is timed before and after each run, and where there have been several kinds of times,
only runs of one kind are compared.

`direct` is libdlcoll with buffers from dlcoll_mem_alloc(). What the machine allows: `limit` where each rank's
buffers are its own, the faster of bare copies through shared memory and of reading by the kernel; `lim-direct`
where every rank sees every buffer; `limit-tcp` by bare sockets (doc/benchmarks.md defines them). ratio: the best
peer's time divided by libdlcoll's; share: the limit divided by libdlcoll's time; direct: lim-direct divided by
direct's.

With BUSY, libdlcoll and the peers are measured beside other load as well, in tables of their own.
"""
import bisect
import collections
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BUILD = sys.argv[1] if len(sys.argv) > 1 else "build"
BIN = f"{BUILD}/tests/bench/coll"
QUICK = os.environ.get("QUICK", "") not in ("", "0")


def words(name, full, quick):
    return os.environ.get(name, quick if QUICK else full).split()


RANKS = [int(n) for n in words("RANKS", "2 4 8", "2 4")]
SIZES = words("SIZES", "8 64 512 1K 4K 16K 64K 256K 1M 4M 16M 64M", "8 1K 64K 1M 16M")
OPS = words("OPS", *["all_reduce broadcast all_gather reduce_scatter all_to_all reduce pingpong barrier"] * 2)
ROUNDS = int(os.environ.get("ROUNDS", "30"))
MINUTES = float(os.environ.get("MINUTES", "1.5" if QUICK else "12"))
BUDGET_MS = os.environ.get("BUDGET_MS", "5" if QUICK else "10")
BUSY = [int(n) for n in words("BUSY", "1 2", "")]
BUSY_SIZES = [s for s in words("SIZES", "8 1K 64K 1M", "8 64K") if s]
QUIET_S = float(os.environ.get("QUIET_S", "0" if QUICK else "2"))
LIMIT_S = 10 if QUICK else 40
RARE = 3           # rounds of which one has the large sizes
LARGE = 4 << 20    # bytes
HALVES = "bf16", "f16"
STEP, FEW = 1.2, 0.02  # between two kinds of a flag's times: steps with so few of all
NO_MATCH = 4       # times the fastest: not by another kind of time either
CPUS = len(os.sched_getaffinity(0))
FOREIGN = 0.10  # of the CPUs, used by others: more is worth a remark
SHM, TCP = ["dlcoll", "direct", "openmpi", "mpich", "gloo"], ["dlcoll-tcp", "openmpi-tcp", "mpich-tcp", "gloo"]
MPIS = ("openmpi", "mpich")
BESIDE = "dlcoll", "openmpi", "mpich", "gloo"
PRIVATE = "lim-staged", "lim-read"
ENV = dict(os.environ, OMP_NUM_THREADS="1")


# ------------------------------------------------------------------------------------------ the peers

def dlaunch(n, prog, **env):
    bind = ["--bind", "core"] if n <= CPUS else []
    return [f"{BUILD}/dlaunch", *bind, "--nproc_per_node", str(n), f"{BIN}/{prog}"], env


def openmpi(n, *options):
    bind = ["--bind-to", "core"] if n <= CPUS else ["--oversubscribe"]
    return ["mpirun.openmpi", "--allow-run-as-root", *bind, *options, "-n", str(n), f"{BIN}/peer_openmpi"], {}


def mpich(n, **env):
    bind = ["-bind-to", "core"] if n <= CPUS else []
    return ["mpiexec.hydra", *bind, "-n", str(n), f"{BIN}/peer_mpich"], env


PEERS = {
    "dlcoll": lambda n: dlaunch(n, "peer_dlcoll"),
    "direct": lambda n: dlaunch(n, "peer_dlcoll", BENCH_SHARED="1"),
    "dlcoll-tcp": lambda n: dlaunch(n, "peer_dlcoll", DLCOLL_SHM="0"),
    "openmpi": openmpi,
    "openmpi-tcp": lambda n: openmpi(n, "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca",
                                     "btl_tcp_if_include", "lo"),
    "mpich": mpich,
    "mpich-tcp": lambda n: mpich(n, MPIR_CVAR_NOLOCAL="1", UCX_TLS="tcp,self", UCX_NET_DEVICES="lo"),
    "gloo": lambda n: dlaunch(n, "peer_gloo"),
    "lim-direct": lambda n: ([f"{BIN}/peer_limit", str(n)], {}),
    "lim-staged": lambda n: ([f"{BIN}/peer_limit", str(n)], {"BENCH_MEANS": "staged"}),
    "lim-read": lambda n: ([f"{BIN}/peer_limit", str(n)], {"BENCH_MEANS": "read"}),
    "limit-tcp": lambda n: ([f"{BIN}/peer_limit", str(n)], {"BENCH_TCP": "1"}),
}


def present():
    """The names of those that are built and can be started; says which are not."""
    need = {"openmpi": ("mpirun.openmpi", "peer_openmpi"), "mpich": ("mpiexec.hydra", "peer_mpich"),
            "gloo": (None, "peer_gloo")}
    names = []
    for name in PEERS:
        launcher, prog = need.get(name.split("-")[0], (None, "peer_dlcoll"))
        if (launcher and not shutil.which(launcher)) or not os.path.exists(f"{BIN}/{prog}"):
            print(f"SKIPPED: {name}: not installed (make deps-bench)")
        else:
            names.append(name)
    return names


def size_of(text):
    return int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)


def jobs(name, n, turn):
    """What to run of it on n ranks in that round: (operations, sizes)"""
    ops = [op for op in OPS if op != "pingpong" or n == 2]
    rarely = turn % RARE == 0
    if name == "mpich-tcp" and n > CPUS:
        return []  # with more ranks than CPUs it does not come to an end
    if name in ("mpich", "gloo") and n > CPUS and not rarely:
        return []
    if name == "limit-tcp":
        ops = ops if n & (n - 1) == 0 else []  # its rounds are those of a power of two
    if name == "direct":
        ops = [op for op in ops if op not in ("barrier", "pingpong")]
    small = [s for s in SIZES if size_of(s) < LARGE]
    large = [s for s in SIZES if size_of(s) >= LARGE] if rarely else []
    moving = [op for op in ops if op != "barrier"]
    all_jobs = [(ops, small or large[:1])] if ops else []
    if large and moving:
        all_jobs.append((moving, large))
    if n == 2 and turn == 0 and not QUICK and "all_reduce" in ops and "SIZES" not in os.environ:
        all_jobs.append((["all_reduce"], ["256M"]))
    return all_jobs


# ------------------------------------------------------------------------------------------ running

def busy_jiffies():
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return sum(v) - v[3] - v[4]


class Load:
    """Processes that compute, `times` as many as CPUs."""

    def __init__(self, times):
        self.n = times * CPUS

    def __enter__(self):
        loop = "while True: pass"
        self.all = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(self.n)]

    def __exit__(self, *_):
        for p in self.all:
            p.kill()
            p.wait()


def wait_for_quiet(most_s):
    end = time.monotonic() + most_s
    while time.monotonic() < end:
        before = busy_jiffies()
        time.sleep(0.2)
        if (busy_jiffies() - before) / os.sysconf("SC_CLK_TCK") / 0.2 / CPUS < FOREIGN:
            return


def run(cmd, env, quiet_s=QUIET_S):
    """(what it printed, the share of the CPUs that others used meanwhile)"""
    wait_for_quiet(quiet_s)
    cpu, start = busy_jiffies(), time.monotonic()
    own = sum(os.times()[:4])
    p = subprocess.Popen(["timeout", "-k", "5", str(LIMIT_S), *cmd], env=dict(ENV, **env), text=True,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = p.communicate()
    took = time.monotonic() - start
    foreign = (busy_jiffies() - cpu) / os.sysconf("SC_CLK_TCK") - (sum(os.times()[:4]) - own)
    complaint = next((line for line in errors.splitlines() if "wrong on rank" in line), "")
    if p.returncode == 124:
        complaint = f"stopped after {LIMIT_S} s"
    elif p.returncode and not complaint:
        complaint = (errors.strip().splitlines() or [f"exit status {p.returncode}"])[0]
    return out, max(0.0, foreign / (took * CPUS)), complaint


def time_flag():
    p = subprocess.run(["timeout", "5", f"{BIN}/peer_limit", "flag"], capture_output=True, text=True)
    return float(p.stdout or "inf")


class Measured:
    def __init__(self):
        self.samples = []  # (cell, us, the flag's time before, after); a cell: (name, op, ranks, bytes)
        self.halves = {}   # (type, ranks): how many times as long as it all_reduce takes of as many f32
        self.beside = {}   # cell -> us: beside other load
        self.foreign = []
        self.complaints = {}
        self.stopped = set()  # runs that LIMIT_S ended: one of each is enough
        self.rounds = 0

    def start(self, name, n, ops, sizes):
        """(its lines, op -> bytes -> us, the share of the CPUs that others used)"""
        cmd, env = PEERS[name](n)
        with tempfile.TemporaryDirectory() as folder:
            env["BENCH_DIR"] = folder
            out, share, why = run([*cmd, name, ",".join(ops), ",".join(sizes), BUDGET_MS], env)
        self.foreign.append(share)
        if why:
            self.complaints.setdefault((name, n), why)
        if why.startswith("stopped"):
            self.stopped.add((name, n, *sizes))
        lines = [line for line in out.splitlines() if line.startswith(f"{name} ") and len(line.split()) == 7]
        times = collections.defaultdict(dict)
        for f in map(str.split, lines):
            times[f[1]][int(f[3])] = float(f[5])
        return lines, times, share

    def run(self, turn, name, n, ops, sizes, raw):
        before = time_flag()
        lines, times, share = self.start(name, n, ops, sizes)
        after = time_flag()
        self.samples += [((name, op, n, size), t, before, after) for op in times for size, t in times[op].items()]
        for line in lines if raw else ():
            raw.write(f"{turn} {share:.2f} {before} {after} {line}\n")

    def run_beside(self, times, name, n):
        """As `name` with "+1" or "+2" behind it; how long a flag takes says nothing then."""
        ops = [op for op in OPS if op != "pingpong" or n == 2]
        cmd, env = PEERS[name](n)
        with tempfile.TemporaryDirectory() as folder, Load(times):
            env["BENCH_DIR"] = folder
            out, _, why = run([*cmd, name, ",".join(ops), ",".join(BUSY_SIZES), BUDGET_MS], env, 0)
        if why:
            self.complaints.setdefault((f"{name}+{times}", n), why)
        for f in map(str.split, out.splitlines()):
            if len(f) == 7 and f[0] == name:
                self.beside.setdefault((f"{name}+{times}", f[1], n, int(f[3])), []).append(float(f[5]))

    def run_halves(self, n):
        """The same number of elements, in one process: on whatever CPUs, those are the same for both."""
        times = self.start("dlcoll", n, ["all_reduce", *(f"all_reduce:{t}" for t in HALVES)], ["8M", "16M"])[1]
        for t in HALVES:
            f32, half = times["all_reduce"].get(16 << 20), times[f"all_reduce:{t}"].get(8 << 20)
            if f32 and half:
                self.halves.setdefault((t, n), []).append(f32 / half)


def measure(names):
    m, end = Measured(), time.monotonic() + MINUTES * 60
    raw = open(os.environ["RAW"], "a") if os.environ.get("RAW") else None
    for turn in range(ROUNDS):
        for n in RANKS:
            for name in names:
                for ops, sizes in jobs(name, n, turn):
                    if (name, n, *sizes) in m.stopped:
                        continue
                    if turn and time.monotonic() > end:
                        return m
                    m.run(turn, name, n, ops, sizes, raw)
                if name == "dlcoll" and "all_reduce" in OPS and turn % RARE == 0:
                    m.run_halves(n)
                for times in BUSY if turn % RARE == 1 and name in BESIDE else ():
                    if not (name == "mpich" and n > CPUS):  # it does not come to an end
                        m.run_beside(times, name, n)
                if sys.stderr.isatty():
                    print(f"\rround {turn + 1}: {n} ranks, {name:12}", end="\r", file=sys.stderr, flush=True)
        m.rounds = turn + 1
    return m


# ------------------------------------------------------------------------------------------- tables

def size_text(n):
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if n >= 1 << shift and n % (1 << shift) == 0:
            return f"{n >> shift}{unit}"
    return str(n)


def us(x):
    if x is None:
        return "-"
    return f"{x:.2f}" if x < 100 else f"{x:.0f}"


def edges_between(times):
    """Where one kind of times ends and the next begins: in the middle of steps with few between those with
    many."""
    counts = collections.Counter(round(math.log(t, STEP)) for t in times)
    many = sorted(step for step, n in counts.items() if n >= max(2, FEW * len(times)))
    return [STEP ** ((a + b) / 2) for a, b in zip(many, many[1:]) if b > a + 1]


class Results:
    """Medians. Where the flag has had several kinds of times, a cell's are those of the kind in which there
    are the most measurements of all that may be the fastest of it; a library without any has its own
    median of all, and the cell is `mixed`."""

    def __init__(self, samples):
        self.edges = edges_between([t for s in samples for t in s[2:]])
        self.times = {}
        for cell, us, before, after in samples:
            kinds = {bisect.bisect(self.edges, t) for t in (before, after)} if self.edges else set()
            for kind in (None, *(kinds if len(kinds) == 1 else ())):
                self.times.setdefault((*cell, kind), []).append(us)
        self.kinds = {}

    def kind(self, name, op, n, size):
        """(the kind, whether the cell is mixed)"""
        key, tcp = (op, n, size), name.endswith("-tcp")
        if not self.edges:
            return None, False
        if (key, tcp) not in self.kinds:
            names = [p for p in (TCP if tcp else SHM) if p not in ("direct", "gloo") and (p, *key, None) in self.times]
            least = {p: min(self.times[p, *key, None]) for p in names}
            names = [p for p in names if p.startswith("dlcoll") or least[p] < NO_MATCH * min(least.values())]
            counts = {kind: [len(self.times.get((p, *key, kind), ())) for p in names]
                      for kind in range(len(self.edges) + 1)}
            best = max(counts, key=lambda kind: (sum(c > 0 for c in counts[kind]), min(counts[kind], default=0)))
            self.kinds[key, tcp] = best, 0 in counts[best]
        return self.kinds[key, tcp]

    def get(self, name, op, n, size):
        if name == "limit":
            return self.best(PRIVATE, op, n, size)
        key = (name, op, n, size)
        times = self.times.get((*key, self.kind(*key)[0])) or self.times.get((*key, None))
        return statistics.median(times) if times else None

    def sizes(self, op, n):
        return sorted({k[3] for k in self.times if k[1] == op and k[2] == n})

    def best(self, names, op, n, size):
        return min((x for x in (self.get(p, op, n, size) for p in names) if x), default=None)

    def ratio(self, ours, names, op, n, size):
        """How many times as fast as the best of the peers; None: one of them is missing."""
        mine, best = self.get(ours, op, n, size), self.best(names, op, n, size)
        return best / mine if mine and best else None


def print_beside(m, times):
    """Beside so many busy processes a CPU. Returns [(ratio to Gloo or None, ratio to the best, cell)]"""
    cells = []
    for n in RANKS:
        for op in OPS:
            sizes = sorted({k[3] for k in m.beside if k[:3] == (f"dlcoll+{times}", op, n)})
            if sizes:
                print(f"\n{op}, {n} ranks, beside {times} busy processes for each CPU, us")
                print(f"{'bytes':>7}" + "".join(f"{c:>12}" for c in BESIDE) + "   ratio")
            for s in sizes:
                t = {c: statistics.median(m.beside[f"{c}+{times}", op, n, s])
                     for c in BESIDE if (f"{c}+{times}", op, n, s) in m.beside}
                best = min((t[c] for c in t if c != "dlcoll"), default=None)
                ratio = best / t["dlcoll"] if best else None
                print(f"{size_text(s):>7}" + "".join(f"{us(t.get(c)):>12}" for c in BESIDE)
                      + ("" if ratio is None else f"{ratio:8.2f}" + ("  slower" if ratio < 1 else "")))
                if ratio is not None:
                    cells.append((t["gloo"] / t["dlcoll"] if "gloo" in t else None, ratio, f"{op} {n} x {size_text(s)}"))
    return cells


def bars_beside(times, cells):
    gloo, best = Bar(f"beside {times} busy processes for each CPU, 1 x Gloo", 1), [c[1] for c in cells]
    for of_gloo, _, what in cells:
        gloo.add(of_gloo, what)
    gloo.show()
    if best:
        median = statistics.median(best)
        print(f"  {'met   ' if median >= 1 else 'MISSED'}  the same, the median 1 x the best: {median:.2f}")


def print_table(r, op, n, columns, ours, peers):
    sizes = [s for s in r.sizes(op, n) if any(r.get(c, op, n, s) for c in columns if not c.startswith("lim"))]
    if not sizes:
        return
    print(f"\n{op}, {n} ranks{' (more than CPUs)' if n > CPUS else ''}, us")
    limit = columns[0]
    direct = "direct" in columns
    print(f"{'bytes':>7}" + "".join(f"{c:>12}" for c in columns) + "   ratio   share" + "  direct" * direct)
    for s in sizes:
        share = r.ratio(ours, [limit], op, n, s)
        row = "".join(f"{us(r.get(c, op, n, s)):>12}" for c in columns)
        ratio = r.ratio(ours, peers, op, n, s)
        shares = [ratio, share] + [r.ratio("direct", ["lim-direct"], op, n, s)] * direct
        mark = "".join(f"{'-' if x is None else f'{x:.2f}':>8}" for x in shares)
        mark += "  slower" if ratio is not None and ratio < 1 else ""
        if ratio is not None and r.kind(ours, op, n, s)[1]:
            mark += "  (mixed)"
        print(f"{size_text(s):>7}{row}{mark}")


def losing(r, ours, peers):
    lost = []
    for op in OPS:
        for n in RANKS:
            for s in r.sizes(op, n):
                ratio = r.ratio(ours, peers, op, n, s)
                if ratio is not None and ratio < 1:
                    lost.append((op, n, s, ratio))
    return lost


# --------------------------------------------------------------------------------------------- bars

class Bar:
    """Cells that must reach a ratio: met, or missed, with the worst one."""

    def __init__(self, text, want):
        self.text, self.want, self.cells = text, want, []

    def add(self, ratio, what, limit=None):
        """limit: the ratio that a bare socket would have."""
        if ratio is not None:
            self.cells.append((ratio, what + (f", a bare socket {limit:.2f}" if limit else "")))

    def show(self):
        if not self.cells:
            print(f"  -       {self.text}: not measured")
            return
        bad = [c for c in self.cells if c[0] < self.want]
        worst = min(self.cells)
        print(f"  {'MISSED' if bad else 'met   '}  {self.text}: "
              f"{len(self.cells) - len(bad)} of {len(self.cells)} cells, the worst {worst[0]:.2f} ({worst[1]})")
        for ratio, what in sorted(bad)[1:]:
            print(f"          {ratio:.2f} ({what})")


def bars(r, halves):
    def over(text, want, ours, peers, ops, ranks, low=0, high=1 << 40):
        bar = Bar(text, want)
        for op in ops:
            for n in ranks:
                for s in r.sizes(op, n):
                    if low <= s <= high:
                        limit = r.ratio("limit-tcp", peers, op, n, s) if ours == "dlcoll-tcp" else None
                        bar.add(r.ratio(ours, peers, op, n, s), f"{op} {n} x {size_text(s)}", limit)
        bar.show()

    crowd = [n for n in RANKS if n > CPUS]
    few = [n for n in RANKS if n <= CPUS]
    peers = [*MPIS, "gloo"]
    others = [op for op in OPS if op != "all_reduce"]
    ar = ["all_reduce"]
    print("\nTo reach (each as a ratio of times, the peer's divided by ours):")
    over("all_reduce, 2 ranks, to 64 B, 1 x Open MPI", 1, "dlcoll", ["openmpi"], ar, [2], 0, 64)
    over("all_reduce, from 1 KB, 1.5 x Open MPI and MPICH", 1.5, "dlcoll", MPIS, ar, few, 1 << 10)
    over("all_reduce, more ranks than CPUs, 2 x both", 2, "dlcoll", MPIS, ar, crowd)
    over("all_reduce, 1 MB, 10 x Gloo", 10, "dlcoll", ["gloo"], ar, RANKS, 1 << 20, 1 << 20)
    over("all_reduce, to 64 KB, 50 x Gloo", 50, "dlcoll", ["gloo"], ar, RANKS, 0, 1 << 16)
    over("all_reduce in shared buffers, from 64 KB, 3 x the best", 3, "direct", peers, ar, RANKS, 1 << 16)
    over("all_reduce in shared buffers, 64 MB, 1 / 1.3 of the limit", 1 / 1.3, "direct", ["lim-direct"], ar, RANKS,
         64 << 20, 64 << 20)
    over("the other operations, 8 B to 64 MB, 1 x the best", 1, "dlcoll", peers, others, RANKS, 0, 64 << 20)
    tcp = [p for p in TCP if p != "dlcoll-tcp"]
    over("over TCP, 1 x the best", 1, "dlcoll-tcp", tcp, OPS, RANKS)
    over("over TCP, to 1 MB, 3 x Gloo", 3, "dlcoll-tcp", ["gloo"], OPS, RANKS, 0, 1 << 20)
    over("over TCP, from 16 MB, 1.3 x the best", 1.3, "dlcoll-tcp", tcp, OPS, RANKS, 16 << 20)
    shared = [op for op in OPS if op not in ("reduce", "barrier")]
    for text, ours, limit in (("in the node", "dlcoll", "limit"), ("in shared buffers", "direct", "lim-direct"),
                              ("over TCP", "dlcoll-tcp", "limit-tcp")):
        for size, want, low, high in (("from 64 KB", 0.8, 1 << 16, 1 << 40), ("below", 0.7, 0, (1 << 16) - 1)):
            over(f"{text}, {size}: {want} of what the machine allows", want, ours, [limit], shared, RANKS, low, high)
    for t in HALVES:
        bar = Bar(f"all_reduce of {t}, as many elements as 16 MB of f32, in 0.6 of the time", 1 / 0.6)
        for n in RANKS:
            bar.add(statistics.median(halves[t, n]) if (t, n) in halves else None, f"{n} ranks")
        bar.show()


# --------------------------------------------------------------------------------------------- main

def main():
    start = time.monotonic()
    names = present()
    print(f"{CPUS} CPUs; ranks {RANKS}; {MINUTES:g} minutes; {BUDGET_MS} ms a cell of a round", flush=True)
    machine = subprocess.run([f"{BIN}/peer_limit", "machine"], capture_output=True, text=True, timeout=120)
    print(re.sub(r"(?m)^", "  ", machine.stdout.rstrip()))
    m = measure(names)
    r, foreign = Results(m.samples), m.foreign
    flags = sorted(t for s in m.samples for t in s[2:])
    if r.edges:
        where = " and ".join(f"{edge:.3f}" for edge in r.edges)
        print(f"\nThe flag took {flags[0]:.3f} to {flags[-1]:.3f} us; not mixed: runs below and above {where}")
    for n in RANKS:
        for op in OPS:
            print_table(r, op, n, ["limit", "lim-direct", *SHM], "dlcoll", [*MPIS, "gloo"])
    print("\nEverything over TCP, through loopback:")
    for n in RANKS:
        for op in OPS:
            print_table(r, op, n, ["limit-tcp", *TCP], "dlcoll-tcp", TCP[1:])
    for title, ours, peers in (("in the node", "dlcoll", [*MPIS, "gloo"]), ("over TCP", "dlcoll-tcp", TCP[1:])):
        lost = losing(r, ours, peers)
        print(f"\nSlower than the best peer {title}: {len(lost)} cells")
        for op, n, s, ratio in lost:
            print(f"  {op} {n} x {size_text(s)}: {ratio:.2f}")
    noisy = sum(x > FOREIGN for x in foreign)
    if noisy > len(foreign) / 4:
        print(f"\nTHE MACHINE WAS NOT QUIET ({noisy} of {len(foreign)} runs): what follows says little")
    beside = {times: print_beside(m, times) for times in BUSY}
    bars(r, m.halves)
    for times, cells in beside.items():
        bars_beside(times, cells)
    for (name, n), why in m.complaints.items():
        print(f"\n{name}, {n} ranks: {why}")
    print(f"\n{m.rounds} whole rounds, {time.monotonic() - start:.0f} s. "
          f"Others used {statistics.median(foreign):.0%} of the CPUs (median of {len(foreign)} runs; more than {FOREIGN:.0%} in {noisy} of them)")


main()
