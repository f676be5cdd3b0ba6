#!/bin/bash
# What the workers' store costs: set, get, add and wait with 1, 8 and 64 clients, and with 10,000 more
# that are connected and idle; beside a bare epoll server that answers messages of the same sizes (the
# floor), and torch 1.13's own TCPStore server where python3-torch is installed. All servers run at the
# same time, the same client program measures them in turn, again and again; medians are shown.
#
# The second half is the same with everything on CPU 0: one client on two CPUs measures mostly how long
# a sleeping CPU takes to wake, and how the scheduler places server and client; pinned, it is the work.
# "cpu" is the server's own CPU time for one operation, which decides where clients are on other hosts.
#
#   bench-store.sh [BUILD]     ROUNDS=7 MS=200 IDLE=10000 OPS="set get add wait" CLIENTS="1 8 64"
set -u
cd "$(dirname "$0")/../.." || exit 1
BIN=${1:-build}/tests/bench
ROUNDS=${ROUNDS:-7} MS=${MS:-200} IDLE=${IDLE:-10000}
OPS=${OPS:-set get add wait} CLIENTS=${CLIENTS:-1 8 64}
ulimit -n "$(ulimit -Hn)"
RAW=$(mktemp) || exit 1
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -f "$RAW"' EXIT

# start NAME COMMAND...: the server's port and pid go into port[NAME] and pid[NAME]
declare -A port pid kind=([dlaunch]=newest [floor]=floor [torch]=113)
start() {
    local name=$1 fd; shift
    exec {fd}< <(exec "$@")
    pid[$name]=$! pids+=($!)
    read -r -t 60 -u "$fd" "port[$name]" || { echo "bench-store: $name does not start"; exit 1; }
}
start dlaunch "$BIN/store_serve"
start floor "$BIN/bench_store" floor
servers=(dlaunch floor)
if /usr/bin/python3 -c 'from torch.distributed import TCPStore' 2>/dev/null; then
    start torch /usr/bin/python3 -c '
import datetime, signal
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, 1, True, datetime.timedelta(seconds=60))
print(store.port, flush=True)
signal.pause()'
    servers+=(torch)
else
    echo "bench-store: torch is left out: python3-torch is not installed"
fi

