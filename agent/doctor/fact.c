#include "agent/doctor/fact.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/report/json_text.h"
#include "core/mem.h"

struct object;

struct field {
    const char *name; /* a.b: b in the object a */
    enum {
        TEXT,
        NUMBER,
        FLAG,
        JSON,
        TEXTS, /* [text, ...] */
        WORDS, /* {name: value, ...} */
        LIST,  /* [object, ...] */
        NAMED, /* {name: object, ...}; the name is the first member */
    } kind;
    size_t at;
    const struct object *of; /* LIST, NAMED */
};

struct object {
    const struct field *fields;
    size_t n, size;
};

#define FACT(s, kind, member)                    \
    {                                            \
#member, kind, offsetof(s, member), NULL \
    }
#define OBJECT(name, type) \
    static const struct object name = {name##_fields, ARRAY_LEN(name##_fields), sizeof(type)}

static const struct field interface_fields[] = {
    FACT(struct interface_facts, FLAG, up),           FACT(struct interface_facts, NUMBER, mtu),
    FACT(struct interface_facts, NUMBER, speed_mbit), FACT(struct interface_facts, TEXT, duplex),
    FACT(struct interface_facts, TEXTS, addresses),
};
OBJECT(interface, struct interface_facts);

static const struct field gpu_fields[] = {
    FACT(struct gpu_facts, TEXT, bus),
    FACT(struct gpu_facts, FLAG, mig),
    FACT(struct gpu_facts, FLAG, lost),
    FACT(struct gpu_facts, TEXT, name),
    FACT(struct gpu_facts, NUMBER, used_bytes),
    FACT(struct gpu_facts, NUMBER, bytes),
    FACT(struct gpu_facts, NUMBER, processes),
    FACT(struct gpu_facts, NUMBER, pid),
    FACT(struct gpu_facts, NUMBER, ecc_uncorrected),
    FACT(struct gpu_facts, FLAG, remap_pending),
    FACT(struct gpu_facts, FLAG, remap_failed),
    FACT(struct gpu_facts, NUMBER, compute_mode),
    FACT(struct gpu_facts, FLAG, mig_mode),
    FACT(struct gpu_facts, NUMBER, pcie_width),
    FACT(struct gpu_facts, NUMBER, pcie_width_max),
};
OBJECT(gpu, struct gpu_facts);

#define NODE(kind, member) FACT(struct node_facts, kind, member)
#define FOLDER(m)                                                          \
    NODE(TEXT, m.path), NODE(NUMBER, m.bytes), NODE(NUMBER, m.free_bytes), \
        NODE(NUMBER, m.free_files), NODE(TEXT, m.error)
#define NAME(m)                                                                                 \
    NODE(TEXT, m.name), NODE(NUMBER, m.seconds), NODE(TEXT, m.error), NODE(TEXTS, m.addresses), \
        NODE(FLAG, m.loopback)

static const struct field node_fields[] = {
    NODE(NUMBER, node),
    NODE(TEXT, host),
    NODE(TEXT, addr),
    NODE(NUMBER, nproc),
    NODE(NUMBER, nodes),
    NODE(FLAG, gpus),
    NODE(TEXT, missing),
    NODE(NUMBER, clock_s),
    NODE(NUMBER, clock_error_s),
    NODE(NUMBER, limits.nofile),
    NODE(NUMBER, limits.memlock_bytes),
    NODE(NUMBER, limits.nproc),
    NODE(NUMBER, limits.file_bytes),
    NODE(NUMBER, limits.address_space_bytes),
    NODE(NUMBER, own_threads),
    NODE(NUMBER, threads_left),
    NODE(NUMBER, ports),
    NODE(NUMBER, cpus),
    NODE(NUMBER, cgroup.pids.limit),
    NODE(NUMBER, cgroup.pids.free),
    NODE(NUMBER, cgroup.memory.limit),
    NODE(NUMBER, cgroup.memory.free),
    NODE(NUMBER, memory.bytes),
    NODE(NUMBER, memory.available_bytes),
    FOLDER(shm),
    FOLDER(tmp),
    FOLDER(log_dir),
    NAME(hostname),
    NAME(meet),
    {"interfaces", NAMED, offsetof(struct node_facts, interfaces), &interface},
    NODE(WORDS, rdma),
    NODE(WORDS, variables),
    NODE(WORDS, versions),
    NODE(TEXT, program.path),
    NODE(NUMBER, program.bytes),
    NODE(TEXT, program.content),
    NODE(TEXT, program.lacks),
    NODE(TEXT, program_error),
    NODE(TEXT, python_error.path),
    NODE(TEXT, python_error.error),
    NODE(TEXT, node_check.command),
    NODE(TEXT, node_check.error),
    NODE(NUMBER, node_check.signal),
    NODE(NUMBER, node_check.status),
    NODE(JSON, node_check.answer),
    NODE(TEXT, node_check.output),
    NODE(TEXT, gpu.error),
    NODE(NUMBER, gpu.present),
    NODE(NUMBER, gpu.visible),
    {"gpu.list", LIST, offsetof(struct node_facts, gpu.list), &gpu},
};
OBJECT(node, struct node_facts);

#define PAIR(kind, member) FACT(struct pair_facts, kind, member)
static const struct field pair_fields[] = {
    PAIR(NUMBER, a),
    PAIR(NUMBER, b),
    PAIR(FLAG, local),
    PAIR(NUMBER, rtt_us),
    PAIR(NUMBER, bps),
    PAIR(NUMBER, measured),
    PAIR(NUMBER, error.at),
    PAIR(NUMBER, error.to),
    PAIR(NUMBER, error.stage),
    {"error.errno", NUMBER, offsetof(struct pair_facts, error.code), NULL},
};
OBJECT(pair, struct pair_facts);

/* ---------------------------------------------------------------------------------------- lists */

static void *add(struct fact_list *l, size_t size)
{
    l->v = xrealloc(l->v, (l->n + 1) * size);
    return memset((char *)l->v + l->n++ * size, 0, size);
}

static void init(const struct object *o, void *facts)
{
    memset(facts, 0, o->size);
    for (size_t i = 0; i < o->n; i++) {
        void *at = (char *)facts + o->fields[i].at;
        if (o->fields[i].kind == NUMBER)
            *(double *)at = NAN;
        else if (o->fields[i].kind == FLAG)
            *(signed char *)at = -1;
    }
}

static void *add_object(struct fact_list *l, const struct object *o)
{
    void *one = add(l, o->size);
    init(o, one);
    return one;
}

void fact_add_text(struct fact_list *l, const char *text)
{
    *(char **)add(l, sizeof(char *)) = xstrdup(text);
}

struct word_facts *fact_add_word(struct fact_list *l, const char *name, const char *value)
{
    struct word_facts *w = add(l, sizeof(*w));
    *w = (struct word_facts){xstrdup(name), xstrdup(value)};
    return w;
}

struct interface_facts *fact_add_interface(struct fact_list *l, const char *name)
{
    struct interface_facts *i = add_object(l, &interface);
    i->name = xstrdup(name);
    return i;
}

struct gpu_facts *fact_add_gpu(struct fact_list *l)
{
    return add_object(l, &gpu);
}

const char *fact_word(const struct fact_list *l, const char *name)
{
    const struct word_facts *w = l->v;
    for (size_t i = 0; i < l->n; i++) {
        if (strcmp(w[i].name, name) == 0)
            return w[i].value;
    }
    return NULL;
}

/* ---------------------------------------------------------------------------------------- the end
 */

static void fini(const struct object *o, void *facts);

static void fini_list(const struct field *f, struct fact_list *l)
{
    size_t size = f->kind == TEXTS ? sizeof(char *) : f->of ? f->of->size : 2 * sizeof(char *);
    for (size_t i = 0; i < l->n; i++) {
        char **one = (char **)((char *)l->v + i * size);
        if (f->kind != LIST)
            free(one[0]); /* a text, or a name */
        if (f->kind == WORDS)
            free(one[1]);
        if (f->of)
            fini(f->of, one);
    }
    free(l->v);
}

static void fini(const struct object *o, void *facts)
{
    for (size_t i = 0; i < o->n; i++) {
        const struct field *f = &o->fields[i];
        void *at = (char *)facts + f->at;
        if (f->kind == TEXT)
            free(*(char **)at);
        else if (f->kind == JSON)
            json_decref(*(json_t **)at);
        else if (f->kind >= TEXTS)
            fini_list(f, at);
    }
}

/* ------------------------------------------------------------------------------------- from JSON
 */

static void get(const struct object *o, void *facts, const json_t *j);

static void get_list(const struct field *f, struct fact_list *l, const json_t *j)
{
    const char *name;
    json_t *one;
    size_t i;
    json_array_foreach(j, i, one)
    {
        if (f->kind == TEXTS && json_is_string(one))
            fact_add_text(l, json_string_value(one));
        else if (f->kind == LIST && json_is_object(one))
            get(f->of, add_object(l, f->of), one);
    }
    json_object_foreach((json_t *)j, name, one)
    {
        if (f->kind == WORDS && json_is_string(one)) {
            fact_add_word(l, name, json_string_value(one));
        } else if (f->kind == NAMED && json_is_object(one)) {
            char **to = add_object(l, f->of);
            to[0] = xstrdup(name);
            get(f->of, to, one);
        }
    }
}

static const json_t *value_at(const json_t *j, const char *path)
{
    while (j && *path) {
        char key[64];
        size_t len = strcspn(path, ".");
        snprintf(key, sizeof(key), "%.*s", (int)len, path);
        j = json_object_get(j, key);
        path += len + (path[len] == '.');
    }
    return j;
}

static void get(const struct object *o, void *facts, const json_t *j)
{
    for (size_t i = 0; i < o->n; i++) {
        const struct field *f = &o->fields[i];
        void *at = (char *)facts + f->at;
        const json_t *v = value_at(j, f->name);
        if (f->kind == TEXT && json_is_string(v))
            *(char **)at = xstrdup(json_string_value(v));
        else if (f->kind == NUMBER && json_is_number(v))
            *(double *)at = json_number_value(v);
        else if (f->kind == FLAG && json_is_boolean(v))
            *(signed char *)at = json_is_true(v);
        else if (f->kind == JSON)
            *(json_t **)at = json_incref((json_t *)v);
        else if (f->kind >= TEXTS && v)
            get_list(f, at, v);
    }
}

/* --------------------------------------------------------------------------------------- to JSON
 */

static json_t *put(const struct object *o, const void *facts);

static json_t *put_list(const struct field *f, const struct fact_list *l)
{
    json_t *j = f->kind == TEXTS || f->kind == LIST ? json_array() : json_object();
    for (size_t i = 0; i < l->n; i++) {
        const struct word_facts *w = (const struct word_facts *)l->v + i;
        const void *one = f->of ? (const char *)l->v + i * f->of->size : NULL;
        if (f->kind == TEXTS)
            json_array_append_new(j, json_of_text(((char **)l->v)[i]));
        else if (f->kind == LIST)
            json_array_append_new(j, put(f->of, one));
        else if (f->kind == WORDS)
            json_object_set_new(j, w->name, json_of_text(w->value));
        else
            json_object_set_new(j, *(char *const *)one, put(f->of, one));
    }
    return j;
}

static json_t *number_json(double n)
{
    bool whole = n > -1e15 && n < 1e15 && n == (double)(json_int_t)n;
    return whole ? json_integer((json_int_t)n) : json_real(n);
}

/* NULL: it is not known. */
static json_t *put_field(const struct field *f, const void *at)
{
    const char *text = f->kind == TEXT ? *(char *const *)at : NULL;
    if (f->kind >= TEXTS)
        return ((const struct fact_list *)at)->n ? put_list(f, at) : NULL;
    if (f->kind == NUMBER)
        return isnan(*(const double *)at) ? NULL : number_json(*(const double *)at);
    if (f->kind == FLAG)
        return *(const signed char *)at < 0 ? NULL : json_boolean(*(const signed char *)at);
    return f->kind == JSON ? json_incref(*(json_t *const *)at) : text ? json_of_text(text) : NULL;
}

static void set_at(json_t *j, const char *path, json_t *value)
{
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        char key[64];
        snprintf(key, sizeof(key), "%.*s", (int)(dot - path), path);
        if (!json_object_get(j, key))
            json_object_set_new(j, key, json_object());
        j = json_object_get(j, key);
    }
    json_object_set_new(j, path, value);
}

static json_t *put(const struct object *o, const void *facts)
{
    json_t *j = json_object();
    for (size_t i = 0; i < o->n; i++) {
        json_t *v = put_field(&o->fields[i], (const char *)facts + o->fields[i].at);
        if (v)
            set_at(j, o->fields[i].name, v);
    }
    return j;
}

/* ------------------------------------------------------------------------------------------------
 */

void node_facts_init(struct node_facts *f)
{
    init(&node, f);
}

void node_facts_fini(struct node_facts *f)
{
    fini(&node, f);
}

void node_facts_get(struct node_facts *f, const json_t *j)
{
    init(&node, f);
    get(&node, f, j);
}

json_t *node_facts_json(const struct node_facts *f)
{
    return put(&node, f);
}

void pair_facts_init(struct pair_facts *f)
{
    init(&pair, f);
}

json_t *pair_facts_json(const struct pair_facts *f)
{
    return put(&pair, f);
}
