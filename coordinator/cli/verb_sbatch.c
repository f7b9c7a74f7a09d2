// SPDX-License-Identifier: Apache-2.0
// weft sbatch: gives a job to Slurm, as the user who calls it. The batch script is that of `weft render --for
// slurm`; what could only fail once its turn has come is refused here. By what is written beside the job
// file `weft why` finds the run again (run_place.h).
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/plain.h"
#include "common/base/system.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/data_files.h"
#include "coordinator/cli/render_job.h"
#include "coordinator/cli/run_place.h"
#include "coordinator/cli/slurm_call.h"

#define WAIT_NS (120 * CLOCK_S) // sbatch itself asks for a while where Slurm does not answer

// The job gets this environment, and would not choose between two schedulers.
static int check_environment(const struct verb *v)
{
    static const char *const others[] = {"JOB_COMPLETION_INDEX", "PET_NODE_RANK", "PET_NNODES",
                                         "RANK", "WORLD_SIZE"};
    struct err e = {0};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *value = getenv(others[i]);
        if (!value || !*value)
            continue;
        err_set(&e, ERR_INVALID,
                "%s is set: sbatch hands it to the job, which would find two schedulers' variables "
                "and refuse to start",
                others[i]);
        complain(v, e.text, "the environment", "unset it here");
        return CLIENT_USAGE;
    }
    return CLIENT_OK;
}

static int check_data(const struct verb *v, const struct job *job, struct arena *a)
{
    struct data_fault faults[DATA_FAULTS_MAX];
    int n = data_faults_find(job, a, faults);
    for (int i = 0; i < n; i++)
        complain(v, arena_printf(a, "%s: %s", faults[i].key, faults[i].why), NULL,
                 i + 1 < n ? "as below"
                           : "mend it; where the nodes alone see it: weft render --for slurm "
                             "JOB.yaml | sbatch");
    return n ? CLIENT_USAGE : CLIENT_OK;
}

struct submission {
    const struct verb *verb;
    const struct args *args;
    struct rendered rendered;
    char id[RUN_PLACE_JOB]; // of Slurm's; "": it has said none
};

static void print_submitted(const struct submission *s)
{
    const struct rendered *r = &s->rendered;
    const char *id = s->id;
    struct buf out = {0};
    struct json_out w;
    const struct render_facts *facts = &r->facts;
    if (s->args->json) {
        json_print_start(&w, &out, true);
        json_str(&w, "job", id);
        json_str(&w, "name", r->job.name);
        json_int(&w, "nodes", facts->nodes);
        json_int(&w, "devices_per_node", facts->per_node);
        json_int(&w, "grace_s", facts->grace_s);
        json_print_end(&w);
    } else
        buf_printf(&out,
                   "%s  %s: %d node%s, %d device%s on each; its log is %s-%s.log\n"
                   "weft why %s says what it waits for and what it did; scancel %s saves and ends "
                   "it\n",
                   id, r->job.name, facts->nodes, facts->nodes == 1 ? "" : "s", facts->per_node,
                   facts->per_node == 1 ? "" : "s", facts->name, id, r->job.name, id);
    put_out(&out);
}

// Its answer is "ID" or "ID;CLUSTER".
static void take_answer(void *ctx, const char *answer)
{
    struct submission *s = ctx;
    const struct rendered *r = &s->rendered;
    struct err e = {0};
    size_t n = strspn(answer, "0123456789");
    if (!n || n >= sizeof s->id || !strchr("\n;", answer[n]))
        return;
    snprintf(s->id, sizeof s->id, "%.*s", (int)n, answer);
    if (run_place_write(r->options.folder, r->job.name, s->id, r->job.checkpoint.dir, &e))
        plain_error("weft sbatch: `weft why %s` will not find it: %s", r->job.name, e.text);
    print_submitted(s);
}

// What sbatch's end means where it is not 0.
static int explain_end(const struct submission *s, const struct err *e)
{
    const char *id = s->id;
    if (e->code == ERR_ABORTED) {
        if (*id)
            plain_error("weft sbatch: job %s stays in Slurm's queue; scancel %s ends it", id, id);
        else
            plain_error("weft sbatch: interrupted; `squeue --me` shows whether it was taken");
        return CLIENT_INTERRUPTED;
    }
    if (*id) { // it waited, which ends as the job does
        complain(s->verb, e->text, NULL, "`weft why` with the job's name says why");
        return CLIENT_FAILED;
    }
    complain(s->verb, e->text, e->code == ERR_NOTFOUND ? getenv("PATH") : NULL,
             e->code == ERR_NOTFOUND  ? "call it where Slurm's commands are (a login node; `module "
                                        "load slurm`), or copy what `weft render --for slurm` prints"
             : e->code == ERR_TIMEOUT ? "see with `squeue --me` whether it was taken"
                                      : "mend what sbatch says above; its options stand behind --");
    return CLIENT_REFUSED;
}

static int submit(struct submission *s, struct arena *a)
{
    static const int which[] = {SIGINT, SIGTERM, SIGHUP, 0};
    const struct args *f = s->args;
    char **argv = arena_array(a, char *, f->npos + 2);
    struct slurm_call call = {.argv = argv,
                              .input = buf_str(&s->rendered.text),
                              .wait_ns = WAIT_NS,
                              .heard = take_answer,
                              .ctx = s};
    struct buf answer = {0};
    struct err e = {0};
    argv[0] = arena_strdup(a, "sbatch");
    argv[1] = arena_strdup(a, "--parsable");
    for (int i = 1; i < f->npos; i++)
        argv[i + 1] = arena_strdup(a, f->pos[i]);
    argv[f->npos + 1] = NULL;
    int rc = system_read_signals(which, &call.signals, &e);
    rc = rc ? rc : slurm_call(&call, &answer, &e);
    if (!rc && !*s->id)
        rc = err_set(&e, ERR_DATA, "sbatch answered '%.60s' and no number", buf_str(&answer));
    if (call.signals > 0)
        close(call.signals);
    buf_clear(&answer);
    return rc ? explain_end(s, &e) : CLIENT_OK;
}

int verb_sbatch(const struct verb *v, const struct args *f)
{
    struct arena a = {0};
    struct submission s = {.verb = v, .args = f};
    char program[PATH_MAX] = "";
    if (f->npos > 1 && f->pos[1][0] != '-')
        return usage(v, "behind JOB.yaml stand options of sbatch, after a --");
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return usage(v, "/proc is not mounted");
    int rc = check_environment(v);
    rc = rc ? rc : render_job(v, f, RENDER_SLURM, program, &a, &s.rendered);
    rc = rc ? rc : check_data(v, &s.rendered.job, &a);
    rc = rc ? rc : submit(&s, &a);
    buf_clear(&s.rendered.text);
    arena_clear(&a);
    return rc;
}
