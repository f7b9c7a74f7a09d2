// SPDX-License-Identifier: Apache-2.0
// A device that computes on the CPU but keeps its distance: its memory is none of the host's, and
// its streams do nothing until the host waits for them. Built as libweft_cuda.so of a folder of its
// own, it stands for an accelerator where there is none: what runs above the backend is the real
// thing, and whoever forgets to wait, waits for the wrong event, or touches device memory is found.
//
// Device memory is handed out as addresses without access; ops get the real place behind them. A
// stream is a list of commands, a graph's as well; a wait on an event runs the stream that records
// it just so far, a look at one a command further. Ops are those of libweft_cpu.so two folders up.
// WEFT_LATE_FAIL makes one thing fail: "capture" (what is captured cannot be a graph), "capture N"
// (nor can the Nth of all), "op N" (the Nth op, from 1, as a device's fault), "memory N" (over N bytes),
// "driver" (there is none). WEFT_LATE_DEVICES: how many, 2. Products have WEFT_LATE_CHOICES algorithms
// (3) that differ in nothing; which is the fastest is each process's luck. A device that is closed adds
// what it settled to the file WEFT_LATE_TOLD. A device that need not be deterministic, or has another
// WEFT_LATE_LIBRARY, has choices of its own; its bits are the CPU's all the same.
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/list.h"
#include "kernels/backend.h"
#include "tests/support/late.h"

enum command_kind { DO_OP, DO_COPY, DO_ZERO, DO_RECORD, DO_WAIT, DO_MARK, DO_CALL, DO_GRAPH };
struct command {
    struct list link;
    enum command_kind kind;
    struct op_call call;
    struct op_attr attr;
    char *to;
    const char *from;
    size_t bytes;
    struct event *event;
    struct stream_q *on;                               // WAIT: the stream that records
    uint64_t number;                                   // of the record
    uint64_t *words, value, add;                       // MARK
    int (*step)(void *ctx, bool *done, struct err *e); // CALL
    void *ctx;
    bool again; // CALL: it is not done
    struct graph *graph;
    struct list *next; // GRAPH that runs: its next command
};
struct graph {
    struct list commands;
};
struct region {
    struct list link;
    char *shown, *real;
    size_t bytes;
    bool borrowed; // the pages are another's
};
struct event {
    struct device *device;
    struct stream_q *on; // of the newest record
    uint64_t asked, done;
};
struct stream_q {
    struct list link, commands;
    struct device *device;
    struct graph *recording;
    bool runs; // its first command does
};
enum { KEYS = 512, SCRATCH = 32 << 20 };
struct choice {
    char key[120];
    int choice;
    bool settled;
};
struct device {
    struct choice choices[KEYS]; // sorted
    int nchoices;
    void *scratch;
    const struct backend *cpu;
    struct device *under;
    struct stream_q *under_q;
    struct list regions, streams;
    uint64_t allocated;
    int ordinal, deterministic;
    struct err broken; // the first failure is every later call's
    long ops;
};

static const char *failing(const char *what)
{
    const char *f = getenv("WEFT_LATE_FAIL");
    size_t n = strlen(what);
    return f && !strncmp(f, what, n) ? f + n : NULL;
}

static int broken(const struct device *d, struct err *e)
{
    return d->broken.code ? err_set(e, d->broken.code, "%s", d->broken.text) : 0;
}

// ---- commands ----------------------------------------------------------------------------------

static struct region *region_of(const struct device *d, const void *p)
{
    list_for_each (it, &d->regions) {
        struct region *r = list_entry(it, struct region, link);
        if ((const char *)p >= r->shown && (const char *)p < r->shown + r->bytes)
            return r;
    }
    return NULL;
}

static void *real(const struct device *d, const void *p)
{
    const struct region *r = region_of(d, p);
    union {
        const void *from;
        void *to;
    } host = {.from = p};
    return r ? r->real + ((const char *)p - r->shown) : host.to;
}