cpu_ns() { cat /proc/"$1"/task/*/schedstat 2>/dev/null | awk '{s += $1} END {printf "%.0f\n", s}'; }

# measure WHERE PREFIX...: one round of everything
measure() {
    local where=$1 op n s before after out; shift
    for op in $OPS; do
        for n in $CLIENTS; do
            for s in "${servers[@]}"; do
                before=$(cpu_ns "${pid[$s]}")
                out=$(timeout 60 "$@" "$BIN/bench_store" run "${port[$s]}" "${kind[$s]}" "$op" "$n" "$MS") ||
                    { echo "bench-store: $s, $op with $n clients: failed"; continue; }
                after=$(cpu_ns "${pid[$s]}")
                echo "$where $op $n $s $out $((after - before))"
            done
        done
    done
}

pin_servers() { local s; for s in "${servers[@]}"; do taskset -apc "$1" "${pid[$s]}" >/dev/null; done; }

all_cpus=$(taskset -pc $$ | sed 's/.*: //')
for ((round = 0; round < ROUNDS; round++)); do
    measure all env >>"$RAW"
    pin_servers 0
    measure cpu0 taskset -c 0 >>"$RAW"
    pin_servers "$all_cpus"
done
if [ "$IDLE" -gt 0 ]; then
    for s in "${servers[@]}"; do
        exec {fd}< <(exec "$BIN/bench_store" idle "${port[$s]}" "${kind[$s]}" "$IDLE")
        pids+=($!)
        if read -r -t 120 -u "$fd" line; then
            echo "$s: $IDLE clients connected, each answered once: ${line#ready }"
        else
            echo "$s: $IDLE clients could not be connected within 120 s"
        fi
    done
    for ((round = 0; round < ROUNDS; round++)); do
        CLIENTS=64 measure idle env >>"$RAW"
    done
fi

# op, clients, then for each server p50 p99 ops/s cpu; ratios of dlaunch to the others
awk -v ncpus="$(nproc)" -v servers="${servers[*]}" -v ms="$MS" -v idle="$IDLE" '
function median(key) { return median_of(vals[key]) }
function median_of(list,   a, n, i, j, t) {
    n = split(list, a, " ")
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && a[j - 1] + 0 > a[j] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    return n ? (a[int((n + 1) / 2)] + a[int((n + 2) / 2)]) / 2 : 0
}
# The median of what one server has, as a multiple of what the other had in the same round.
function ratio(row, what, one, other,   a, b, n, i, list) {
    n = split(vals[row, one, what], a, " ")
    if (split(vals[row, other, what], b, " ") != n) return 0
    for (i = 1; i <= n; i++) if (b[i] > 0) list = list " " a[i] / b[i]
    return median_of(list)
}
function bars(   i, r, q, worst, of, ops, op, where, torch, list, floors, cpus, bound, least) {
    for (i = 1; i <= nrows; i++) {
        split(rows[i], r, " ")
        q = ratio(rows[i], "p50", "dlaunch", "floor")
        if (r[1] != "idle" && q > worst) { worst = q; of = r[2] " with " r[3] " client" (r[3] > 1 ? "s" : "") ", " title[r[1]] }
    }
    printf "\nbar: round trip (p50) beside the echo server, the worst of all rows: %.2f x (%s), at most 1.3 x (%s)\n", worst, of, (worst <= 1.3 ? "met" : "missed")
    if (!("torch" in known)) return
    least = 1e9
    for (i = 1; i <= nrows; i++) {
        split(rows[i], r, " ")
        if (r[1] != "all" || r[3] != 64) continue
        q = ratio(rows[i], "rate", "dlaunch", "torch")
        if (q < least) least = q
        list = list sprintf(" %s %.2f", r[2], q)
        floors = floors sprintf(" %s %.2f", r[2], ratio(rows[i], "rate", "floor", "torch"))
        q = median(rows[i] SUBSEP "torch" SUBSEP "rate") * median(rows[i] SUBSEP "torch" SUBSEP "cpu") * 1e-6 / ncpus
        bound = bound sprintf(" %s %.2f", r[2], q < 1 ? 1 / (1 - q) : 0)
        cpus = cpus sprintf(" %s %.2f", r[2], 1 / ratio(rows[i], "cpu", "dlaunch", "torch"))
    }
    if (least < 1e9) {
        printf "operations for the same CPU time of the server, times torch:%s\n", cpus
        printf "rate with 64 clients, times torch, of the bare echo server:%s\n", floors
        printf "the same, of a server that takes no time (the clients have the CPUs to themselves):%s\n", bound
        printf "bar: rate with 64 clients, times torch:%s, at least 1.5 (%s)\n", list, (least >= 1.5 ? "met" : "missed")
    }
}
NF != 8 { print; next }
{
    row = $1 " " $2 " " $3
    if (!(row in seen)) { seen[row] = 1; rows[++nrows] = row }
    vals[row, $4, "p50"] = vals[row, $4, "p50"] " " $5
    vals[row, $4, "p99"] = vals[row, $4, "p99"] " " $6
    vals[row, $4, "rate"] = vals[row, $4, "rate"] " " $7
    vals[row, $4, "cpu"] = vals[row, $4, "cpu"] " " $8 / ($7 * ms * 1e-3) * 1e-3
}
END {
    n = split(servers, s, " ")
    for (k = 1; k <= n; k++) known[s[k]] = 1
    title["all"] = "all CPUs"; title["cpu0"] = "everything on CPU 0"
    title["idle"] = "all CPUs, " idle " idle clients more"
    for (i = 1; i <= nrows; i++) {
        split(rows[i], r, " ")
        if (r[1] != last) {
            printf "\n%s: usec p50, p99; thousand operations/s; usec of server CPU an operation\n%-5s %7s", title[r[1]], "op", "clients"
            for (k = 1; k <= n; k++) printf " | %8s %8s %6s %5s", s[k], "p99", "kops", "cpu"
            printf " | p50/floor"
            if (n > 2) printf "  rate/torch  cpu/torch"
            printf "\n"
            last = r[1]
        }
        printf "%-5s %7d", r[2], r[3]
        for (k = 1; k <= n; k++) {
            for (w = 1; w <= 4; w++) v[s[k], w] = median(rows[i] SUBSEP s[k] SUBSEP (w == 1 ? "p50" : w == 2 ? "p99" : w == 3 ? "rate" : "cpu"))
            printf " | %8.1f %8.1f %6.1f %5.2f", v[s[k], 1], v[s[k], 2], v[s[k], 3] / 1000, v[s[k], 4]
        }
        printf " | %9.2f", v["floor", 1] ? v["dlaunch", 1] / v["floor", 1] : 0
        if (n > 2) printf "  %10.2f  %9.2f", v["torch", 3] ? v["dlaunch", 3] / v["torch", 3] : 0, v["torch", 4] ? v["dlaunch", 4] / v["torch", 4] : 0
        printf "\n"
    }
    bars()
}' "$RAW"
