// SPDX-License-Identifier: Apache-2.0
// A thousand hosts against one real coordinator, over real streams: the agents are the real ones
// (agent_step), each on its own connection; their ranks are pretended: ready at once, one step
// report a second. Prints what the coordinator costs and how long a client waits meanwhile.
//
//   bench_hosts ADDRESS PID HOSTS JOBS SECONDS [restart]
//
// JOBS jobs of HOSTS/JOBS ranks are submitted and must all run before the clock starts. Afterwards
// one line "waiting" is printed: whoever started this kills the coordinator and starts it again;
// the time from the first lost stream until every host is ready again and every job runs is printed
// then, and whether any attempt is a new one when the coordinator's grace is over.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "worker/agent/agent.h"

enum { SLOTS = 4, SUBMITS = 16, CALL_MS = 50, LEASE_S = 10, WATCHDOG_S = 300 };

static const struct rpc_method attach = {
    .path = "/weft.v1.Hosts/Attach",
    .shape = RPC_BIDI,
    .request = &weft__v1__up__descriptor,
    .reply = &weft__v1__down__descriptor,
};
static const struct rpc_method submit = {
    .path = "/weft.v1.Weft/Submit",
    .shape = RPC_UNARY,
    .request = &weft__v1__submit_request__descriptor,
    .reply = &weft__v1__submit_reply__descriptor,
};
static const struct rpc_method jobs = {
    .path = "/weft.v1.Weft/Jobs",
    .shape = RPC_UNARY,
    .request = &weft__v1__jobs_request__descriptor,
    .reply = &weft__v1__jobs_reply__descriptor,
};
static const struct rpc_method workers = {
    .path = "/weft.v1.Weft/Workers",
    .shape = RPC_UNARY,
    .request = &weft__v1__workers_request__descriptor,
    .reply = &weft__v1__workers_reply__descriptor,
};

// Somebody else's client: a thread with a connection of its own, so that what these thousand agents
// have to do does not count as the coordinator's time to answer.
struct client {
    const char *address;
    pthread_t thread;
    pthread_mutex_t lock; // of all below
    bool stop;
    int running, ready; // by the newest answer; -1: none since client_forget
    uint64_t attempts;  // the sum
    double *waits_ms;
    int nwaits, cap_waits;
};

struct slot {
    bool used, running;
    int64_t step, next_ns;
};
struct host {
    struct agent *agent;
    struct rpc_channel *channel;
    uint64_t call;
    int64_t connect_ns; // 0: no attempt pending
    struct slot slot[SLOTS];
    int number;
    char id[33], incarnation[33], name[32];
};
struct bench {
    struct rpc *rpc;
    const char *address;
    struct host *hosts;
    int nhosts, want_jobs;
    struct rpc_channel *submits;
    int unanswered; // of the submits
    struct client client;
    int64_t looked_ns, gone_ns; // gone: when the first stream ended; 0: none has
};

static void step(struct bench *b, struct host *h, const struct agent_event *ev);

// ---- pretended ranks ----

static void say(struct bench *b, struct host *h, int slot, const Weft__Rank__Frame *f)
{
    struct agent_event ev = {.kind = AGENT_EV_FRAME, .slot = slot, .frame = f};
    step(b, h, &ev);
}

static void spawn(struct bench *b, struct host *h, int slot)
{
    h->slot[slot] = (struct slot){.used = true};
    struct agent_event ev = {
        .kind = AGENT_EV_SPAWNED, .slot = slot, .ok = true, .pid = 100000 + slot};
    step(b, h, &ev);
    FRAME_BODY(body, Ready, ready);
    body.plan_hash = frame_text("one plan");
    FRAME(f, READY, ready, &body);
    say(b, h, slot, &f);
}

// Reports of all hosts are spread over the second.
static void begin(struct host *h, int slot)
{
    h->slot[slot].running = true;
    h->slot[slot].next_ns = clock_mono_ns() + (int64_t)(h->number % 1000) * CLOCK_MS;
}

