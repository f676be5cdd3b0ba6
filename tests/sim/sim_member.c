/* Drives member_state as member.c does. */
#include "tests/sim/sim.h"

#include <stdio.h>

static void retick(struct sim_node *n)
{
    uint64_t at = member_state_deadline(n->m);
    if (at == UINT64_MAX)
        return;
    at = sim_when(n, at);
    at = at > now ? at : now + 1;
    if (n->tick_at <= at && n->tick_at > now)
        return;
    n->tick_at = at;
    sim_push((struct sim_event){
        .at = at, .kind = EV_TICK_MEMBER, .who = sim_index(n), .incarnation = n->incarnation});
}

void sim_member_drain(struct sim_node *n)
{
    struct member_action a;
    if (n->m)
        member_state_check(n->m);
    while (n->m && member_state_next(n->m, &a, sim_clock(n))) {
        struct buf b = BUF_INIT;
        switch (a.act) {
        case MEMBER_ACT_LOG:
            if (W.loud)
                printf("%12.6f node %d: %s\n", (double)now / 1e9, sim_index(n), a.text);
            break;
        case MEMBER_ACT_HELLO:
            rdzv_put_hello(&b, a.hello);
            sim_send_to_coordinator(n, b);
            break;
        case MEMBER_ACT_PEERS:
            rdzv_put_peers(&b, a.peers);
            sim_send_to_coordinator(n, b);
            break;
        case MEMBER_ACT_STATUS:
            rdzv_put_status(&b, a.status);
            sim_send_to_coordinator(n, b);
            break;
        case MEMBER_ACT_DISCONNECT:
            sim_beat_tell_member(n);
            sim_member_closes(n, a.reset ? RDZV_END_BROKEN : RDZV_END_CLOSED);
            break;
        case MEMBER_ACT_PREPARE:
            sim_agent_prepare(n, &a);
            break;
        case MEMBER_ACT_RUN:
            sim_agent_run(n, &a);
            break;
        case MEMBER_ACT_RESPAWN:
            sim_agent_respawn(n, &a.respawn);
            break;
        case MEMBER_ACT_STOP:
            sim_agent_stop(n, a.why);
            break;
        case MEMBER_ACT_FENCE:
            sim_agent_fence(n);
            break;
        case MEMBER_ACT_LEASE:
            agent_rules_lease(n->agent, a.until_ns, sim_clock(n));
            sim_agent_drain(n);
            break;
        case MEMBER_ACT_FINISH:
            sim_agent_finish(n, a.result);
            break;
        }
    }
    if (!n->m)
        return;
    if (member_state_wants_link(n->m) && n->link < 0 && !n->connecting)
        sim_reach_wanted(n);
    retick(n);
}

void sim_member_event(struct sim_event *e)
{
    struct sim_link *l = &W.links[e->who];
    struct sim_node *n = &W.nodes[l->node];
    if (!l->member_end || l->dead || !n->m || n->incarnation != l->incarnation)
        return;
    if (e->kind == EV_END_MEMBER) {
        l->member_end = false;
        sim_beat_tell_member(n);
        n->link = -1;
        member_state_disconnected(n->m, (enum rdzv_end)e->number, "the connection is gone",
                                  sim_clock(n));
        return;
    }
    struct rd r = rd_init(e->bytes.data + RDZV_FRAME_HEADER, e->bytes.len - RDZV_FRAME_HEADER);
    struct rdzv_view v = {0};
    struct rdzv_result res = {0};
    struct rdzv_refusal ref = {0};
    struct rank_table t = {0};
    struct rdzv_peers peers = {0};
    char text[RDZV_NOTICE_MAX];
    switch ((enum rdzv_msg)e->bytes.data[4]) {
    case RDZV_MSG_VIEW:
        CHECK("I10", rdzv_get_view(&r, &v), "bad view");
        sim_trace(e->again ? "view again" : "view", l->node, v.phase);
        sim_total.spares += v.spare;
        n->follows = l->to;
        n->follows_incarnation = l->to_incarnation;
        n->moved_ns = 0;
        n->heard_ns = now;
        n->eager = 0;
        member_state_view(n->m, &v, sim_clock(n));
        rdzv_view_fini(&v);
        if (member_state_joined(n->m))
            sim_beat_begin(e->who);
        break;
    case RDZV_MSG_TABLE:
        CHECK("I10", rank_table_decode(&r, &t, NULL) == 0, "bad table");
        member_state_table(n->m, &t);
        break;
    case RDZV_MSG_PEERS:
        CHECK("I10", rdzv_get_peers(&r, &peers), "bad list");
        member_state_peers(n->m, &peers);
        break;
    case RDZV_MSG_REPORT:
        CHECK("I10", rdzv_get_report(&r, &res), "bad report");
        member_state_report(n->m, &res);
        break;
    case RDZV_MSG_REFUSE:
        CHECK("I10", rdzv_get_refusal(&r, &ref), "bad refusal");
        sim_trace("refused", l->node, ref.retry);
        member_state_refused(n->m, &ref, sim_clock(n));
        break;
    default:
        CHECK("I10", rdzv_get_notice(&r, text), "bad notice");
        member_state_noticed(n->m, sim_clock(n));
        break;
    }
}
