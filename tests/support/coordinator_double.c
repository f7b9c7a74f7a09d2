// SPDX-License-Identifier: Apache-2.0
// A coordinator in name only: it answers the client's calls from a script, so that what the client
// prints, how it ends and how it connects again are tested by themselves. One job is known, by the
// id below, any start of it of at least 8 digits, and its name.
//
//   coordinator-double ADDRESS LOG [WORD…]
//
// LOG gets a line for each mutating call. A watch does not end with QUEUED. The words:
//
//   mute     takes a Submit and dies before it answers
//   break    dies after three updates of a Watch
//   apart    has a second host, and only that one has an address
//   moves    has another attempt once logs are followed, and ends when that call was given up
//   cuts     cuts followers of logs off three times, then ends the job; LOG gets how many lines were
//            asked for each time
//   pours    sends followers of logs a line every 10 ms, also after the job's end; a watcher of more
//            than states gets 4,000 steps before that end
//   bare     has no host with the job's logs
//   evals    sends watchers an evaluation with each update
//   sweep    has four jobs in its list, and 40 checkpoints in a job's history
//   wordy    says 900 letters of each job, also where it refuses
//   hostile  puts a second line, and what steers a terminal, into every text
//   STATE    FAILED, HELD, …: how the job ends
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "proto/weft.pb-c.h"

static char job_id[] = "0123456789abcdef0123456789abcdef", job_name[] = "small", mesh[] = "{dp: 2}",
            host_id[] = "aaaabbbbccccddddaaaabbbbccccdddd", cluster[] = "c1", cpu[] = "cpu";
enum { TEXT = 80, WORDY = 901 };
static char host_name[TEXT] = "w0", owner[TEXT] = "local", model[TEXT] = "cpu",
            ready[TEXT] = "ready", version[TEXT] = "0.1.0", store[TEXT] = "/store/small-01234567",
            kind[TEXT] = "started", words[WORDY] = "words of the coordinator",
            threads_why[TEXT] = "7 cores of w0 divided by 2 devices", sample[TEXT] = "once upon",
            line[TEXT] = "bare \377 line";

enum { UPDATES = 5, STEPS = 30, POURED = 100, POUR_MS = 10, REPORTED = 4000, RANKS = 2 };
static struct script {
    bool mute, breaks, hostile, apart, moves, cuts, pours;
    bool evals, bare, sweep;
    bool states; // alone are watched
    int ncut, npoured;
    uint64_t poured;            // `pours`: the call; 0: none
    uint64_t watch, first_logs; // `moves`: the calls
    Weft__V1__JobState end;
    const char *log;
    struct rpc *rpc;
} script = {.end = WEFT__V1__JOB_STATE__SUCCEEDED};

#define METHOD(Name, form, req, rep)                                                              \
    {                                                                                             \
        .path = "/weft.v1.Weft/" #Name, .shape = form, .request = &weft__v1__##req##__descriptor, \
        .reply = &weft__v1__##rep##__descriptor, .roles = RPC_CLIENT                              \
    }
enum { SUBMIT, ACT, JOBS, STATUS, WHY, WORKERS, CHECKPOINTS, WATCH, LOGS, METHODS };
static const struct rpc_method methods[METHODS] = {
    [SUBMIT] = METHOD(Submit, RPC_UNARY, submit_request, submit_reply),
    [ACT] = METHOD(Act, RPC_UNARY, act_request, act_reply),
    [JOBS] = METHOD(Jobs, RPC_UNARY, jobs_request, jobs_reply),
    [STATUS] = METHOD(Status, RPC_UNARY, job_request, job_status),
    [WHY] = METHOD(Why, RPC_UNARY, job_request, why_reply),
    [WORKERS] = METHOD(Workers, RPC_UNARY, workers_request, workers_reply),
    [CHECKPOINTS] = METHOD(Checkpoints, RPC_UNARY, job_request, checkpoints_reply),
    [WATCH] = METHOD(Watch, RPC_SERVER_STREAM, job_request, watch_update),
    [LOGS] = METHOD(Logs, RPC_SERVER_STREAM, logs_request, log_lines),
};

static void note(const char *what, const char *id)
{
    FILE *f = fopen(script.log, "ae");
    if (f) {
        fprintf(f, "%s %s\n", what, id);
        fclose(f);
    }
}

static char *hosts[] = {host_name};