static void report(struct bench *b, struct host *h, int slot, int64_t now)
{
    struct slot *s = &h->slot[slot];
    s->next_ns = now + CLOCK_S;
    struct page_view view = {.rank = 0, .step = ++s->step, .state = RANK_RUNNING};
    view.ops = (uint64_t)s->step;
    struct agent_event page = {.kind = AGENT_EV_PAGE, .slot = slot, .page = &view};
    step(b, h, &page);
    FRAME_BODY(body, StepReport, step_report);
    body.step = s->step;
    body.steps = 1000000;
    body.loss = 1.0 / (double)s->step;
    body.step_ms = 1000;
    FRAME(f, STEP_REPORT, step_report, &body);
    say(b, h, slot, &f);
}

static void end(struct bench *b, struct host *h, int slot, int code)
{
    if (!h->slot[slot].used)
        return;
    h->slot[slot] = (struct slot){0};
    struct agent_event ev = {
        .kind = AGENT_EV_ENDED, .slot = slot, .code = code, .log = "", .text = ""};
    step(b, h, &ev);
}

// ---- agents ----

static void storage(struct bench *b, struct host *h, const Weft__V1__Storage *s)
{
    Weft__V1__StorageDone done;
    weft__v1__storage_done__init(&done);
    done.op = s->op;
    done.job = s->job;
    done.attempt = s->attempt;
    done.attempt_id = s->attempt_id;
    done.ok = true;
    done.store = frame_text("/nowhere");
    struct agent_event ev = {.kind = AGENT_EV_STORAGE, .storage = &done};
    step(b, h, &ev);
}

static void act(struct bench *b, struct host *h, const struct agent_action *x)
{
    switch (x->kind) {
    case AGENT_CONNECT:
        h->connect_ns = clock_mono_ns() + x->wait_ns;
        return;
    case AGENT_DISCONNECT:
        rpc_cancel(b->rpc, h->call);
        return;
    case AGENT_SEND:
        (void)rpc_send(b->rpc, h->call, &x->up->base, NULL);
        return;
    case AGENT_SPAWN:
        spawn(b, h, x->slot);
        return;
    case AGENT_FRAME:
        if (x->frame->body_case == WEFT__RANK__FRAME__BODY_READY_DONE &&
            !x->frame->ready_done->called_off)
            begin(h, x->slot);
        else if (x->frame->body_case == WEFT__RANK__FRAME__BODY_STOP)
            end(b, h, x->slot, RANK_EXIT_DRAINED);
        return;
    case AGENT_KILL:
        end(b, h, x->slot, 128 + x->signal);
        return;
    case AGENT_STORAGE:
        storage(b, h, x->storage);
        return;
    case AGENT_CLEAR: {
        snprintf(h->incarnation, sizeof h->incarnation, "%032llx",
                 (unsigned long long)clock_mono_ns());
        struct agent_event ev = {.kind = AGENT_EV_CLEARED, .incarnation = h->incarnation};
        step(b, h, &ev);
        return;
    }
    case AGENT_EXIT:
        fprintf(stderr, "%s was told to exit with %d\n", h->name, x->code);
        exit(1);
    case AGENT_LOGS:
    case AGENT_REMEMBER:
    case AGENT_FORGET:
        return;
    }
}

static void step(struct bench *b, struct host *h, const struct agent_event *ev)
{
    struct arena a;
    arena_init(&a);
    struct agent_out out = {.arena = &a};
    struct agent_event timed = *ev;
    timed.now_ns = clock_mono_ns();
    agent_step(h->agent, &timed, &out);
    for (int i = 0; i < out.n; i++)
        act(b, h, &out.v[i]);
    arena_clear(&a);
}

static void tick(struct bench *b, struct host *h, int64_t now)
{
    if (h->connect_ns && now >= h->connect_ns) {
        h->connect_ns = 0;
        h->call = rpc_call(h->channel, &attach, NULL, 0, true, h);
        struct agent_event ev = {.kind = AGENT_EV_OPEN};
        step(b, h, &ev);
    }
    for (int i = 0; i < SLOTS; i++)
        if (h->slot[i].running && now >= h->slot[i].next_ns)
            report(b, h, i, now);
    int64_t due = agent_due(h->agent);
    if (due && now >= due) {
        struct agent_event ev = {.kind = AGENT_EV_TICK};
        step(b, h, &ev);
    }
}