static int do_op(struct device *d, struct command *c)
{
    struct op_call call = c->call;
    const char *n = failing("op ");
    call.attr = c->call.attr ? &c->attr : NULL;
    if (n && ++d->ops == atol(n))
        return err_set(&d->broken, ERR_DEVICE, "late: %s: an injected fault", op_name(call.op));
    struct tensor *sides[] = {call.in, call.out};
    int counts[] = {call.nin, call.nout};
    for (int s = 0; s < 2; s++)
        for (int k = 0; k < counts[s]; k++) {
            if (!region_of(d, sides[s][k].data))
                return err_set(&d->broken, ERR_DEVICE, "late: %s: an operand is the host's",
                               op_name(call.op));
            sides[s][k].data = real(d, sides[s][k].data);
        }
    // The plan's is what a GPU's kernels ask for: the CPU's have their own.
    call.workspace = d->scratch;
    call.workspace_bytes = SCRATCH;
    return d->cpu->op.run[call.op](d->under_q, &call, &d->broken);
}

static int do_copy(struct device *d, struct command *c)
{
    memmove(real(d, c->to), real(d, c->from), c->bytes);
    return 0;
}

static int do_zero(struct device *d, struct command *c)
{
    memset(real(d, c->to), 0, c->bytes);
    return 0;
}

static int do_record(struct device *d, struct command *c)
{
    (void)d;
    c->event->done = c->number;
    return 0;
}

static int run_next(struct stream_q *q);

static int do_wait(struct device *d, struct command *c)
{
    int rc = 0;
    while (!rc && c->event->done < c->number)
        rc = list_empty(&c->on->commands) ? err_set(&d->broken, ERR_DEVICE, "late: lost record")
                                          : run_next(c->on);
    return rc;
}

// A host's thread looks on.
static int do_mark(struct device *d, struct command *c)
{
    (void)d;
    __atomic_store_n(&c->words[0], c->value, __ATOMIC_RELEASE);
    __atomic_fetch_add(&c->words[1], c->add, __ATOMIC_RELEASE);
    return 0;
}

static int do_call(struct device *d, struct command *c)
{
    bool done = false;
    int rc = c->step(c->ctx, &done, &d->broken);
    c->again = !rc && !done;
    return rc;
}

static int (*const carry_out[DO_GRAPH])(struct device *, struct command *) = {
    [DO_OP] = do_op,     [DO_COPY] = do_copy, [DO_ZERO] = do_zero, [DO_RECORD] = do_record,
    [DO_WAIT] = do_wait, [DO_MARK] = do_mark, [DO_CALL] = do_call};

// One command of a graph; true when it was the last.
static bool step_graph(struct device *d, struct command *c, int *rc)
{
    struct list *at = c->next ? c->next : c->graph->commands.next;
    if (at == &c->graph->commands)
        return true;
    struct command *x = list_entry(at, struct command, link);
    *rc = carry_out[x->kind](d, x);
    c->again = x->again;
    c->next = x->again ? at : at->next;
    return *rc || c->next == &c->graph->commands;
}

// While a call waits for other devices, what lies on this one's other streams goes on.
static void run_others(const struct stream_q *q)
{
    (void)sched_yield();
    list_for_each (it, &q->device->streams) {
        struct stream_q *other = list_entry(it, struct stream_q, link);
        if (other->runs || list_empty(&other->commands))
            continue;
        const struct command *c = list_entry(other->commands.next, struct command, link);
        if (c->kind != DO_WAIT || c->event->done >= c->number)
            (void)run_next(other);
    }
}