static void fill_status(Weft__V1__JobStatus *s, int64_t step)
{
    weft__v1__job_status__init(s);
    s->job = job_id;
    s->name = job_name;
    s->state = step >= STEPS ? script.end : WEFT__V1__JOB_STATE__RUNNING;
    s->attempt = 2;
    s->step = step;
    s->steps = STEPS;
    s->exit =
        s->state == WEFT__V1__JOB_STATE__RUNNING ? -1 : s->state != WEFT__V1__JOB_STATE__SUCCEEDED;
    s->reported = true;
    s->loss = 1.0 / 0.0; // what cannot be said in JSON
    s->samples_per_s = 1234.5;
    s->mesh = mesh;
    s->n_hosts = 1;
    s->hosts = hosts;
    s->restarts = 1;
    s->checkpoint_step = step >= 10 ? 10 : -1;
    s->checkpoint_attempt = 1;
    s->ranks = RANKS;
    s->owner = owner;
    s->submitted_ms = 1700000000123;
    s->store = store;
    s->text = words;
    s->threads = 3;
    s->threads_why = threads_why;
}

static void fill_event(Weft__V1__Event *e, int64_t t_ms)
{
    weft__v1__event__init(e);
    e->job = job_id;
    e->t_ms = t_ms;
    e->state = WEFT__V1__JOB_STATE__STARTING;
    e->kind = kind;
    e->rank = -1;
    e->step = -1;
    e->text = words;
}

static bool knows(const char *target)
{
    return strcmp(target, job_name) == 0 ||
           (strlen(target) >= 8 && strncmp(target, job_id, strlen(target)) == 0);
}

// ---- answers ----

static void on_submit(const struct rpc_event *ev)
{
    const Weft__V1__SubmitRequest *q = (const void *)ev->message;
    Weft__V1__SubmitReply r;
    note("submit", q->request_id);
    if (script.mute)
        _exit(1);
    if (q->continues[0]) {
        rpc_finish(script.rpc, ev->call, RPC_FAILED_PRECONDITION, "it has come to step 20 already");
        return;
    }
    if (strstr(q->resolved, "name: refused")) {
        rpc_finish(script.rpc, ev->call, RPC_INVALID_ARGUMENT, "the job needs more than there is");
        return;
    }
    weft__v1__submit_reply__init(&r);
    r.job = job_id;
    r.name = job_name;
    rpc_reply(script.rpc, ev->call, &r.base);
}

static void on_act(const struct rpc_event *ev)
{
    const Weft__V1__ActRequest *q = (const void *)ev->message;
    Weft__V1__ActReply r;
    char what[32];
    snprintf(what, sizeof what, "act %d %s", (int)q->verb, q->why);
    note(what, q->target);
    if (strcmp(q->target, "found") == 0) {
        rpc_finish(script.rpc, ev->call, RPC_FAILED_PRECONDITION, "first `weft adopt` it");
        return;
    }
    if (strcmp(q->target, "ended") == 0) {
        rpc_finish(script.rpc, ev->call, RPC_FAILED_PRECONDITION, words);
        return;
    }
    weft__v1__act_reply__init(&r);
    bool of_host = q->verb >= WEFT__V1__VERB__CORDON && q->verb <= WEFT__V1__VERB__DRAIN;
    r.target = of_host ? host_id : job_id;
    r.text = words;
    rpc_reply(script.rpc, ev->call, &r.base);
}

// Four jobs of a sweep, submitted one, two, three and four hours ago.
static void fill_sweep(Weft__V1__JobStatus *s, int i)
{
    static char names[][40] = {"lr-1", "lr-2", "lr-3-with-a-name-that-is-rather-long", "lr-4"};
    static char sweep[] = "sweep", odd[] = "odd", *tags[] = {sweep, odd};
    static const Weft__V1__JobState states[] = {
        WEFT__V1__JOB_STATE__RUNNING, WEFT__V1__JOB_STATE__FAILED, WEFT__V1__JOB_STATE__SUCCEEDED,
        WEFT__V1__JOB_STATE__QUEUED};
    static const double losses[] = {3, 0.0 / 0.0, 1, 2};
    fill_status(s, 12);
    s->name = names[i];
    s->state = states[i];
    s->loss = losses[i];
    s->reported = i < 3;
    s->tags = tags;
    s->n_tags = i % 2 ? 1 : 2;
    s->submitted_ms = clock_wall_ms() - (i + 1) * INT64_C(3600000) + 60000;
}