static void open_hosts(struct bench *b)
{
    Weft__V1__Device device, *devices[] = {&device};
    weft__v1__device__init(&device);
    device.kind = frame_text("cpu");
    device.model = frame_text("pretended");
    device.memory = 1LL << 30;
    for (int i = 0; i < b->nhosts; i++) {
        struct host *h = &b->hosts[i];
        h->number = i;
        snprintf(h->id, sizeof h->id, "%032x", i + 1);
        snprintf(h->incarnation, sizeof h->incarnation, "%032x", 0x10000 + i);
        snprintf(h->name, sizeof h->name, "host-%04d", i);
        Weft__V1__Register about;
        weft__v1__register__init(&about);
        about.host = h->id;
        about.name = about.share = h->name;
        about.version = frame_text(WEFT_VERSION);
        about.address = frame_text("127.0.0.1");
        about.devices = devices;
        about.n_devices = 1;
        about.memory = 1LL << 34;
        struct agent_config c = {
            .incarnation = h->incarnation, .about = &about, .grace_ns = CLOCK_S};
        memcpy(c.seed, h->id, sizeof c.seed);
        h->agent = agent_new(&c);
        // Channels of equal options would share one connection.
        struct rpc_channel_options o = {.address = b->address,
                                        .keepalive_ns = 5 * CLOCK_S + i * CLOCK_MS};
        struct err e = {0};
        if (rpc_dial(b->rpc, &o, &h->channel, &e)) {
            fprintf(stderr, "bench_hosts: %s\n", e.text);
            exit(1);
        }
        struct agent_event ev = {.kind = AGENT_EV_TICK};
        step(b, h, &ev);
    }
}

// ---- the client beside them ----

static void keep_wait(struct client *k, double ms)
{
    if (k->nwaits == k->cap_waits) {
        k->cap_waits = k->cap_waits ? 2 * k->cap_waits : 1024;
        k->waits_ms = realloc(k->waits_ms, sizeof *k->waits_ms * (size_t)k->cap_waits);
        PRE(k->waits_ms != NULL);
    }
    k->waits_ms[k->nwaits++] = ms;
}

static void saw_jobs(struct client *k, const Weft__V1__JobsReply *r, double ms)
{
    pthread_mutex_lock(&k->lock);
    keep_wait(k, ms);
    k->running = 0;
    k->attempts = 0;
    for (size_t i = 0; i < r->n_jobs; i++) {
        k->running += r->jobs[i]->state == WEFT__V1__JOB_STATE__RUNNING;
        k->attempts += r->jobs[i]->attempt;
    }
    pthread_mutex_unlock(&k->lock);
}

static void saw_workers(struct client *k, const Weft__V1__WorkersReply *r)
{
    pthread_mutex_lock(&k->lock);
    k->ready = 0;
    for (size_t i = 0; i < r->n_workers; i++)
        k->ready += !strcmp(r->workers[i]->state, "ready");
    pthread_mutex_unlock(&k->lock);
}

