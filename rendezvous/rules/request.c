#include "rendezvous/rules/request.h"

#include <string.h>

static const struct kind {
    const char *name;
    bool collected;
} kinds[] = {
    [REQUEST_RESTART] = {"restart", false},
    [REQUEST_KILL] = {"kill", false},
    [REQUEST_SIGNAL] = {"signal", false},
    [REQUEST_PRESENCE] = {"presence", true},
    [REQUEST_STACKS] = {"stacks", true},
    [REQUEST_TOP] = {"top", true},
    [REQUEST_OPERATIONS] = {"operations", true},
    [REQUEST_SUSPECT] = {"suspect", false},
    [REQUEST_HANG] = {"hang", false},
    [REQUEST_PACE] = {"pace", true},
    [REQUEST_SLOW] = {"slow", false},
    [REQUEST_DOCTOR] = {"doctor", false},
    [REQUEST_MODEX] = {"modex", false},
};

const char *request_name(enum request_kind k)
{
    return kinds[k].name;
}

bool request_is_collected(enum request_kind k)
{
    return kinds[k].collected;
}

void request_put_kind(struct buf *b, enum request_kind k)
{
    buf_str(b, kinds[k].name);
}

enum request_kind request_get_kind(struct rd *r, char name[REQUEST_NAME_MAX])
{
    char text[REQUEST_NAME_MAX] = "";
    rd_str(r, text, sizeof(text));
    for (int k = 0; k < REQUEST_KINDS && !r->bad; k++) {
        if (strcmp(kinds[k].name, text) == 0)
            return (enum request_kind)k;
    }
    if (name)
        memcpy(name, text, sizeof(text));
    r->bad = true;
    return REQUEST_KINDS;
}

static void put_bool(struct buf *b, bool v)
{
    buf_u8(b, v);
}

static bool get_bool(struct rd *r)
{
    uint8_t v = rd_u8(r);
    r->bad |= v > 1;
    return v == 1;
}

void request_encode(struct buf *b, const struct rdzv_request *m)
{
    request_put_kind(b, m->kind);
    buf_u64(b, m->id);
    buf_put(b, m->from.b, sizeof(m->from.b));
    switch (m->kind) {
    case REQUEST_RESTART:
        buf_str(b, m->restart.text);
        break;
    case REQUEST_KILL:
        buf_str(b, m->kill.text);
        break;
    case REQUEST_SIGNAL:
        buf_u8(b, (uint8_t)m->signal.signo);
        buf_str(b, m->signal.ranks);
        buf_str(b, m->signal.text);
        break;
    case REQUEST_TOP:
        buf_u32(b, m->top.most);
        break;
    case REQUEST_SUSPECT:
        buf_u32(b, m->suspect.left_ms);
        put_bool(b, m->suspect.in_place);
        break;
    case REQUEST_HANG:
        put_bool(b, m->hang.certain);
        put_bool(b, m->hang.kill);
        buf_str(b, m->hang.ranks);
        buf_str(b, m->hang.text);
        break;
    case REQUEST_PACE:
        buf_u32(b, m->pace.others);
        break;
    case REQUEST_SLOW:
        buf_str(b, m->slow.ranks);
        buf_str(b, m->slow.text);
        break;
    case REQUEST_DOCTOR:
        buf_str(b, m->doctor.question);
        buf_str(b, m->doctor.skipped);
        break;
    case REQUEST_MODEX:
        buf_u32(b, (uint32_t)m->modex.rank);
        break;
    case REQUEST_PRESENCE:
    case REQUEST_STACKS:
    case REQUEST_OPERATIONS:
    case REQUEST_KINDS:
        break;
    }
}

bool request_decode(struct rd *r, struct rdzv_request *m)
{
    char name[REQUEST_NAME_MAX] = "";
    memset(m, 0, sizeof(*m));
    m->kind = request_get_kind(r, name);
    m->id = rd_u64(r);
    const uint8_t *from = rd_take(r, sizeof(m->from.b));
    if (from)
        memcpy(m->from.b, from, sizeof(m->from.b));
    switch (m->kind) {
    case REQUEST_RESTART:
        rd_str(r, m->restart.text, sizeof(m->restart.text));
        break;
    case REQUEST_KILL:
        rd_str(r, m->kill.text, sizeof(m->kill.text));
        break;
    case REQUEST_SIGNAL:
        m->signal.signo = rd_u8(r);
        r->bad |= m->signal.signo >= 128;
        rd_str(r, m->signal.ranks, sizeof(m->signal.ranks));
        rd_str(r, m->signal.text, sizeof(m->signal.text));
        break;
    case REQUEST_TOP:
        m->top.most = rd_u32(r);
        break;
    case REQUEST_SUSPECT:
        m->suspect.left_ms = rd_u32(r);
        m->suspect.in_place = get_bool(r);
        break;
    case REQUEST_HANG:
        m->hang.certain = get_bool(r);
        m->hang.kill = get_bool(r);
        rd_str(r, m->hang.ranks, sizeof(m->hang.ranks));
        rd_str(r, m->hang.text, sizeof(m->hang.text));
        break;
    case REQUEST_PACE:
        m->pace.others = rd_u32(r);
        break;
    case REQUEST_SLOW:
        rd_str(r, m->slow.ranks, sizeof(m->slow.ranks));
        rd_str(r, m->slow.text, sizeof(m->slow.text));
        break;
    case REQUEST_DOCTOR:
        rd_str(r, m->doctor.question, sizeof(m->doctor.question));
        rd_str(r, m->doctor.skipped, sizeof(m->doctor.skipped));
        break;
    case REQUEST_MODEX:
        m->modex.rank = (int)rd_u32(r);
        r->bad |= m->modex.rank < 0;
        break;
    case REQUEST_KINDS:
        memcpy(m->unknown.name, name, sizeof(name));
        break;
    case REQUEST_PRESENCE:
    case REQUEST_STACKS:
    case REQUEST_OPERATIONS:
        break;
    }
    return rd_done(r);
}

struct rdzv_answer request_answer(const struct rdzv_request *r, const void *data, size_t len)
{
    return (struct rdzv_answer){
        .to = r->from, .kind = r->kind, .id = r->id, .data = data, .len = len};
}
