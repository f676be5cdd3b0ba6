#!/bin/sh
# Ways to move bytes over TCP (tcp_ways.c): through loopback and, for root, between two network
# namespaces, as fast as the kernel copies, then with a rate and a delay.
#
#     bench-tcp.sh BUILD_DIR
set -eu
build=${1:-build}
ns=tcp-ways-$$

echo "through loopback, us:"
"$build/tests/bench/tcp_ways" 127.0.0.1
if [ "$(id -u)" != 0 ] || ! ip netns add "$ns" 2>/dev/null; then
    echo "SKIPPED: between namespaces: root is needed, and ip"
    exit 0
fi
trap 'ip netns del "$ns"' EXIT
ip link add "tw$$" type veth peer name eth0 netns "$ns"
ip addr add 10.213.7.1/30 dev "tw$$"
ip link set "tw$$" up
ip -n "$ns" addr add 10.213.7.2/30 dev eth0
ip -n "$ns" link set eth0 up
echo "between namespaces, us:"
"$build/tests/bench/tcp_ways" 10.213.7.2 "$ns"
if tc qdisc add dev "tw$$" root netem rate 10gbit delay 100us limit 10000 2>/dev/null &&
    tc -n "$ns" qdisc add dev eth0 root netem rate 10gbit delay 100us limit 10000; then
    echo "between namespaces, 10 Gbit/s and 100 us each way, us:"
    "$build/tests/bench/tcp_ways" 10.213.7.2 "$ns"
else
    echo "SKIPPED: with a rate and a delay: this kernel has no netem"
fi
