#!/usr/bin/env python3
"""dlaunch --rdzv_backend etcd, with real servers.

    test_etcd.py BUILD

TEST_FILTER=text runs the tests whose name contains it. Needs Debian's etcd-server and etcd-client; the tests with hosts
need root and ip(8).
"""
import contextlib
import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import servers
from servers import LIMIT, Command, Etcd, Failure, Network, wait_for

# A worker that prints its rank, then waits for its test.
SHOW = 'echo "rank $RANK of $WORLD_SIZE in round $TORCHELASTIC_RESTART_COUNT"; '
STAY = SHOW + 'while [ ! -e gate ]; do sleep 0.05; done'
DEAD = 3  # seconds of silence after which a node counts as lost
CONF = f"keep_alive_interval=0.5,keep_alive_max_attempt={DEAD * 2},last_call_timeout=1"


class Case:
    """A test's programs and folder."""

    def __init__(self, build, folder):
        self.dlaunch, self.folder, self.n = os.path.join(build, "dlaunch"), folder, 0

    def launch(self, etcd, *options, script="true", conf=CONF, endpoint=None, env=None, inside=None, backend="etcd"):
        self.n += 1
        argv = [self.dlaunch, "--rdzv_backend", backend, "--rdzv_endpoint", endpoint or etcd.endpoint,
                "--rdzv_conf", conf, "--insecure", "--verbose", "--nproc_per_node=2", *options, "sh", "-c", script]
        return Command(self.folder, f"dlaunch{self.n}", argv, env=env, inside=inside)

    def open_gate(self):
        with open(os.path.join(self.folder, "gate"), "w", encoding="ascii"):
            pass


def expect_no_keys(etcd, user=None):
    """A launcher that ends while it renews its lease leaves the end to the lease."""
    wait_for("no key is left", lambda: not etcd.keys(user), DEAD + 10)


def expect_line(p, status, text):
    """One line, and nothing was started."""
    p.ended(status)
    said = [line for line in p.text("err").splitlines() if text in line]
    if len(said) != 1:
        p.fail(f"not one line with '{text}'")
    if p.text():
        p.fail("a worker was started")


# -------------------------------------------------------------------------------------------- meeting

def nodes_meet(c):
    etcd = Etcd(c.folder)
    c.launch(etcd, script=SHOW).ended(0).wait("out", "rank 1 of 2")
    expect_no_keys(etcd)
    for backend in ("etcd", "etcd-v2"):
        nodes = [c.launch(etcd, "--nnodes=3", script=SHOW, backend=backend) for _ in range(3)]
        for p in nodes:
            p.ended(0)
        said = sorted(line for p in nodes for line in p.text().splitlines())
        if said != [f"rank {i} of 6 in round 0" for i in range(6)]:
            raise Failure("\n".join(said))
        expect_no_keys(etcd)


def jobs_and_prefixes_are_apart(c):
    etcd = Etcd(c.folder)
    jobs = [c.launch(etcd, f"--rdzv_id={job}", script=STAY, conf=f"{CONF},etcd_prefix=/{prefix}")
            for prefix in ("a", "b/c") for job in ("one", "two/three")]
    for p in jobs:
        p.wait("out", "rank 0 of 2")
    keys = [k for k in etcd.keys() if k.endswith("/coordinator")]
    if sorted(keys) != sorted(f"/{p}/{j}/coordinator" for p in ("a", "b/c") for j in ("one", "two/three")):
        raise Failure("\n".join(keys))
    c.open_gate()
    for p in jobs:
        p.ended(0)
    expect_no_keys(etcd)


def somebody_elses_key_is_left_alone(c):
    etcd = Etcd(c.folder)
    etcd.ctl("put", "/dlaunch/none/coordinator", "a recipe")
    expect_line(c.launch(etcd), 2, "something else is in the key /dlaunch/none/coordinator")
    if etcd.ctl("get", "/dlaunch/none/coordinator", "--print-value-only").stdout != "a recipe\n":
        raise Failure("the key was changed")


def a_node_that_may_not_host_waits(c):
    etcd = Etcd(c.folder)
    guest = c.launch(etcd, "--nnodes=2", script=SHOW, conf=f"{CONF},is_host=0")
    guest.wait("err", "agent: INIT -> RENDEZVOUS")
    host = c.launch(etcd, "--nnodes=2", script=SHOW)
    guest.ended(0)
    host.ended(0)
    host.wait("err", "listening on")