// It stays in front while it runs: a wait in it may come back to this stream for nothing earlier.
static int run_next(struct stream_q *q)
{
    struct command *c = list_entry(q->commands.next, struct command, link);
    int rc = broken(q->device, NULL);
    bool whole = true;
    q->runs = true;
    if (!rc && c->kind == DO_GRAPH)
        whole = step_graph(q->device, c, &rc);
    else if (!rc)
        rc = carry_out[c->kind](q->device, c);
    if (!rc && c->again)
        run_others(q);
    q->runs = false;
    if (!rc && (c->again || !whole))
        return 0;
    list_remove(&c->link);
    free(c);
    return rc;
}

static int add(struct stream_q *q, const struct command *what, struct err *e)
{
    struct command *c = malloc(sizeof *c);
    int rc = broken(q->device, e);
    if (!c || rc) {
        free(c);
        return rc ? rc : err_set(e, ERR_NOMEM, "late: no memory");
    }
    *c = *what;
    list_append(q->recording ? &q->recording->commands : &q->commands, &c->link);
    return 0;
}

static void drop(struct list *commands)
{
    list_for_each (it, commands) {
        list_remove(it);
        free(list_entry(it, struct command, link));
    }
}

static int late_op(struct stream_q *q, const struct op_call *call, struct err *e)
{
    struct command c = {.kind = DO_OP, .call = *call};
    if (call->attr)
        c.attr = *call->attr;
    return add(q, &c, e);
}

static int copy(struct stream_q *q, void *to, const void *from, size_t bytes, struct err *e)
{
    return add(q, &(struct command){.kind = DO_COPY, .to = to, .from = from, .bytes = bytes}, e);
}

static int fill_zero(struct stream_q *q, void *to, size_t bytes, struct err *e)
{
    return add(q, &(struct command){.kind = DO_ZERO, .to = to, .bytes = bytes}, e);
}

// ---- streams and events ------------------------------------------------------------------------

static int stream_new(struct device *d, enum stream_priority p, struct stream_q **to, struct err *e)
{
    (void)p;
    struct stream_q *q = calloc(1, sizeof *q);
    if (!q)
        return err_set(e, ERR_NOMEM, "late: no memory");
    q->device = d;
    list_init(&q->commands);
    list_append(&d->streams, &q->link);
    *to = q;
    return 0;
}

static void stream_free(struct stream_q *q)
{
    drop(&q->commands);
    list_remove(&q->link);
    free(q);
}

static int stream_sync(struct stream_q *q, struct err *e)
{
    if (q->recording)
        return err_set(e, ERR_DEVICE, "late: a stream that is captured cannot be waited for");
    while (!list_empty(&q->commands) && !run_next(q))
        ;
    return broken(q->device, e);
}

static int event_new(struct device *d, struct event **out, struct err *e)
{
    struct event *ev = calloc(1, sizeof *ev);
    if (!ev)
        return err_set(e, ERR_NOMEM, "late: no memory");
    ev->device = d;
    *out = ev;
    return 0;
}

static void event_free(struct event *ev)
{
    free(ev);
}

static int event_record(struct stream_q *q, struct event *ev, struct err *e)
{
    if (q->recording)
        return err_set(e, ERR_DEVICE, "late: an event in a capture");
    ev->on = q;
    return add(q, &(struct command){.kind = DO_RECORD, .event = ev, .number = ++ev->asked}, e);
}

static int event_wait(struct stream_q *q, struct event *ev, struct err *e)
{
    struct command c = {.kind = DO_WAIT, .event = ev, .on = ev->on, .number = ev->asked};
    if (q->recording)
        return err_set(e, ERR_DEVICE, "late: an event in a capture");
    return ev->asked ? add(q, &c, e) : broken(q->device, e);
}

// Each look at it lets one command pass, of a graph as well.
static int event_query(struct event *ev, bool *done, struct err *e)
{
    if (ev->done < ev->asked && !list_empty(&ev->on->commands))
        (void)run_next(ev->on);
    *done = ev->done == ev->asked;
    return broken(ev->device, e);
}

static int event_sync(struct event *ev, struct err *e)
{
    while (ev->done < ev->asked && !broken(ev->device, NULL))
        (void)run_next(ev->on);
    return broken(ev->device, e);
}

