// SPDX-License-Identifier: Apache-2.0
// What follows from a job's plan for whoever places it; see cluster_facts.h.
#include "coordinator/cli/render/cluster_facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/job/threads.h"

const char *const render_names[RENDER_KINDS] = {"slurm", "job", "jobset", "trainjob", "systemd"};

enum {
    PER_NODE = 8,     // devices that a node has where nobody says
    CORES = 4,        // of a device whose job leaves its threads open
    RATE = 100000000, // of a storage that nobody has measured
    STEP_S = 30,      // to end the step that is under way, and to commit
    LONGEST_S = 1000000,
    END_S = 30,   // from the save to the end of all processes
    OWN_MIB = 48, // of `weft run` beside its ranks, but for what planning takes
    PLANS = 2,    // at a time: by `weft run` and by the process that plans for its coordinator
    PLAN_STEP_MIB = 16, // to which that is rounded up, since paths are in it too
    PAGES_PERCENT = 10, // of what a rank holds: its page tables, stacks, and the compiler's graphs
};

// A job's name may hold what a label may not: then a digest of it keeps two names apart.
static void make_name(const char *name, char out[RENDER_NAME_MAX])
{
    enum { ROOM = RENDER_NAME_MAX - 1, DIGEST = sizeof "-123456" - 1 };
    size_t n = 0;
    if (name[0] < 'a' || name[0] > 'z')
        n = (size_t)snprintf(out, RENDER_NAME_MAX, "j-");
    for (const char *s = name; *s && n < ROOM; s++)
        out[n++] = strchr("abcdefghijklmnopqrstuvwxyz0123456789", *s) ? *s : '-';
    out[n] = 0;
    if (strcmp(out, name) == 0 && out[n - 1] != '-')
        return;
    n = n > ROOM - DIGEST ? ROOM - DIGEST : n;
    while (out[n - 1] == '-')
        n--;
    snprintf(out + n, RENDER_NAME_MAX - n, "-%06x", hash_fnv1a32(name) & 0xffffff);
}

static void add_fact(struct render_facts *f, const char *name, const char *text)
{
    PRE(f->nfacts < RENDER_FACTS);
    f->fact[f->nfacts++] = (struct render_fact){name, text};
}

static const char *print_bytes(struct arena *a, uint64_t bytes)
{
    struct buf text = {0};
    buf_bytes(&text, bytes);
    return buf_keep(&text, a);
}

// The fewest nodes that take equal shares of the devices.
static int count_nodes(struct render_facts *f, struct err *e)
{
    const struct job_resources *r = &f->job->resources;
    int devices = (int)r->devices, most = f->o->per_node;
    if (!most)
        most = f->o->kind == RENDER_SYSTEMD || devices < PER_NODE ? devices : PER_NODE;
    if (!f->o->per_node && r->hosts && r->hosts * most < devices)
        most = (int)((devices + r->hosts - 1) / r->hosts);
    for (f->nodes = (devices + most - 1) / most; devices % f->nodes; f->nodes++)
        ;
    f->per_node = devices / f->nodes;
    if (r->hosts && f->nodes > r->hosts)
        return err_set(e, ERR_INVALID,
                       "%d devices, at most %d on a node and on each the same, take %d nodes, and "
                       "resources.hosts is %" PRId64 ": change it, the mesh or --per-node",
                       devices, most, f->nodes, r->hosts);
    if (f->o->kind == RENDER_SYSTEMD && f->nodes > 1)
        return err_set(e, ERR_INVALID,
                       "it takes %d nodes, and a unit is for one machine: deploy/README.md says "
                       "how daemons are set up on several",
                       f->nodes);
    return 0;
}

// Ranks are row-major in the mesh, so the inner axes stay within a node as far as their product divides
// its devices.
static void describe_nodes(struct render_facts *f, const struct report *plan, struct arena *a)
{
    const struct mesh *m = &plan->compiled->mesh;
    axis_set across = 0;
    uint64_t sent = 0;
    for (int i = m->n - 1, inner = 1; i >= 0; i--) {
        inner *= m->axis[i].size;
        if (m->axis[i].size > 1 && f->per_node % inner != 0)
            across |= (axis_set)(1 << i);
    }
    for (int i = 0; i < plan->cost.nalong; i++)
        if (plan->cost.along[i].axes & across)
            sent += plan->cost.along[i].bytes;
    axis_set within = (axis_set)(mesh_all(m) & ~across);
    add_fact(f, "nodes",
             arena_printf(a, "%d of %d %s device%s%s", f->nodes, f->per_node,
                          job_device_kind(f->job->resources.kind), f->per_node == 1 ? "" : "s",
                          f->o->per_node ? "" : " (--per-node: how many a node has)"));
    if (within || across)
        add_fact(f, "mesh",
                 arena_printf(a, "%s%s%s%s%s", within ? axis_set_text(m, within, a) : "",
                              within ? " within a node" : "", within && across ? ", " : "",
                              across ? axis_set_text(m, across, a) : "",
                              across
                                  ? arena_printf(a,
                                                 " across nodes: a device sends up to %s a "
                                                 "step along %s",
                                                 print_bytes(a, sent), axis_set_text(m, across, a))
                                  : ""));
}