# --------------------------------------------------------------------------------- servers come and go

def one_server_of_three_is_killed(c):
    etcd = Etcd(c.folder, 3)
    nodes = [c.launch(etcd, "--nnodes=2", script=STAY) for _ in range(2)]
    for p in nodes:
        p.wait("out", "rank . of 4")
    etcd.servers[0].kill()
    late = Command(c.folder, "late", [c.dlaunch, "--rdzv_backend=etcd", "--rdzv_endpoint", etcd.endpoint, "--rdzv_id=x",
                                      "--insecure", "sh", "-c", "echo late"])
    late.ended(0)
    etcd.start(0)
    etcd.wait_healthy()
    c.open_gate()
    for p in nodes:
        p.ended(0)
        if "in round 1" in p.text():
            p.fail("was restarted")
    expect_no_keys(etcd)


def all_servers_are_away_for_a_while(c):
    """The job goes on, and has a vote of etcd again afterwards."""
    etcd = Etcd(c.folder)
    nodes = [c.launch(etcd, "--nnodes=1:2", "--max_restarts=3", script=STAY) for _ in range(2)]
    for p in nodes:
        p.wait("out", "rank . of 4")
    host = next(p for p in nodes if "listening on" in p.text("err"))
    host.wait("err", "witness etcd has a vote")
    etcd.servers[0].kill()
    host.wait("err", "this node cannot renew its lease")
    host.wait("err", "witness etcd was lost")
    etcd.start(0)
    host.wait("err", "etcd answers again")
    wait_for("the key is back", lambda: "/dlaunch/none/coordinator" in etcd.keys())
    host.kill()
    other = nodes[0] if host is nodes[1] else nodes[1]
    other.wait("out", "rank 0 of 2")
    c.open_gate()
    other.ended(0)
    expect_no_keys(etcd)


def nobody_answers(c):
    """Until the join timeout; then why."""
    port, = servers.free_ports(1)
    p = c.launch(None, endpoint=f"127.0.0.1:{port}", conf="join_timeout=2")
    expect_line(p, 1, f"no coordinator at the etcd key /dlaunch/none/coordinator within 2 s: etcd: connect to 127.0.0.1 "
                f"port {port}: Connection refused")


# ------------------------------------------------------------------------------------ nodes are lost

def the_coordinator_of_two_is_killed(c):
    """Without a witness. Then a third node finds the new coordinator, and that one is killed, too."""
    etcd = Etcd(c.folder)
    options = ("--nnodes=1:2", "--max_restarts=5", "--elastic")
    first = c.launch(etcd, *options, script=STAY)
    first.wait("err", "listening on")
    second = c.launch(etcd, *options, script=STAY)
    second.wait("out", "rank 2 of 4")
    first.wait("err", "witness etcd has a vote")
    begin = time.monotonic()
    first.kill()
    second.wait("out", "rank 0 of 2")
    print(f"etcd: one of two went on {1000 * (time.monotonic() - begin):.0f} ms after the coordinator's death")
    third = c.launch(etcd, *options, script=STAY)
    third.wait("out", "rank [0-3] of 4")
    second.wait("err", "witness etcd has a vote")
    second.kill()
    third.wait("out", "rank 0 of 2")
    c.open_gate()
    third.ended(0)
    expect_no_keys(etcd)


def the_whole_job_is_killed_and_started_again(c):
    """Keys that a killed job has left delay the next job, and do not hinder it."""
    etcd = Etcd(c.folder)
    for _ in range(10):  # a node that is killed a moment later than the other one may have removed the keys
        nodes = [c.launch(etcd, "--nnodes=2", script=STAY) for _ in range(2)]
        for p in nodes:
            p.wait("out", "rank . of 4")
        for p in nodes:
            p.p.kill()
        for p in nodes:
            p.p.wait()
        if etcd.keys():
            break
    else:
        raise Failure("nothing is left")
    nodes = [c.launch(etcd, "--nnodes=2", script="true") for _ in range(2)]
    for p in nodes:
        p.ended(0)
    expect_no_keys(etcd)