// ---- graphs ------------------------------------------------------------------------------------

static int capture_begin(struct stream_q *q, struct err *e)
{
    q->recording = calloc(1, sizeof *q->recording);
    if (!q->recording)
        return err_set(e, ERR_NOMEM, "late: no memory");
    list_init(&q->recording->commands);
    return broken(q->device, e);
}

static void graph_free(void *graph)
{
    drop(&((struct graph *)graph)->commands);
    free(graph);
}

static int capture_end(struct stream_q *q, void **graph, struct err *e)
{
    struct graph *g = q->recording;
    q->recording = NULL;
    static _Atomic long n;
    if (failing("capture") && (!*failing("capture") || ++n == atol(failing("capture")))) {
        graph_free(g);
        return err_set(e, ERR_DEVICE, "late: an injected fault of the capture");
    }
    *graph = g;
    return 0;
}

static int graph_launch(struct stream_q *q, void *graph, struct err *e)
{
    return add(q, &(struct command){.kind = DO_GRAPH, .graph = graph}, e);
}

static int mark(struct stream_q *q, uint64_t words[2], uint64_t value, uint64_t more, struct err *e)
{
    struct command c = {.kind = DO_MARK, .words = words, .value = value, .add = more};
    return region_of(q->device, words)
               ? err_set(e, ERR_DEVICE, "late: marks lie in the host's memory")
               : add(q, &c, e);
}

// ---- memory ------------------------------------------------------------------------------------

static int memory_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    const char *n = failing("memory ");
    struct region *r = calloc(1, sizeof *r);
    if (!r || (n && bytes > (size_t)atoll(n))) {
        free(r);
        return err_set(e, ERR_DEVICE, "late: device %d has no %zu bytes left", d->ordinal, bytes);
    }
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    r->shown = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
    r->real = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (r->shown == MAP_FAILED || r->real == MAP_FAILED) {
        free(r);
        return err_set(e, ERR_DEVICE, "late: no memory");
    }
    memset(r->real, 0xa5, bytes);
    r->bytes = bytes;
    d->allocated += bytes;
    list_append(&d->regions, &r->link);
    *out = r->shown;
    return 0;
}

// Device memory whose pages are a world's window.
static int map(struct device *d, void *pages, size_t bytes, void **out, struct err *e)
{
    struct region *r = calloc(1, sizeof *r);
    void *shown = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!r || shown == MAP_FAILED) {
        free(r);
        return err_set(e, ERR_NOMEM, "late: no memory");
    }
    *r = (struct region){.shown = shown, .real = pages, .bytes = bytes, .borrowed = true};
    d->allocated += bytes;
    list_append(&d->regions, &r->link);
    *out = shown;
    return 0;
}

static int call(struct stream_q *q, int (*step)(void *ctx, bool *done, struct err *e), void *ctx,
                struct err *e)
{
    return add(q, &(struct command){.kind = DO_CALL, .step = step, .ctx = ctx}, e);
}

static void memory_free(struct device *d, void *p)
{
    struct region *r = p ? region_of(d, p) : NULL;
    if (!r)
        return;
    munmap(r->shown, r->bytes);
    if (!r->borrowed)
        munmap(r->real, r->bytes);
    d->allocated -= r->bytes;
    list_remove(&r->link);
    free(r);
}

static int host_alloc(struct device *d, size_t bytes, void **out, struct err *e)
{
    (void)d;
    *out = aligned_alloc(64, (bytes + 63) / 64 * 64);
    return *out ? 0 : err_set(e, ERR_NOMEM, "late: no memory for %zu bytes", bytes);
}

static void host_free(struct device *d, void *p)
{
    (void)d;
    free(p);
}

// ---- choices -----------------------------------------------------------------------------------

