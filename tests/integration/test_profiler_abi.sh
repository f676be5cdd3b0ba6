#!/bin/bash
# Compares collectives/profiler/nccl_profiler_abi.h with NCCL's own headers of profiler plug-ins, versions 1 to 6: by the
# compiler, field by field. NCCL_SOURCE: the folder of NCCL's source.
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
source=${NCCL_SOURCE:-}
if [ -z "$source" ]; then
    echo "SKIPPED: NCCL's headers of profiler plug-ins: NCCL_SOURCE does not name a copy of NCCL's source"
    echo "100%: Checks: 0, Failures: 0, Errors: 0"
    exit 0
fi
headers=
for place in plugins/profiler/example/nccl ext-profiler/example/nccl; do
    [ -f "$source/$place/profiler.h" ] && headers=$source/$place
done
[ -n "$headers" ] || { echo "profiler_abi: $source has no plugins/profiler/example/nccl/profiler.h" >&2; exit 1; }

# same VERSION OUR_FIELD THEIR_FIELD...: of their event of that version
{
    cat <<'C'
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "err.h"
#include "profiler.h"
#include "collectives/profiler/nccl_profiler_abi.h"
#define SAME(version, ours, theirs)                                                                  \
    _Static_assert(offsetof(struct nccl_event, ours) ==                                              \
                       offsetof(ncclProfilerEventDescr_v##version##_t, theirs), #ours);              \
    _Static_assert(sizeof(((struct nccl_event *)0)->ours) ==                                         \
                       sizeof(((ncclProfilerEventDescr_v##version##_t *)0)->theirs), #ours)
_Static_assert(NCCL_EVENT_GROUP == ncclProfileGroup && NCCL_EVENT_COLL == ncclProfileColl &&
               NCCL_EVENT_P2P == ncclProfileP2p && NCCL_EVENT_PROXY_OP == ncclProfileProxyOp &&
               NCCL_EVENT_PROXY_STEP == ncclProfileProxyStep && NCCL_EVENT_KERNEL_CH == ncclProfileKernelCh, "bits");
C
    for v in 1 2 3 4 5 6; do
        [ -f "$headers/profiler_v$v.h" ] || { echo "profiler_abi: no version $v" >&2; exit 1; }
        case $v in 1) of=v1 ;; 2 | 3) of=v2 ;; *) of=v4 ;; esac
        both="SAME($v, %s, %s);\n"
        # shellcheck disable=SC2059
        {
            printf "$both" parent parentObj rank rank proxy_pid proxyOp.pid
            for f in seq:seqNumber func:func send:sendBuff recv:recvBuff count:count root:root dtype:datatype; do
                printf "$both" "coll_$of.${f%:*}" "coll.${f#*:}"
            done
            for f in func:func buf:buff dtype:datatype count:count peer:peer; do
                printf "$both" "p2p_$of.${f%:*}" "p2p.${f#*:}"
            done
            if [ "$v" -lt 4 ]; then
                for f in comm_name:name comm:commHash; do
                    printf "$both" "coll_$of.${f%:*}" "coll.${f#*:}" "p2p_$of.${f%:*}" "p2p.${f#*:}"
                done
            else
                printf "$both" coll_v4.nchannels coll.nChannels p2p_v4.nchannels p2p.nChannels
            fi
            if [ "$v" -ge 5 ]; then
                echo '_Static_assert(NCCL_EVENT_COLL_API == ncclProfileCollApi, "bits");'
                printf "$both" coll_api.func collApi.func coll_api.count collApi.count coll_api.captured collApi.graphCaptured
            fi
            [ "$v" -lt 5 ] || printf "$both" coll_v4.parent_group coll.parentGroup p2p_v4.parent_group p2p.parentGroup type type
            for f in start:startEvent stop:stopEvent record:recordEventState finalize:finalize init:init name:name; do
                echo "_Static_assert(offsetof(struct nccl_profiler, ${f%:*}) == offsetof(ncclProfiler_v${v}_t, ${f#*:}), \"$f\");"
            done
        }
    done
    echo '_Static_assert(offsetof(ncclProfilerEventDescr_v1_t, type) == 0 && sizeof(((ncclProfilerEventDescr_v4_t *)0)->type) == 1, "type");'
} >"$tmp/abi.c"
"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -I. -I"$headers" -fsyntax-only "$tmp/abi.c" || exit 1
# The types of the functions, as the compiler compares them, but for structs that only the names tell apart.
cat >"$tmp/init.c" <<'C'
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include "err.h"
#include "profiler.h"
static int is_v1(ncclResult_t (*f)(void **, int *)) { return f != NULL; }
static int is_v4(ncclResult_t (*f)(void **, int *, const char *, uint64_t, int, int, int, ncclDebugLogger_t)) { return f != NULL; }
static int is_v5(ncclResult_t (*f)(void **, uint64_t, int *, const char *, int, int, int, ncclDebugLogger_t)) { return f != NULL; }
int check(ncclProfiler_v1_t *a, ncclProfiler_v2_t *b, ncclProfiler_v3_t *c, ncclProfiler_v4_t *d, ncclProfiler_v5_t *e, ncclProfiler_v6_t *f);
int check(ncclProfiler_v1_t *a, ncclProfiler_v2_t *b, ncclProfiler_v3_t *c, ncclProfiler_v4_t *d, ncclProfiler_v5_t *e, ncclProfiler_v6_t *f)
{
    return is_v1(a->init) + is_v1(b->init) + is_v1(c->init) + is_v4(d->init) + is_v5(e->init) + is_v5(f->init);
}
C
"${CC:-cc}" -std=gnu11 -D_GNU_SOURCE -Werror=incompatible-pointer-types -I"$headers" -fsyntax-only "$tmp/init.c" || exit 1
echo "profiler_abi: versions 1 to 6 are as in $headers"
echo "100%: Checks: 1, Failures: 0, Errors: 0"
