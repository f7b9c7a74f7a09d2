// SPDX-License-Identifier: Apache-2.0
// The environment of a process of several; see allocation.h.
#include "coordinator/cli/allocation.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a process has in the place of a step's number that is none of srun's (the batch script, an
// interactive shell) lies above this.
#define SLURM_STEP_MAX 0xfffffff0LL

struct reading {
    allocation_get *get;
    void *ctx;
    struct allocation *out;
    struct err *e;
};

static const char *get_text(const struct reading *r, const char *name)
{
    const char *text = r->get(r->ctx, name);
    return text && *text ? text : NULL;
}

static int refuse_number(const struct reading *r, const char *name)
{
    return err_set(r->e, ERR_INVALID, "%s is '%.60s', which is no such number: unset or mend it",
                   name, get_text(r, name));
}

// A number from `least` to `most`; −1 where the variable is not set.
static int get_number(const struct reading *r, const char *name, int64_t least, int64_t most,
                      int64_t *out)
{
    const char *text = get_text(r, name);
    *out = -1;
    if (!text)
        return 0;
    size_t n = strspn(text, "0123456789");
    if (text[n] || n > 15 || atoll(text) < least || atoll(text) > most)
        return refuse_number(r, name);
    *out = atoll(text);
    return 0;
}

static void add_text(struct allocation *a, const char *name, const char *value)
{
    size_t n = strlen(a->text);
    snprintf(a->text + n, sizeof a->text - n, "%s%s=%.80s", n ? " " : "", name, value);
}

// Several variables may say one thing: those that are set must say the same.
static int agree_on_number(const struct reading *r, const char *const *names, int64_t least,
                           int64_t most, int64_t *out)
{
    const char *first = NULL;
    *out = -1;
    for (; *names; names++) {
        int64_t value;
        int rc = get_number(r, *names, least, most, &value);
        if (rc)
            return rc;
        if (value < 0)
            continue;
        if (first && value != *out)
            return err_set(r->e, ERR_INVALID,
                           "%s=%lld and %s=%lld disagree: start one process a host, and unset the "
                           "one that is not meant",
                           first, (long long)*out, *names, (long long)value);
        first = first ? first : *names;
        *out = value;
        add_text(r->out, *names, get_text(r, *names));
    }
    return 0;
}

static int agree_on_host(const struct reading *r)
{
    static const char *const names[] = {"MASTER_ADDR", "PET_MASTER_ADDR"};
    struct allocation *a = r->out;
    for (int i = 0; i < 2; i++) {
        const char *text = get_text(r, names[i]);
        if (!text)
            continue;
        if (strlen(text) >= sizeof a->host ||
            text[strspn(text, "0123456789abcdefghijklmnopqrstuv"
                              "wxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.:_-")])
            return err_set(r->e, ERR_INVALID, "%s is no host's name or address", names[i]);
        if (*a->host && strcmp(a->host, text) != 0)
            return err_set(r->e, ERR_INVALID,
                           "MASTER_ADDR=%s and PET_MASTER_ADDR=%s disagree: unset the one that is "
                           "not meant",
                           a->host, text);
        snprintf(a->host, sizeof a->host, "%s", text);
        add_text(a, names[i], text);
    }
    return 0;
}

// ---- Slurm ----

// Numbers of a bracket, "01-03,7]…": how many, and where it ends. −1: it is none.
static int64_t count_range(const char **at)
{
    int64_t n = 0;
    const char *s = *at;
    for (;;) {
        char *end;
        if (!isdigit((unsigned char)*s))
            return -1;
        int64_t from = strtoll(s, &end, 10), to = from;
        if (*end == '-') {
            s = end + 1;
            if (!isdigit((unsigned char)*s))
                return -1;
            to = strtoll(s, &end, 10);
        }
        if (to < from || to - from >= ALLOCATION_MAX)
            return -1;
        n += to - from + 1;
        s = end + 1;
        if (n > ALLOCATION_MAX || (*end != ',' && *end != ']'))
            return -1;
        if (*end == ']')
            break;
    }
    *at = s;
    return n;
}

int allocation_count_hosts(const char *list)
{
    int64_t all = 0;
    while (*list) {
        int64_t n = 1;
        const char *start = list;
        while (*list && *list != ',') {
            if (*list++ != '[')
                continue;
            int64_t numbers = count_range(&list);
            n = numbers < 0 ? -1 : n * numbers;
            if (n < 0 || n > ALLOCATION_MAX)
                return -1;
        }
        all += n;
        if (list == start || all > ALLOCATION_MAX || (*list == ',' && !list[1]))
            return -1;
        list += *list == ',';
    }
    return all ? (int)all : -1;
}