def a_host_is_cut_off(c):
    """The coordinator's: its workers end before the other node goes on. The other node's: it ends."""
    with contextlib.closing(Network(2)) as net:
        etcd = Etcd(c.folder, hosts=["10.88.0.1"], inside=net.names[0])
        stamp = 'while date +%s%N >last.$GROUP_RANK.$WORLD_SIZE; do [ -e gate ] && exit; sleep 0.02; done'
        options = ("--nnodes=1:2", "--max_restarts=3", "--nproc_per_node=1")
        a = c.launch(etcd, *options, script=SHOW + stamp, inside=net.names[1])
        a.wait("err", "listening on")
        b = c.launch(etcd, *options, script=f"date +%s%N >began.$WORLD_SIZE; {SHOW}{stamp}", inside=net.names[2])
        b.wait("out", "rank 1 of 2")
        a.wait("err", "witness etcd has a vote")
        net.cut(1)
        b.wait("out", "rank 0 of 1")
        a.ended(1)
        stamps = [int(c_file(c, name)) for name in ("last.0.2", "began.1")]
        if stamps[0] >= stamps[1]:
            raise Failure(f"two rounds ran at once for {(stamps[0] - stamps[1]) / 1e6:.0f} ms")
        print(f"etcd: the cut off workers had ended {(stamps[1] - stamps[0]) / 1e9:.1f} s before the next round")
        c.open_gate()
        b.ended(0)
        expect_no_keys(etcd)


def c_file(c, name):
    with open(os.path.join(c.folder, name), encoding="ascii") as f:
        return f.read()


def the_follower_is_cut_off(c):
    """The coordinator goes on with the vote of etcd; the other one must not."""
    with contextlib.closing(Network(2)) as net:
        etcd = Etcd(c.folder, hosts=["10.88.0.1"], inside=net.names[0])
        options = ("--nnodes=1:2", "--max_restarts=3", "--nproc_per_node=1")
        a = c.launch(etcd, *options, script=STAY, inside=net.names[1])
        a.wait("err", "listening on")
        b = c.launch(etcd, *options, script=STAY, inside=net.names[2])
        b.wait("out", "rank 1 of 2")
        a.wait("err", "witness etcd has a vote")
        net.cut(2)
        a.wait("out", "rank 0 of 1")
        b.ended(1)
        if "rank 0 of 1" in b.text():
            b.fail("went on alone, too")
        c.open_gate()
        a.ended(0)


# -------------------------------------------------------------------------------------- who may come

def users_and_passwords(c):
    etcd = Etcd(c.folder)
    for args in (("user", "add", "root:rootpass"), ("user", "grant-role", "root", "root"), ("role", "add", "job"),
                 ("role", "grant-permission", "job", "readwrite", "--prefix=true", "/dlaunch/"),
                 ("user", "add", "ann:secret"), ("user", "grant-role", "ann", "job"), ("auth", "enable")):
        etcd.ctl(*args)
    for env, text in (({}, "needs a user: set ETCDCTL_USER"),
                      ({"ETCDCTL_USER": "ann:wrong"}, "authentication failed"),
                      ({"ETCDCTL_USER": "nobody:x"}, "authentication failed")):
        expect_line(c.launch(etcd, env=env), 2, text)
    expect_line(c.launch(etcd, env={"ETCDCTL_USER": "ann"}), 2, "ETCDCTL_USER: 'ann' has no password")
    expect_line(c.launch(etcd, env={"ETCDCTL_USER": "ann:secret"}, conf=f"{CONF},etcd_prefix=/elsewhere"), 2,
                "permission denied")
    c.launch(etcd, env={"ETCDCTL_USER": "ann:secret"}, script=SHOW).ended(0)
    nodes = [c.launch(etcd, "--nnodes=2", script=STAY, env={"ETCDCTL_USER": "ann", "ETCDCTL_PASSWORD": "secret"})
             for _ in range(2)]
    for p in nodes:
        p.wait("out", "rank . of 4")
        with open(f"/proc/{p.p.pid}/cmdline", encoding="utf-8") as f:
            if "secret" in f.read():
                p.fail("the password is in the command line")
    etcd.servers[0].kill()  # tokens end with the server
    etcd.start(0)
    etcd.wait_healthy("root:rootpass")
    c.open_gate()
    for p in nodes:
        p.ended(0)
    expect_no_keys(etcd, "root:rootpass")