static void on_jobs(const struct rpc_event *ev)
{
    const Weft__V1__JobsRequest *q = (const void *)ev->message;
    Weft__V1__JobsReply r;
    Weft__V1__JobStatus s[4], *all[] = {&s[0], &s[1], &s[2], &s[3]};
    weft__v1__jobs_reply__init(&r);
    fill_status(&s[0], q->all ? STEPS : 12);
    for (int i = 0; script.sweep && i < 4; i++)
        fill_sweep(&s[i], i);
    r.n_jobs = script.sweep ? 4 : 1;
    r.jobs = all;
    r.cluster = cluster;
    rpc_reply(script.rpc, ev->call, &r.base);
}

static void on_status(const struct rpc_event *ev)
{
    Weft__V1__JobStatus s;
    fill_status(&s, 5);
    rpc_reply(script.rpc, ev->call, &s.base);
}

static void on_why(const struct rpc_event *ev)
{
    static char queued[] = "queued", running[] = "running", held[] = "held";
    Weft__V1__WhyReply r;
    Weft__V1__JobStatus s;
    enum { SAVED = 40 };
    Weft__V1__Event e[2 + SAVED], *events[2 + SAVED];
    char saved[SAVED][40];
    Weft__V1__Spent spent[3], *spents[] = {&spent[0], &spent[1], &spent[2]};
    char *names[] = {queued, running, held};
    weft__v1__why_reply__init(&r);
    fill_status(&s, 12);
    for (int i = 0; i < 3; i++) {
        weft__v1__spent__init(&spent[i]);
        spent[i].what = names[i];
        spent[i].ms = 1000 * (i == 1 ? 3 : i + 1);
    }
    fill_event(&e[0], 1700000000123);
    fill_event(&e[1], 1700000001123);
    for (int i = 0; i < SAVED; i++) { // the last of them has more to say
        static char committed[] = "committed";
        fill_event(&e[2 + i], 1700000002123 + i * INT64_C(60000));
        e[2 + i].kind = committed;
        e[2 + i].step = 100 * (i + 1);
        snprintf(saved[i], sizeof saved[i], "checkpoint of step %d%s", 100 * (i + 1),
                 i + 1 < SAVED ? "" : ", the best");
        e[2 + i].text = saved[i];
    }
    for (int i = 0; i < 2 + SAVED; i++)
        events[i] = &e[i];
    r.status = &s;
    r.n_events = script.sweep ? 2 + SAVED : 2;
    r.events = events;
    r.n_spent = 3;
    r.spent = spents;
    r.next = words;
    rpc_reply(script.rpc, ev->call, &r.base);
}

static void on_workers(const struct rpc_event *ev)
{
    Weft__V1__WorkersReply r;
    static char w0_share[] = "0", w1_name[] = "w1", w1_address[] = "10.0.0.1";
    Weft__V1__WorkerStatus w, other, *one = &w, *both[] = {&w, &other};
    Weft__V1__DeviceStatus d[2], *devices[] = {&d[0], &d[1]};
    Weft__V1__Device about[2];
    weft__v1__workers_reply__init(&r);
    weft__v1__worker_status__init(&w);
    for (int i = 0; i < 2; i++) {
        weft__v1__device_status__init(&d[i]);
        weft__v1__device__init(&about[i]);
        about[i].index = i;
        about[i].kind = cpu;
        about[i].model = model;
        d[i].device = &about[i];
        d[i].rank = -1;
    }
    d[1].job = job_id;
    d[1].rank = 0;
    w.host = host_id;
    w.name = host_name;
    w.state = ready;
    w.version = version;
    w.n_devices = 2;
    w.devices = devices;
    w.share = w0_share;
    r.n_workers = 1;
    r.workers = script.apart ? both : &one;
    if (script.apart) { // another host, which has an address
        other = w;
        other.name = w1_name;
        other.share = other.address = w1_address;
        r.n_workers = 2;
    }
    rpc_reply(script.rpc, ev->call, &r.base);
}

static void on_checkpoints(const struct rpc_event *ev)
{
    Weft__V1__CheckpointsReply r;
    Weft__V1__Checkpoint c, *one = &c;
    weft__v1__checkpoints_reply__init(&r);
    weft__v1__checkpoint__init(&c);
    c.step = 10;
    c.attempt = 1;
    c.state = 2;
    c.bad = true;
    r.store = store;
    r.n_checkpoints = 1;
    r.checkpoints = &one;
    rpc_reply(script.rpc, ev->call, &r.base);
}