static int read_slurm(const struct reading *r)
{
    struct allocation *a = r->out;
    int64_t job, step, local, restarts, nodes;
    const char *list = get_text(r, "SLURM_STEP_NODELIST");
    int rc = get_number(r, "SLURM_STEP_ID", 0, INT64_MAX, &step);
    rc = rc ? rc : get_number(r, "SLURM_JOB_ID", 1, INT64_MAX, &job);
    rc = rc ? rc : get_number(r, "SLURM_LOCALID", 0, ALLOCATION_MAX, &local);
    rc = rc ? rc : get_number(r, "SLURM_RESTART_COUNT", 0, INT32_MAX, &restarts);
    rc = rc ? rc : get_number(r, "SLURM_JOB_END_TIME", 0, INT64_MAX, &a->end_s);
    rc = rc ? rc : get_number(r, "SLURM_JOB_NUM_NODES", 1, ALLOCATION_MAX, &nodes);
    a->end_s = a->end_s > 0 ? a->end_s : 0;
    if (rc || job < 0)
        return rc;
    if (step < 0 || step > SLURM_STEP_MAX) { // the batch script itself, or a shell of salloc's
        if (nodes > 1)
            snprintf(a->doubt, sizeof a->doubt,
                     "Slurm's job %lld has %lld nodes, and this is not started by srun: it uses "
                     "this one alone; on all of them: srun --ntasks-per-node=1 weft run …",
                     (long long)job, (long long)nodes);
        return 0;
    }
    a->kind = ALLOCATION_SLURM;
    snprintf(a->id, sizeof a->id, "slurm %lld.%lld start %lld", (long long)job, (long long)step,
             (long long)(restarts > 0 ? restarts : 0));
    if (!get_text(r, "SLURM_PROCID") || !get_text(r, "SLURM_NTASKS"))
        return err_set(r->e, ERR_INVALID,
                       "SLURM_STEP_ID is set, and SLURM_PROCID or SLURM_NTASKS is not: start it "
                       "with srun");
    int hosts = list ? allocation_count_hosts(list) : 0;
    if (hosts < 0)
        return err_set(r->e, ERR_INVALID, "SLURM_STEP_NODELIST is '%.200s': no list of hosts",
                       list);
    int64_t tasks;
    rc = get_number(r, "SLURM_NTASKS", 1, ALLOCATION_MAX, &tasks);
    if (!rc && (local > 0 || (hosts && hosts < tasks)))
        rc = err_set(r->e, ERR_INVALID,
                     "SLURM_NTASKS=%lld tasks%s: weft wants one task a node, which uses all that "
                     "the node has of the allocation: srun --ntasks-per-node=1",
                     (long long)tasks, local > 0 ? ", several on this node" : " on fewer nodes");
    add_text(a, "SLURM_JOB_ID", get_text(r, "SLURM_JOB_ID"));
    add_text(a, "SLURM_STEP_ID", get_text(r, "SLURM_STEP_ID"));
    return rc;
}

// ---- all of them ----

static int refuse_launchers(const struct reading *r)
{
    static const struct {
        const char *variable, *program;
    } launchers[] = {{"TORCHELASTIC_RUN_ID", "torchrun"}, {"OMPI_COMM_WORLD_RANK", "mpirun"}};
    // Under srun the second is set by Slurm's own MPI.
    for (int i = 0; i < 2; i++)
        if (r->out->kind != ALLOCATION_SLURM && get_text(r, launchers[i].variable))
            return err_set(r->e, ERR_INVALID,
                           "%s is set: %s ends with 1 whatever its processes end with, and then "
                           "nobody starts the job again; start weft run by srun, or one a pod",
                           launchers[i].variable, launchers[i].program);
    return 0;
}

// Variables of who starts several processes a host.
static int refuse_locals(const struct reading *r)
{
    int64_t rank, size;
    int rc = get_number(r, "LOCAL_RANK", 0, ALLOCATION_MAX, &rank);
    rc = rc ? rc : get_number(r, "LOCAL_WORLD_SIZE", 1, ALLOCATION_MAX, &size);
    if (!rc && (rank > 0 || size > 1))
        rc = err_set(r->e, ERR_INVALID,
                     "%s=%s: weft wants one process a host, which uses all of its devices",
                     rank > 0 ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE",
                     get_text(r, rank > 0 ? "LOCAL_RANK" : "LOCAL_WORLD_SIZE"));
    return rc;
}