static const char *header(const struct device *d)
{
    static char text[80];
    const char *library = getenv("WEFT_LATE_LIBRARY");
    snprintf(text, sizeof text, "algorithms late%s%.20s%s\n", library ? " " : "",
             library ? library : "", d->deterministic ? "" : ", not deterministic");
    return text;
}

static int ways(void)
{
    const char *n = getenv("WEFT_LATE_CHOICES");
    return n ? atoi(n) : 3;
}

static struct choice *choice_at(struct device *d, const char *key)
{
    int at = 0;
    while (at < d->nchoices && strcmp(d->choices[at].key, key) < 0)
        at++;
    if (at < d->nchoices && !strcmp(d->choices[at].key, key))
        return &d->choices[at];
    if (d->nchoices == KEYS)
        return NULL;
    memmove(&d->choices[at + 1], &d->choices[at], sizeof *d->choices * (size_t)(d->nchoices - at));
    d->choices[at] = (struct choice){.choice = -1};
    snprintf(d->choices[at].key, sizeof d->choices[at].key, "%s", key);
    d->nchoices++;
    return &d->choices[at];
}

static bool is_all_zero(const struct device *d, const struct tensor *t)
{
    const char *bytes = real(d, t->data);
    size_t n = (size_t)shape_count(&t->shape) * dtype_size(t->dtype);
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

// What the call would write is written over: nothing of value may lie there. A clock that runs
// while zeros are multiplied tells the wrong times of a real device.
static int tune(struct stream_q *q, const struct op_call *call, bool time, struct err *e)
{
    struct device *d = q->device;
    char key[120];
    size_t n = (size_t)snprintf(key, sizeof key, "%s", op_name(call->op));
    if (call->op != OP_MATMUL)
        return 0;
    if (time && (is_all_zero(d, &call->in[0]) || is_all_zero(d, &call->in[1])))
        return err_set(e, ERR_DEVICE, "late: an algorithm is timed on zeros");
    for (int k = 0; k < call->nin; k++)
        for (int i = 0; i < call->in[k].shape.n && n < sizeof key; i++)
            n += (size_t)snprintf(key + n, sizeof key - n, "%c%lld", i ? 'x' : ' ',
                                  (long long)call->in[k].shape.dim[i]);
    const struct tensor *out = &call->out[0];
    memset(real(d, out->data), 0x5a, (size_t)shape_count(&out->shape) * dtype_size(out->dtype));
    struct choice *c = choice_at(d, key);
    if (!c)
        return err_set(e, ERR_LIMIT, "late: too many products");
    if (!c->settled && (c->choice < 0 || c->choice >= ways()))
        c->choice = time ? (int)(getpid() % ways()) : 0;
    c->settled = true;
    return 0;
}

static int choices_read(struct device *d, const char *text, struct err *e)
{
    if (strncmp(text, header(d), strlen(header(d))))
        return err_set(e, ERR_UNSUPPORTED, "late: another device's algorithms");
    for (const char *at = strchr(text, '\n') + 1; *at; at = strchr(at, '\n') + 1) {
        char key[120];
        int choice;
        if (sscanf(at, "%119[^=]= %d", key, &choice) != 2)
            return err_set(e, ERR_INVALID, "late: no choice: %.40s", at);
        key[strlen(key) - 1] = 0;
        struct choice *c = choice_at(d, key);
        if (c && !c->settled)
            c->choice = choice;
    }
    return 0;
}

static int choices_write(struct device *d, struct buf *out, struct err *e)
{
    (void)e;
    buf_puts(out, header(d));
    for (int i = 0; i < d->nchoices; i++)
        buf_printf(out, "%s = %d\n", d->choices[i].key, d->choices[i].choice);
    return 0;
}

static void tell_choices(struct device *d)
{
    const char *path = getenv("WEFT_LATE_TOLD");
    FILE *f = path ? fopen(path, "ae") : NULL;
    for (int i = 0; f && i < d->nchoices; i++)
        if (d->choices[i].settled)
            fprintf(f, "%d %s = %d\n", (int)getpid(), d->choices[i].key, d->choices[i].choice);
    if (f)
        fclose(f);
}

// ---- the device --------------------------------------------------------------------------------

static int device_count(struct err *e)
{
    const char *n = getenv("WEFT_LATE_DEVICES");
    if (failing("driver"))
        return err_set(e, ERR_DEVICE, "late: no driver"), 0;
    return n ? atoi(n) : 2;
}

extern const struct backend weft_backend;
static int find_cpu(const struct backend **out, struct err *e)
{
    Dl_info self;
    char path[4200];
    if (!dladdr(&weft_backend, &self))
        return err_set(e, ERR_DEVICE, "late: where am I");
    snprintf(path, sizeof path, "%s", self.dli_fname);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 64, "../../libweft_cpu.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *out = lib ? dlsym(lib, "weft_backend") : NULL;
    return *out ? 0 : err_set(e, ERR_DEVICE, "late: %s", dlerror());
}

static void device_close(struct device *d)
{
    if (!d)
        return;
    tell_choices(d);
    list_for_each (it, &d->streams)
        stream_free(list_entry(it, struct stream_q, link));
    list_for_each (it, &d->regions)
        memory_free(d, list_entry(it, struct region, link)->shown);
    if (d->under)
        d->cpu->device.close(d->under);
    free(d->scratch);
    free(d);
}

static int device_open(const struct device_options *o, struct device **out, struct err *e)
{
    if (o->ordinal < 0 || o->ordinal >= device_count(e))
        return err_set(e, ERR_DEVICE, "late: there is no device %d", o->ordinal);
    struct device *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(e, ERR_NOMEM, "late: no memory");
    d->ordinal = o->ordinal;
    d->deterministic = o->deterministic;
    list_init(&d->regions);
    list_init(&d->streams);
    d->scratch = aligned_alloc(4096, SCRATCH);
    int rc = d->scratch ? find_cpu(&d->cpu, e) : err_set(e, ERR_NOMEM, "late: no memory");
    rc = rc ? rc : d->cpu->device.open(o, &d->under, e);
    rc = rc ? rc : d->cpu->stream.create(d->under, STREAM_USUAL, &d->under_q, e);
    if (rc)
        device_close(d);
    else
        *out = d;
    return rc;
}

static void device_info(const struct device *d, struct device_info *out)
{
    d->cpu->device.info(d->under, out);
    snprintf(out->model, sizeof out->model, "late %d", d->ordinal);
    out->deterministic = d->deterministic;
    out->shares_host = false;
    out->allocated = d->allocated;
}

static const backend_op ops[OP_COUNT] = {
#define OP(id, name, nin, nout, dtypes, kernel, whole, order, traits) [OP_##id] = late_op,
#include "common/op/ops.def"
};

static const struct backend_graph graphs = {
    .begin = capture_begin,
    .end = capture_end,
    .launch = graph_launch,
    .destroy = graph_free,
};

static const struct backend_choice choices = {
    .tune = tune,
    .read = choices_read,
    .write = choices_write,
};

__attribute__((visibility("default"))) const struct backend weft_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .device = {.count = device_count,
               .open = device_open,
               .close = device_close,
               .info = device_info},
    .memory = {.alloc = memory_alloc,
               .free = memory_free,
               .host_alloc = host_alloc,
               .host_free = host_free},
    .stream = {.create = stream_new,
               .destroy = stream_free,
               .sync = stream_sync,
               .copy = copy,
               .fill_zero = fill_zero,
               .mark = mark},
    .event = {.create = event_new,
              .destroy = event_free,
              .record = event_record,
              .wait = event_wait,
              .query = event_query,
              .sync = event_sync},
    .graph = &graphs,
    .choice = &choices,
    .op = {.run = ops},
};

extern const struct late weft_late;
__attribute__((visibility("default"))) const struct late weft_late = {.map = map, .call = call};
