#!/usr/bin/python3
"""Starting on two hosts from a third: how long from the command until the last of 2 x 4 workers executes its first
instruction; dlaunch by its daemon and by ssh, mpirun and Hydra by ssh, and ssh alone, interleaved in one run. The hosts are
network namespaces with a sshd and a daemon each. Needs root.

    bench-hosts.py BUILD_DIR [RUNS]
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
BUILD = os.path.abspath(sys.argv[1])
os.environ["BUILD"] = BUILD
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../torch"))
from bars import bar, find_peers, print_bars  # noqa: E402
from hosts import INSIDE, Hosts  # noqa: E402
from jobs import Skip, until  # noqa: E402

RUNS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
WORKERS = 4
LIMIT_S = 60
NODES = ["node1", "node2"]
BAR_MS = 20
STAMP = f"{BUILD}/tests/bench/stamp"


def write(path, text, mode=0o644):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, mode)


def prepare(folder):
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}"], check=True)
    write(f"{folder}/sshd_config", f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\nStrictModes no\n"
          "UsePAM no\nPidFile none\nPermitRootLogin yes\nPrintMotd no\nMaxStartups 200\nUseDNS no\n")
    write(f"{folder}/ssh_config", f"Host *\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  LogLevel ERROR\n"
          "  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n")
    write(f"{folder}/token", os.urandom(32).hex() + "\n", 0o600)


def commands(folder):
    ssh = f"ssh -F {folder}/ssh_config"
    slots = ",".join(f"{n}:{WORKERS}" for n in NODES)
    program = [STAMP, f"{folder}/stamps"]
    dlaunch = [f"{BUILD}/dlaunch", "-H", slots, "--start_timeout", str(LIMIT_S)]
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-H", slots, "--mca", "plm_rsh_agent", ssh]
    hydra = ["mpiexec.hydra", "-launcher", "ssh", "-hosts", slots, "-n", str(WORKERS * len(NODES))]
    by = {
        "dlaunch, daemon": [*dlaunch, "--launch_agent", "daemon", "--token_file", f"{folder}/token", *program],
        "dlaunch, ssh": [*dlaunch, "--launch_agent", ssh, *program],
        "ssh alone": ["sh", "-c", " & ".join(f"{ssh} {n} {' '.join(program)}" for n in NODES) + " & wait"],
    }
    peers = {"mpirun": mpirun + program, "hydra": hydra + program}
    return {**by, **{f"{n}, ssh": peers[n] for n in find_peers(list(peers))}}


def measure(command, folder, n):
    """Milliseconds until the last of n workers began."""
    stamps = f"{folder}/stamps"
    if os.path.exists(stamps):
        os.unlink(stamps)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": f"{folder}/config",
           "HYDRA_LAUNCHER_EXTRA_ARGS": f"-F {folder}/ssh_config"}
    begin = time.monotonic_ns()
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=LIMIT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout.decode()}"
    with open(stamps) as f:
        ends = [int(line.split()[3]) for line in f]
    assert len(ends) == n, f"{command}: {len(ends)} of {n} workers\n{done.stdout.decode()}"
    return (max(ends) - begin) / 1e6


def inside(folder):
    """On the host without workers."""
    table = commands(folder)
    times = {name: [] for name in table}
    for run in range(RUNS + 1):
        for name, command in table.items():
            took = measure(command, folder, len(NODES) if name == "ssh alone" else WORKERS * len(NODES))
            if run:  # the first one fills the caches
                times[name].append(took)
    print(f"from the command to the first instruction of the last of {len(NODES)} x {WORKERS} workers, ms, {RUNS} interleaved "
          f"runs, {os.cpu_count()} CPUs for all hosts, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':20}{'median':>10}{'best':>10}{'worst':>10}")
    for name, t in times.items():
        print(f"{name:20}{statistics.median(t):10.1f}{min(t):10.1f}{max(t):10.1f}")
    mine = statistics.median(times["dlaunch, daemon"])
    bar("two hosts by the daemon", mine, BAR_MS, " ms")
    for name in times:
        if name.split(",")[0] in ("mpirun", "hydra"):
            bar(f"by the daemon beside {name}", mine, statistics.median(times[name]), " ms")
    return print_bars()


def outside():
    with tempfile.TemporaryDirectory() as folder, Hosts(1 + len(NODES)) as hosts:
        prepare(folder)
        for i in range(1, 1 + len(NODES)):
            sshd = hosts.start(i, "sh", "-c", "mount -t tmpfs tmpfs /run && mkdir /run/sshd && "
                               f"exec /usr/sbin/sshd -D -e -f {folder}/sshd_config")
            daemon = hosts.dlaunch(i, "--serve", "--serve_addr", "all", "--token_file", f"{folder}/token")
            until(lambda job=sshd: "Server listening" in job.text("err"), sshd, "sshd listens")
            until(lambda job=daemon: "waiting for jobs" in job.text("err"), daemon, "the daemon listens")
        head = INSIDE.format(pid=hosts.holders[1].pid).split()
        return subprocess.run([*head, sys.executable, os.path.abspath(__file__), BUILD, str(RUNS), folder]).returncode


try:
    sys.exit(inside(sys.argv[3]) if len(sys.argv) > 3 else outside())
except Skip as e:
    print(f"SKIPPED: starting on two hosts: {e}")