static int check_whole(const struct reading *r, int64_t index, int64_t size)
{
    struct allocation *a = r->out;
    if (index < 0)
        return err_set(r->e, ERR_INVALID,
                       "WORLD_SIZE or PET_NNODES says that %lld processes work together, and "
                       "nothing says which this one is: set RANK, or unset it",
                       (long long)size);
    if (size < 0 && a->kind == ALLOCATION_KUBERNETES)
        return err_set(r->e, ERR_INVALID,
                       "JOB_COMPLETION_INDEX=%lld, and nothing says how many pods there are: set "
                       "WORLD_SIZE to the Job's completions in the pod's environment",
                       (long long)index);
    if (size < 0)
        return err_set(r->e, ERR_INVALID,
                       "%s is set and %s is not: set it to how many processes there are, or unset "
                       "the first",
                       get_text(r, "RANK") ? "RANK" : "PET_NODE_RANK",
                       get_text(r, "RANK") ? "WORLD_SIZE" : "PET_NNODES");
    if (size >= 0 && index >= size)
        return err_set(r->e, ERR_INVALID, "index %lld of %lld processes is beyond the last: %s",
                       (long long)index, (long long)size, a->text);
    return 0;
}

int allocation_read(allocation_get *get, void *ctx, struct allocation *out, struct err *e)
{
    static const char *const indexes[] = {"SLURM_PROCID", "JOB_COMPLETION_INDEX", "PET_NODE_RANK",
                                          "RANK", NULL};
    static const char *const sizes[] = {"SLURM_NTASKS", "PET_NNODES", "WORLD_SIZE", NULL};
    static const char *const ports[] = {"MASTER_PORT", "PET_MASTER_PORT", NULL};
    *out = (struct allocation){0};
    struct reading r = {get, ctx, out, e};
    int64_t index, size, port;
    int rc = read_slurm(&r);
    if (rc)
        return rc;
    bool slurm = out->kind == ALLOCATION_SLURM;
    if (get_text(&r, "JOB_COMPLETION_INDEX")) {
        if (slurm)
            return err_set(e, ERR_INVALID,
                           "SLURM_STEP_ID and JOB_COMPLETION_INDEX are both set: this is started "
                           "by Slurm or by Kubernetes; unset those of the other");
        out->kind = ALLOCATION_KUBERNETES;
    }
    // Without srun SLURM_PROCID and SLURM_NTASKS are those of a script.
    rc = agree_on_number(&r, indexes + !slurm, 0, ALLOCATION_MAX - 1, &index);
    rc = rc ? rc : agree_on_number(&r, sizes + !slurm, 1, ALLOCATION_MAX, &size);
    if (rc)
        return rc;
    if (out->kind == ALLOCATION_NONE && (index >= 0 || size > 1))
        out->kind = ALLOCATION_OTHER;
    if (out->kind == ALLOCATION_NONE) {
        int64_t of_mpi; // which sets neither RANK nor WORLD_SIZE
        *out->text = 0;
        rc = get_number(&r, "OMPI_COMM_WORLD_SIZE", 1, ALLOCATION_MAX, &of_mpi);
        return rc || of_mpi <= 1 ? rc : refuse_launchers(&r);
    }
    rc = refuse_launchers(&r);
    rc = rc ? rc : refuse_locals(&r);
    rc = rc ? rc : check_whole(&r, index, size);
    rc = rc ? rc : agree_on_host(&r);
    rc = rc ? rc : agree_on_number(&r, ports, 1, 65535, &port);
    if (rc)
        return rc;
    out->index = (int)index;
    out->size = (int)size;
    out->port = port > 0 ? (int)port : 0;
    return 0;
}

bool allocation_replaces(const struct allocation *a)
{
    return a->kind == ALLOCATION_KUBERNETES || a->kind == ALLOCATION_OTHER;
}

static const char *get_own(void *ctx, const char *name)
{
    (void)ctx;
    return getenv(name);
}

int allocation_find(struct allocation *out, struct err *e)
{
    return allocation_read(get_own, NULL, out, e);
}