// Of the node that needs the most. What a GPU holds is no memory of the node.
static void count_memory(struct render_facts *f, const struct report *plan, struct arena *a)
{
    const bool cpu = f->job->resources.kind == JOB_CPU;
    uint64_t most[3] = {0}; // arena, staging, libraries
    for (int node = 0; node < f->nodes; node++) {
        uint64_t sum[3] = {0};
        for (int r = node * f->per_node; r < (node + 1) * f->per_node; r++) {
            int s = compiled_stage(plan->compiled, r);
            sum[0] += cpu ? plan->compiled->by_stage[s].arena : 0;
            sum[1] += plan->staging[s];
            sum[2] += plan->device->libraries;
        }
        if (sum[0] + sum[1] + sum[2] > most[0] + most[1] + most[2])
            memcpy(most, sum, sizeof most);
    }
    uint64_t all = most[0] + most[1] + most[2];
    uint64_t plan_mib = ((a->bytes >> 20) / PLAN_STEP_MIB + 1) * PLAN_STEP_MIB;
    uint64_t own_mib = OWN_MIB + PLANS * plan_mib;
    f->memory_mib = ((all + all / 100 * PAGES_PERCENT) >> 20) + 1 + own_mib;
    add_fact(
        f, "memory",
        arena_printf(a,
                     "%s a node: arena %s + libraries %s + staging %s, %d %% of that, and %" PRIu64
                     " MiB of weft run",
                     print_bytes(a, f->memory_mib << 20), print_bytes(a, most[0]),
                     print_bytes(a, most[2]), print_bytes(a, most[1]), PAGES_PERCENT, own_mib));
}

static void count_cores(struct render_facts *f, struct arena *a)
{
    int64_t threads = f->job->resources.threads;
    f->cores = (int)(threads ? threads : CORES) * f->per_node;
    add_fact(f, "cores",
             arena_printf(a, "%d a node: %d a device, %s", f->cores, f->cores / f->per_node,
                          threads ? "as resources.threads says"
                                  : "assumed; resources.threads says another"));
}

// A save may be under way when a job is asked to stop: the last one waits for it.
static void count_grace(struct render_facts *f, const struct report *plan, struct arena *a)
{
    const struct job_checkpoint *c = &f->job->checkpoint;
    int saves = c->every && c->async ? 2 : 1;
    f->checkpoint = f->job->train.steps ? plan->checkpoint : 0;
    f->rate = f->o->rate ? f->o->rate : RATE;
    uint64_t seconds = (f->checkpoint * (uint64_t)saves + f->rate - 1) / f->rate + STEP_S;
    f->grace_s = (int)(seconds < LONGEST_S ? (seconds + 9) / 10 * 10 : LONGEST_S);
    f->stop_s = f->grace_s + END_S;
    add_fact(f, "grace",
             arena_printf(a,
                          "%d s to save: %s%s at %" PRIu64
                          " MB a second%s, and %d s for a step; after %d s "
                          "all is killed",
                          f->grace_s, saves == 2 ? "twice " : "", print_bytes(a, f->checkpoint),
                          f->rate / 1000000,
                          f->o->rate ? "" : " (assumed; --write-rate says what was measured)",
                          STEP_S, f->stop_s));
}

int render_facts_make(const struct render_options *o, const struct job *job,
                      const struct report *plan, struct arena *a, struct render_facts *out,
                      struct err *e)
{
    *out = (struct render_facts){.o = o, .job = job};
    make_name(job->name, out->name);
    int rc = count_nodes(out, e);
    if (rc)
        return rc;
    describe_nodes(out, plan, a);
    count_memory(out, plan, a);
    count_cores(out, a);
    count_grace(out, plan, a);
    add_fact(
        out, "failures",
        arena_printf(a,
                     "exit 2, 65, 66, 76 and 78 fail the job, 75 and disruptions start it again "
                     "and do not count, others do: %" PRId64 " (restart.budget)",
                     job->restart.budget));
    return 0;
}

void render_head(const struct render_facts *f, const char *title, struct buf *out)
{
    enum { NAME_COLUMNS = 9 };
    buf_printf(
        out, "# %s\n# From the plan of job %s, by weft %s; render it again when the job changes.\n",
        title, f->job->name, WEFT_VERSION);
    for (int i = 0; i < f->nfacts; i++)
        buf_printf(out, "#   %-*s %s\n", NAME_COLUMNS, f->fact[i].name, f->fact[i].text);
}

void render_command(const struct render_facts *f, void (*word)(const char *text, struct buf *out),
                    const char *more, struct buf *out)
{
    if (f->o->program)
        word(f->o->program, out);
    buf_printf(out, "%s run --grace %ds", f->o->program ? "" : "weft", f->grace_s);
    for (int i = 0; i < f->o->nflags; i++) {
        buf_printf(out, " %s ", f->o->flags[i].flag);
        word(f->o->flags[i].value, out);
    }
    buf_printf(out, "%s -- ", more);
    word(f->o->file, out);
}
