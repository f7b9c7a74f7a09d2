// SPDX-License-Identifier: Apache-2.0
// One schedule: a cluster is built, works under faults, then in peace until all jobs have ended.
#include "tests/sim/sim_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/job/job.h"
#include "common/plan/schema_list.h"
#include "tests/sim/sim_check.h"

// ---- kinds of jobs ----
static const struct job_kind {
    int ranks, steps, every, keep;
    bool async, best;
} shapes[] = {
    {1, 8, 3, 2, true, false},  {1, 12, 2, 1, true, true},  {2, 10, 3, 2, true, false},
    {2, 20, 1, 1, true, true},  {2, 14, 4, 3, false, true}, {3, 12, 3, 1, true, false},
    {4, 16, 2, 2, true, true},  {4, 9, 5, 3, false, false}, {2, 30, 2, 2, true, true},
    {6, 10, 3, 2, true, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };
static struct variant variants[SHAPES];

static void make_variant(int i)
{
    const struct job_kind *sh = &shapes[i];
    struct variant *v = &variants[i];
    struct arena a;
    struct buf out = {0};
    struct job job;
    struct job_errors errors = {0};
    char text[800];
    arena_init(&a);
    snprintf(v->name, sizeof v->name, "job%d", i);
    snprintf(text, sizeof text,
             "name: %s\n"
             "model: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n"
             "mesh: {dp: %d}\n"
             "data: {train: {images: /x, labels: /y}, eval: {images: /x, labels: /y}, batch: 12}\n"
             "eval: {every: 1}\n"
             "train: {steps: %d}\n"
             "checkpoint: {every: %d, keep: %d, dir: /ckpt, async: %s, best: %s}\n"
             "restart: {budget: 8}\n",
             v->name, sh->ranks, sh->steps, sh->every, sh->keep, sh->async ? "true" : "false",
             sh->best ? "eval_loss" : "none");
    if (job_parse(&a, &weft_schema, "sim", NULL, text, strlen(text), NULL, 0, &job, &errors)) {
        job_errors_print(&errors, &out);
        fprintf(stderr, "%s", buf_str(&out));
        abort();
    }
    job_print(&job, &out);
    v->resolved = strdup(buf_str(&out));
    v->ranks = sh->ranks;
    v->steps = sh->steps;
    v->every = sh->every;
    v->keep = sh->keep;
    v->best = sh->best;
    v->async = sh->async;
    buf_clear(&out);
    arena_clear(&a);
}

const struct variant *variant_at(int i)
{
    if (!variants[i].resolved)
        make_variant(i);
    return &variants[i];
}

int variant_count(void)
{
    return SHAPES;
}

// Returns what follows the line of the threads, which the first placement writes anew; *before: the
// bytes in front of it.
static const char *skip_threads(const char *resolved, size_t *before)
{
    const char *line = strstr(resolved, "\n  threads: ");
    *before = line ? (size_t)(line - resolved) : strlen(resolved);
    return line ? strchr(line + 1, '\n') : "";
}

static bool is_same_job(const char *submitted, const char *assigned)
{
    size_t n, m;
    const char *a = skip_threads(submitted, &n), *b = skip_threads(assigned, &m);
    return n == m && !memcmp(submitted, assigned, n) && !strcmp(a, b);
}

const struct variant *variant_of(const char *resolved)
{
    for (int i = 0; i < SHAPES; i++)
        if (variants[i].resolved && is_same_job(variants[i].resolved, resolved))
            return &variants[i];
    fprintf(stderr, "a rank is assigned a job that nobody submitted:\n%s", resolved);
    abort();
}

void world_free_all(void)
{
    for (int i = 0; i < SHAPES; i++) {
        free(variants[i].resolved);
        variants[i].resolved = NULL;
    }
    fiber_free_all();
}

// ---- building ----
static void begins(void *arg, uint64_t tag)
{
    (void)tag;
    host_boot(arg);
}

static void build_hosts(struct world *w)
{
    struct sim *s = &w->sim;
    w->nhosts = s->seed % 50 == 49 ? 20 + sim_below(s, 9) : 1 + sim_below(s, 4);
    for (int i = 0; i < w->nhosts; i++) {
        struct host *h = &w->hosts[i];
        h->w = w;
        h->index = i;
        h->ndevices = 1 + sim_below(s, 4);
        sim_hex(s, h->id);
        snprintf(h->name, sizeof h->name, "h%d", i);
        sim_after(s, sim_between(s, 0, S), begins, h, 0);
    }
}

// A machine with a copy of another's state directory: of the two only one may stay.
static void copy_one(struct world *w)
{
    struct sim *s = &w->sim;
    if (w->mix->gentle || !sim_chance(s, 60))
        return;
    struct host *from = &w->hosts[0], *h = &w->hosts[w->nhosts++];
    *h = *from;
    h->index = w->nhosts - 1;
    snprintf(h->name, sizeof h->name, "copy");
    h->twin = from->twin = true;
    sim_after(s, sim_between(s, S, 20 * S), begins, h, 0);
}

static void on_call(void *arg)
{
    world_moment(arg, MOMENT_DISK, fiber_proc());
}

static void quiet(void *arg, uint64_t tag)
{
    struct world *w = arg;
    (void)tag;
    TRACE(&w->sim, "world", "no more faults");
    fault_heal(w);
    client_watch(w);
}

static void build_storage(struct world *w)
{
    w->check = check_new(w);
    disk_init(&w->disk, &w->sim);
    w->disk.watch_arg = w;
    w->disk.on_rename = check_renamed;
    w->disk.on_call = on_call;
    w->disk.slow_per_mille = 30;
}

static void build_cluster(struct world *w)
{
    struct sim *s = &w->sim;
    w->mix = fault_mix_of(s->seed);
    w->lease = 10 * S;
    w->disk.eio_per_mille = w->mix->eio_per_mille;
    w->disk.slow_per_mille = w->mix->slow_per_mille ? w->mix->slow_per_mille : 30;
    w->db = dbase_new(w);
    sim_coordinator_start(w);
    build_hosts(w);
    client_begin(w, w->nhosts > 8 ? 6 + sim_below(s, 6) : 1 + sim_below(s, 3));
    copy_one(w);
    w->quiet_ns = sim_between(s, 6 * S, 30 * S);
    fault_plan(w);
    sim_after(s, w->quiet_ns, quiet, w, 0);
}

static void take_down(struct world *w)
{
    sim_coordinator_die(w);
    for (int i = 0; i < w->nhosts; i++)
        host_power_off(&w->hosts[i]);
    if (w->disk.open_fds && !w->sim.failed)
        sim_fail(&w->sim, "%d descriptors of the storage were left open", w->disk.open_fds);
    if (w->db)
        dbase_free(w->db);
}

enum { TOO_MANY = 4000000 };

void world_run(uint64_t seed, bool tracing, struct sim_result *out)
{
    struct world *w = calloc(1, sizeof *w);
    sim_init(&w->sim, seed, tracing);
    build_storage(w);
    build_cluster(w);
    while (!w->sim.failed && !w->done && sim_next(&w->sim))
        if (w->sim.handled > TOO_MANY)
            sim_fail(&w->sim, "over %d events: it runs in circles", TOO_MANY);
    if (!w->sim.failed)
        check_end(w);
    out->events = w->sim.handled;
    take_down(w);
    out->failed = w->sim.failed;
    memcpy(out->why, w->sim.why, sizeof out->why);
    sim_clear(&w->sim);
    free(w);
}
