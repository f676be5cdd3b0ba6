/* thresholds.h: the sizes at which an operation or a message changes its way, inside a provider.
 * With the rules of algo_select.c, which choose the algorithms over TCP, this is all that selects
 * an algorithm or a transport; dlcoll_describe() prints both.
 *
 *     ROW(name, bytes, what it decides, where it was measured)
 *
 * In bytes; the same on every rank, for all must choose alike. "2 CPUs": a virtual machine with two
 * CPUs, the two ways in turn. "not recorded": nobody has kept the figures. */
#ifndef COLLECTIVES_API_THRESHOLDS_H
#define COLLECTIVES_API_THRESHOLDS_H

#include <stddef.h>

/* struct shm_tuning (shm/tuning.h) */
#define THRESHOLDS_SHM(ROW)                                                                      \
    ROW(inlined, 2048, "up to, of one rank: written with its arrival",                           \
        "2 CPUs, 2 ranks: all_reduce of 2 KB 0.24 us, through the slots 0.28")                   \
    ROW(flat, 128 * 1024,                                                                        \
        "all_reduce, reduce, up to, of all ranks together: each reduces everything; above: a "   \
        "slice",                                                                                 \
        "not recorded")                                                                          \
    ROW(root_pair, 1024 * 1024,                                                                  \
        "reduce of two ranks, up to, of both: the root reduces everything", "not recorded")      \
    ROW(direct, 4 * 1024, "reductions of shared buffers, from: from buffer to buffer",           \
        "not recorded")                                                                          \
    ROW(direct_stream, 4 * 1024 * 1024,                                                          \
        "slices of such reductions, from: results bypass the caches",                            \
        "2 CPUs, reduce of 16 MB: 1.25 ms, without 1.57")                                        \
    ROW(pull, 8 * 1024, "blocks, from: read out of the owner's memory",                          \
        "2 CPUs, 2 ranks: all_gather of 16 KB 1.5 us, staged 2.4")                               \
    ROW(pull_shared, 8 * 1024, "blocks in shared memory, from: likewise", "2 CPUs, with `pull`") \
    ROW(compare, 8 * 1024, "blocks, from: read only if that is timed to be faster than staged",  \
        "2 CPUs: staged is 1.5 to 2 times as fast with a shared cache, 6 times as slow without") \
    ROW(pull_crowded, 32 * 1024, "ranks share CPUs, blocks for one rank, from: read",            \
        "2 CPUs, 8 ranks: staged is not slower below")                                           \
    ROW(pull_crowded_shared, 32 * 1024, "ranks share CPUs, blocks in shared memory, from: read", \
        "not recorded")                                                                          \
    ROW(piece_few, 256 * 1024, "piece in a chunk: two ranks, or a reduction of up to four",      \
        "not recorded")                                                                          \
    ROW(piece_many, 32 * 1024, "piece in a chunk: reductions of more ranks", "not recorded")     \
    ROW(chunk_reduce, 512 * 1024,                                                                \
        "ranks share CPUs: a chunk of a reduction, of all ranks together",                       \
        "2 CPUs, 4 ranks: all_reduce of 4 MB 1.22 ms, with twice the chunk 1.35")                \
    ROW(piece_move, 64 * 1024, "piece in a chunk: data that is only copied", "not recorded")     \
    ROW(chunk_move, 256 * 1024, "a chunk of copies, where each rank has a block of its own",     \
        "not recorded")

/* struct hier_tuning (api/hier.h) */
#define THRESHOLDS_HIER(ROW)                                                               \
    ROW(lanes, 64 * 1024,                                                                  \
        "all_reduce, reduce, broadcast, from: by all lanes instead of one rank of a node", \
        "not recorded")

/* constants of p2p/p2p_state.h */
#define THRESHOLDS_P2P(ROW)                                                                      \
    ROW(P2P_EAGER_BYTES, 32 * 1024, "within a node, up to: sent without asking", "not recorded") \
    ROW(P2P_AHEAD_MOST, 256 * 1024, "over TCP, up to: sent without asking",                      \
        "2 CPUs, pingpong: 64 KB 8.9 us, asked 14.9; 256 KB 23.2, asked 28.2")                   \
    ROW(P2P_WINDOW_BYTES, 4 * 1024 * 1024,                                                       \
        "over TCP: bytes sent without asking, not yet received", "not recorded")

#endif
