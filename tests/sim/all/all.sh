#!/bin/bash
# all.sh PROGRAM: searches all states of the worlds below, two at a time (SIM_JOBS): so many nodes, at most so
# many faults, of these kinds. Exits 1 when an invariant is broken, or when a world is not searched to its end.
set -u
cat <<'TEXT'
All states of small jobs. Kinds of faults: F a worker fails, S a request to stop, K a launcher is killed, V its
host vanishes, R a connection is reset, L it swallows all.
Bounded: one worker a node; one restart for failures; a job of two nodes needs both, one of three needs two and
elects; clocks run alike; messages take no time; what only one node sees follows at once (tests/README.md); who
is gone does not come back; no connections for heartbeats, no store, no dlaunch -H, no restart of single workers;
no launcher that is frozen (Z) and no connection that is held up (H): these searches are not known to end. Not
bounded: how long workers run.
TEXT
worlds="2 1 F
3 0 F
2 1 S
2 1 L
2 1 R
2 2 KV"
printf '%s\n' "$worlds" | xargs -P "${SIM_JOBS:-2}" -L 1 "$1"