static bool client_asks(struct client *k, struct rpc *r, struct rpc_channel *c, bool hosts_too)
{
    static const Weft__V1__JobsRequest jr = WEFT__V1__JOBS_REQUEST__INIT;
    static const Weft__V1__WorkersRequest wr = WEFT__V1__WORKERS_REQUEST__INIT;
    ProtobufCMessage *reply;
    int64_t start = clock_mono_ns();
    if (rpc_ask(r, c, &jobs, &jr.base, 5 * CLOCK_S, &reply, NULL, NULL))
        return false;
    saw_jobs(k, (const Weft__V1__JobsReply *)reply, (double)(clock_mono_ns() - start) / 1e6);
    protobuf_c_message_free_unpacked(reply, NULL);
    if (!hosts_too || rpc_ask(r, c, &workers, &wr.base, 5 * CLOCK_S, &reply, NULL, NULL))
        return !hosts_too;
    saw_workers(k, (const Weft__V1__WorkersReply *)reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    return true;
}

static void *client_main(void *arg)
{
    struct client *k = arg;
    struct rpc *r = NULL;
    struct rpc_channel *c = NULL;
    struct rpc_channel_options o = {.address = k->address, .max_backoff_ns = 200 * CLOCK_MS};
    struct timespec pause = {0, CALL_MS * CLOCK_MS};
    PRE(!rpc_open(&r, NULL) && !rpc_dial(r, &o, &c, NULL));
    for (bool stop = false; !stop;) {
        pthread_mutex_lock(&k->lock);
        bool hosts_too = k->ready < 0;
        stop = k->stop;
        pthread_mutex_unlock(&k->lock);
        (void)client_asks(k, r, c, hosts_too);
        nanosleep(&pause, NULL);
    }
    rpc_close(r);
    return NULL;
}

static void client_forget(struct client *k)
{
    pthread_mutex_lock(&k->lock);
    k->running = k->ready = -1;
    k->nwaits = 0;
    pthread_mutex_unlock(&k->lock);
}

// Are all hosts ready and all jobs running? If not, the hosts are counted again.
static bool client_sees(struct bench *b)
{
    struct client *k = &b->client;
    pthread_mutex_lock(&k->lock);
    bool all = k->running == b->want_jobs && k->ready == b->nhosts;
    if (!all && k->ready >= 0)
        k->ready = -1;
    pthread_mutex_unlock(&k->lock);
    return all;
}

// ---- events ----

static void on_event(struct bench *b, struct rpc_event *ev)
{
    struct host *h = ev->user;
    if (!h) { // an answer to Submit
        b->unanswered -= ev->kind == RPC_CLOSED;
        if (ev->kind == RPC_CLOSED && ev->code)
            fprintf(stderr, "bench_hosts: submit: %s\n", ev->text);
        return;
    }
    if (ev->kind == RPC_MESSAGE) {
        struct agent_event down = {.kind = AGENT_EV_DOWN,
                                   .down = (const Weft__V1__Down *)ev->message};
        step(b, h, &down);
        rpc_more(b->rpc, ev->call);
    } else if (ev->kind == RPC_CLOSED && ev->call == h->call) {
        b->gone_ns = b->gone_ns ? b->gone_ns : clock_mono_ns();
        struct agent_event closed = {.kind = AGENT_EV_CLOSED, .text = ev->text};
        step(b, h, &closed);
    }
}

static void turn(struct bench *b)
{
    struct rpc_event ev;
    (void)rpc_wait(b->rpc, 5 * CLOCK_MS);
    while (rpc_next(b->rpc, &ev)) {
        on_event(b, &ev);
        rpc_event_clear(&ev);
    }
    int64_t now = clock_mono_ns();
    if (now - b->looked_ns < 5 * CLOCK_MS)
        return;
    b->looked_ns = now;
    for (int i = 0; i < b->nhosts; i++)
        tick(b, &b->hosts[i], now);
}

static void submit_jobs(struct bench *b, int n)
{
    for (int i = 0; i < n; i++) {
        struct buf text = {0};
        int ranks = b->nhosts / n;
        buf_printf(&text,
                   "name: load-%d\nmodel: {program: mlp, inputs: 64, hidden: [8], classes: "
                   "4}\nmesh: {dp: %d}\n"
                   "data: {train: {images: i, labels: l}, batch: %d}\noptimizer: {kind: sgd}\n"
                   "schedule: {kind: constant, value: 0.1}\ntrain: {steps: 1000000}\ncheckpoint: "
                   "{dir: .}\n",
                   i, ranks, ranks);
        char id[33];
        snprintf(id, sizeof id, "%032x", 0x7000000 + i);
        Weft__V1__SubmitRequest r;
        weft__v1__submit_request__init(&r);
        r.request_id = id;
        r.resolved = frame_text(buf_str(&text));
        (void)rpc_call(b->submits, &submit, &r.base, 60 * CLOCK_S, true, NULL);
        buf_clear(&text);
        for (b->unanswered++; b->unanswered == SUBMITS;)
            turn(b);
    }
}

// ---- the numbers ----

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

static double cpu_s(int pid)
{
    char path[40], text[600];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')');
    unsigned long user = 0, sys = 0;
    if (!p ||
        sscanf(p + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2)
        return 0;
    return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

static long rss_mb(int pid)
{
    char path[40];
    long size = 0, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", pid);
    FILE *f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%ld %ld", &size, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return resident * sysconf(_SC_PAGESIZE) >> 20;
}

static void until_all_run(struct bench *b, int64_t start)
{
    client_forget(&b->client);
    while (!client_sees(b) && clock_mono_ns() - start < WATCHDOG_S * CLOCK_S) {
        int64_t until = clock_mono_ns() + CALL_MS * CLOCK_MS;
        while (clock_mono_ns() < until)
            turn(b);
    }
    double s = (double)(clock_mono_ns() - start) / 1e9;
    pthread_mutex_lock(&b->client.lock);
    printf("%d of %d hosts ready, %d of %d jobs running after %.2f s\n", b->client.ready, b->nhosts,
           b->client.running, b->want_jobs, s);
    pthread_mutex_unlock(&b->client.lock);
}

static void pass(struct bench *b, int seconds)
{
    int64_t until = clock_mono_ns() + seconds * CLOCK_S;
    while (clock_mono_ns() < until)
        turn(b);
}

static void measure(struct bench *b, int pid, int seconds)
{
    struct client *k = &b->client;
    pass(b, 3); // what the start left
    client_forget(k);
    double cpu = cpu_s(pid), own = cpu_s(getpid());
    int64_t start = clock_mono_ns();
    pass(b, seconds);
    double wall = (double)(clock_mono_ns() - start) / 1e9;
    cpu = cpu_s(pid) - cpu;
    own = cpu_s(getpid()) - own;
    pthread_mutex_lock(&k->lock);
    qsort(k->waits_ms, (size_t)k->nwaits, sizeof *k->waits_ms, by_value);
    printf("coordinator: %.1f %% of a core, %ld MB; all the hosts together: %.1f %%\n",
           100 * cpu / wall, rss_mb(pid), 100 * own / wall);
    if (k->nwaits)
        printf("a client's Jobs call: p50 %.2f ms, p99 %.2f ms of %d\n", k->waits_ms[k->nwaits / 2],
               k->waits_ms[k->nwaits * 99 / 100], k->nwaits);
    pthread_mutex_unlock(&k->lock);
}

// Told by who started this: the coordinator is killed now, and started again.
static void restart(struct bench *b)
{
    uint64_t attempts = b->client.attempts;
    b->gone_ns = 0;
    printf("waiting for a restart\n");
    fflush(stdout);
    int64_t start = clock_mono_ns();
    while (!b->gone_ns && clock_mono_ns() - start < WATCHDOG_S * CLOCK_S)
        turn(b);
    printf("killed: ");
    until_all_run(b, b->gone_ns);
    pass(b, LEASE_S * 3 / 2); // its grace ends
    client_forget(&b->client);
    pass(b, 1);
    pthread_mutex_lock(&b->client.lock);
    printf("one and a half leases later: %d of %d jobs running, attempts restarted: %lld\n",
           b->client.running, b->want_jobs, (long long)(b->client.attempts - attempts));
    pthread_mutex_unlock(&b->client.lock);
}

static int open_all(struct bench *b, struct err *e)
{
    struct rpc_channel_options o = {.address = b->address};
    b->hosts = calloc((size_t)b->nhosts, sizeof *b->hosts);
    PRE(b->hosts != NULL);
    b->client.address = b->address;
    pthread_mutex_init(&b->client.lock, NULL);
    int rc = rpc_open(&b->rpc, e);
    rc = rc ? rc : rpc_dial(b->rpc, &o, &b->submits, e);
    if (!rc && pthread_create(&b->client.thread, NULL, client_main, &b->client))
        rc = err_set(e, ERR_IO, "cannot start a thread");
    return rc;
}

static void close_all(struct bench *b)
{
    pthread_mutex_lock(&b->client.lock);
    b->client.stop = true;
    pthread_mutex_unlock(&b->client.lock);
    pthread_join(b->client.thread, NULL);
    rpc_close(b->rpc);
    for (int i = 0; i < b->nhosts; i++)
        agent_free(b->hosts[i].agent);
    free(b->hosts);
    free(b->client.waits_ms);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc < 6) {
        fprintf(stderr, "usage: bench_hosts ADDRESS PID HOSTS JOBS SECONDS [restart]\n");
        return 2;
    }
    struct bench b = {.address = argv[1], .nhosts = atoi(argv[3]), .want_jobs = atoi(argv[4])};
    if (open_all(&b, &e)) {
        fprintf(stderr, "bench_hosts: %s\n", e.text);
        return 1;
    }
    int64_t start = clock_mono_ns();
    open_hosts(&b);
    submit_jobs(&b, b.want_jobs);
    printf("start: ");
    until_all_run(&b, start);
    measure(&b, atoi(argv[2]), atoi(argv[5]));
    if (argc > 6)
        restart(&b);
    close_all(&b);
    return 0;
}