static void add_sample(Weft__V1__WatchUpdate *u)
{
    static Weft__Rank__StepReport report;
    static char *samples[] = {sample};
    weft__rank__step_report__init(&report);
    report.n_samples = 1;
    report.samples = samples;
    u->report = &report;
}

static void add_evaluation(Weft__V1__WatchUpdate *u, int64_t step)
{
    static Weft__Rank__StepReport report;
    weft__rank__step_report__init(&report);
    report.step = step;
    report.steps = STEPS;
    report.evaluated = true;
    u->report = &report;
}

static void say_status(uint64_t call, int64_t step, uint64_t attempt)
{
    Weft__V1__WatchUpdate u;
    Weft__V1__JobStatus s;
    weft__v1__watch_update__init(&u);
    fill_status(&s, step);
    s.attempt = attempt;
    u.status = &s;
    rpc_send(script.rpc, call, &u.base, NULL);
}

static void on_watch(const struct rpc_event *ev)
{
    if (script.moves || script.cuts || script.pours) {
        script.watch = ev->call;
        script.states = ((const Weft__V1__JobRequest *)(const void *)ev->message)->states;
        say_status(ev->call, 1, 2);
        return;
    }
    for (int i = 1; i <= UPDATES; i++) {
        Weft__V1__WatchUpdate u;
        Weft__V1__JobStatus s;
        Weft__V1__Event e;
        weft__v1__watch_update__init(&u);
        fill_status(&s, script.breaks ? i : STEPS * i / UPDATES);
        fill_event(&e, 1700000000123);
        u.status = &s;
        u.event = i == 1 ? &e : NULL;
        if (i == 1 && script.hostile)
            add_sample(&u);
        if (script.evals)
            add_evaluation(&u, STEPS * i / UPDATES);
        rpc_send(script.rpc, ev->call, &u.base, NULL);
        if (script.breaks && i == 3)
            return; // goes on when the process is killed
    }
    if (script.end != WEFT__V1__JOB_STATE__QUEUED)
        rpc_finish(script.rpc, ev->call, RPC_OK, "");
}

static void cut_off(uint64_t call, int lines)
{
    char told[20];
    snprintf(told, sizeof told, "%d", lines);
    note("lines", told);
    if (script.ncut++ < 3)
        rpc_finish(script.rpc, call, RPC_RESOURCE_EXHAUSTED, "the client reads too slowly");
    else
        say_status(script.watch, STEPS, 2);
}

static void say_reports(void)
{
    Weft__V1__WatchUpdate u;
    Weft__Rank__StepReport report;
    weft__v1__watch_update__init(&u);
    weft__rank__step_report__init(&report);
    u.report = &report;
    for (int i = 0; i < REPORTED; i++)
        rpc_send(script.rpc, script.watch, &u.base, NULL);
}

// The job ends after POURED lines.
static void pour_line(void)
{
    char text[TEXT];
    Weft__V1__LogLines m;
    weft__v1__log_lines__init(&m);
    snprintf(text, sizeof text, "line %d\n", script.npoured);
    m.rank = 1;
    m.attempt = 2;
    m.host = host_name;
    m.text.data = (uint8_t *)text;
    m.text.len = strlen(text);
    m.ends_at = ((int64_t)++script.npoured + 10) * TEXT; // rank 1 wrote more in between
    rpc_send(script.rpc, script.poured, &m.base, NULL);
    if (script.npoured != POURED)
        return;
    if (!script.states)
        say_reports();
    say_status(script.watch, STEPS, 2);
}

static void on_logs(const struct rpc_event *ev)
{
    const Weft__V1__LogsRequest *q = (const void *)ev->message;
    char text[2 * TEXT];
    if (q->rank >= RANKS) {
        rpc_finish(script.rpc, ev->call, RPC_INVALID_ARGUMENT, "the job has 2 ranks");
        return;
    }
    if (script.bare && !q->follow) {
        rpc_finish(script.rpc, ev->call, RPC_FAILED_PRECONDITION,
                   "no host that has its logs is here");
        return;
    }
    // As hosts answer: an attempt after the other, the newest first, and ranks in any order.
    static const struct {
        int rank, attempt, second;
    } pieces[] = {{0, 2, 7}, {0, 1, 5}, {1, 1, 6}};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        int rank = pieces[i].rank;
        snprintf(text, sizeof text, "2026-01-02T03:04:0%d.678Z info one\n%s\n", pieces[i].second,
                 line);
        Weft__V1__LogLines m;
        weft__v1__log_lines__init(&m);
        m.rank = rank;
        m.attempt = (uint64_t)pieces[i].attempt;
        m.host = host_name;
        m.text.data = (uint8_t *)text;
        m.text.len = strlen(text);
        m.ends_at = (int64_t)m.text.len;
        if ((q->rank < 0 || q->rank == rank) && (!q->attempt || q->attempt == m.attempt))
            rpc_send(script.rpc, ev->call, &m.base, NULL);
    }
    if (!q->follow) // a true one never ends those
        rpc_finish(script.rpc, ev->call, RPC_OK, "");
    else if (script.cuts)
        cut_off(ev->call, q->lines);
    else if (script.pours)
        script.poured = ev->call;
    else if (script.moves && !script.first_logs) {
        script.first_logs = ev->call;
        say_status(script.watch, 2, 3);
    }
}