def certificates(c):
    files = servers.certificates(c.folder)
    etcd = Etcd(c.folder, tls=files)
    good = f"{CONF},protocol=https,ca_cert={files['ca.crt']},ssl_cert={files['client.crt']},ssl_cert_key={files['client.key']}"
    c.launch(etcd, script=SHOW, conf=good).ended(0)
    old = good.replace("ca_cert", "cacert").replace("ssl_cert_key", "key").replace("ssl_cert", "cert")
    c.launch(etcd, script=SHOW, conf=old, backend="etcd-v2").ended(0)
    fast = ",join_timeout=1"
    expect_line(c.launch(etcd, conf=good.replace(files["ca.crt"], files["other.crt"]) + fast), 2, "certificate")
    expect_line(c.launch(etcd, conf=f"protocol=https,ca_cert={files['ca.crt']}{fast}"), 1, "TLS: ")
    expect_line(c.launch(etcd, conf=CONF + fast), 1, "etcd")
    expect_line(c.launch(etcd, conf="protocol=https,ca_cert=/no/such"), 2, "/no/such: No such file or directory")
    for name in ("ca_cert", "ssl_cert"):
        expect_line(c.launch(etcd, conf=f"protocol=https,{name}=/etc/passwd"), 2, "TLS: /etc/passwd: ")
    expect_line(c.launch(etcd, conf="protocol=https,ca_cert=/etc"), 2, "TLS: /etc: ")
    expect_line(c.launch(etcd, conf="ca_cert=/etc/passwd"), 2, "certificates need protocol=https")
    expect_line(c.launch(etcd, conf=f"protocol=https,key={files['client.key']}"), 2, "ssl_cert_key needs ssl_cert")
    expect_line(c.launch(etcd, conf="protocol=ftp"), 2, "'ftp' is neither http nor https")


def what_is_not_etcd(c):
    """A server before 3.4 has no /v3/; another one speaks HTTP; one speaks nothing."""
    for answer, status, text in (((404, b"404 page not found\n"), 2, "version 3.4 or later is needed"),
                                 ((200, b"<html>"), 1, "is not etcd")):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *args):
                pass
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            expect_line(c.launch(None, endpoint=f"127.0.0.1:{server.server_port}", conf="join_timeout=1"), status, text)
            server.shutdown()


def options_that_do_not_fit(c):
    for options, text in ((("--rdzv_endpoint=a:1,a:1",), "a:1 is listed twice"),
                          (("--rdzv_endpoint=",  "--witness=a:1"), "etcd votes itself")):
        p = Command(c.folder, f"bad{text[:3]}", [c.dlaunch, "--rdzv_backend=etcd", *options]
                    + ([] if "--witness=a:1" in options else ["true"]))
        expect_line(p, 2, text)


TESTS = [nodes_meet, jobs_and_prefixes_are_apart, somebody_elses_key_is_left_alone, a_node_that_may_not_host_waits,
         one_server_of_three_is_killed, all_servers_are_away_for_a_while, nobody_answers,
         the_coordinator_of_two_is_killed, the_whole_job_is_killed_and_started_again, a_host_is_cut_off,
         the_follower_is_cut_off, users_and_passwords, certificates, what_is_not_etcd, options_that_do_not_fit]
HOSTS = (a_host_is_cut_off, the_follower_is_cut_off)


def run(test, build):
    if test in HOSTS and (os.geteuid() != 0 or not shutil.which("ip")):
        print(f"SKIPPED: etcd: {test.__name__}: needs root and ip(8)")
        return True
    begin = time.monotonic()
    with servers.temporary() as folder:
        c = Case(build, folder)
        try:
            test(c)
        except (AssertionError, OSError, subprocess.SubprocessError, LookupError, ValueError, StopIteration) as why:
            print(f"etcd: {test.__name__}: FAILED\n{why or repr(why)}", flush=True)
            return False
        finally:
            Command.end_all()
    print(f"etcd: {test.__name__}: ok ({time.monotonic() - begin:.1f} s)", flush=True)
    return True


def main():
    why = servers.missing()
    if why:
        print(f"SKIPPED: etcd: {why}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    build = os.path.abspath(sys.argv[1])
    tests = [t for t in TESTS if os.environ.get("TEST_FILTER", "") in t.__name__]
    failed = sum(not run(t, build) for t in tests)
    print(f"{len(tests) - failed} passed, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