static void on_closed(uint64_t call)
{
    if (call && call == script.first_logs)
        say_status(script.watch, STEPS, 3);
    if (call == script.poured)
        script.poured = 0;
}

static void (*const answers[METHODS])(const struct rpc_event *ev) = {
    [SUBMIT] = on_submit, [ACT] = on_act,
    [JOBS] = on_jobs,     [STATUS] = on_status,
    [WHY] = on_why,       [WORKERS] = on_workers,
    [WATCH] = on_watch,   [CHECKPOINTS] = on_checkpoints,
    [LOGS] = on_logs,
};

static bool is_about_known(const struct rpc_event *ev, long method)
{
    const void *m = ev->message;
    switch (method) {
    case LOGS:
        return knows(((const Weft__V1__LogsRequest *)m)->job);
    case ACT: // hosts and jobs in any state are known, but for one
        return strcmp(((const Weft__V1__ActRequest *)m)->target, "nosuch") != 0;
    case STATUS:
    case WHY:
    case CHECKPOINTS:
    case WATCH:
        return knows(((const Weft__V1__JobRequest *)m)->job);
    default:
        return true;
    }
}

static void answer(const struct rpc_event *ev)
{
    long method = ev->method - methods;
    if (is_about_known(ev, method))
        answers[method](ev);
    else
        rpc_finish(script.rpc, ev->call, RPC_NOT_FOUND, "no such job");
}

static void poison_texts(void)
{
    char *const texts[] = {host_name, owner, model, ready,  version,    store,
                           kind,      words, line,  sample, threads_why};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        strcat(texts[i], "\033[2J\xc2\x9b"
                         "1m\u202e!\nforged");
    script.hostile = true;
}

static void take_word(const char *word)
{
    if (strcmp(word, "hostile") == 0)
        poison_texts();
    else if (strcmp(word, "apart") == 0)
        script.apart = true;
    else if (strcmp(word, "moves") == 0)
        script.moves = true;
    else if (strcmp(word, "cuts") == 0)
        script.cuts = true;
    else if (strcmp(word, "pours") == 0)
        script.pours = true;
    else if (strcmp(word, "bare") == 0)
        script.bare = true;
    else if (strcmp(word, "sweep") == 0)
        script.sweep = true;
    else if (strcmp(word, "evals") == 0)
        script.evals = true;
    else if (strcmp(word, "wordy") == 0)
        memset(words, 'w', WORDY - 1);
    else if (strcmp(word, "mute") == 0)
        script.mute = true;
    else if (strcmp(word, "break") == 0)
        script.breaks = true;
    else
        script.end = (Weft__V1__JobState)protobuf_c_enum_descriptor_get_value_by_name(
                         &weft__v1__job_state__descriptor, word)
                         ->value;
}

int main(int argc, char **argv)
{
    struct rpc_server *server;
    struct rpc_event ev;
    struct err e = {0};
    if (argc < 3)
        return 2;
    script.log = argv[2];
    for (int i = 3; i < argc; i++)
        take_word(argv[i]);
    unlink(argv[1] + strlen("unix:"));
    struct rpc_server_options o = {.address = argv[1], .methods = methods, .nmethods = METHODS};
    if (rpc_open(&script.rpc, &e) || rpc_serve(script.rpc, &o, &server, NULL, 0, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    for (;;) {
        while (rpc_next(script.rpc, &ev)) {
            if (ev.kind == RPC_CALL)
                answer(&ev);
            else if (ev.kind == RPC_CLOSED)
                on_closed(ev.call);
            rpc_event_clear(&ev);
        }
        rpc_wait(script.rpc, script.poured ? POUR_MS * CLOCK_MS : -1);
        if (script.poured)
            pour_line();
    }
}
