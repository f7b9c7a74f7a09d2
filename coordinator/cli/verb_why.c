// SPDX-License-Identifier: Apache-2.0
// weft why: a job's history (why_text.h). Of a run in an allocation it is what all of its starts have left
// (run_history.h), and of one in Slurm what squeue says too.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/attempt/frame.h"
#include "common/base/folder.h"
#include "common/base/plain.h"
#include "coordinator/cli/cli_link.h"
#include "coordinator/cli/message_json.h"
#include "coordinator/cli/run_history.h"
#include "coordinator/cli/run_place.h"
#include "coordinator/cli/slurm_queue.h"
#include "coordinator/cli/why_text.h"

// ---- in an allocation ----

struct slurm_said {
    struct run_place place;
    struct slurm_line line[SLURM_LINES];
    int n;
    char why[400]; // squeue says nothing; "": it does
};

static void print_slurm(const struct slurm_said *s, struct buf *out)
{
    if (*s->why)
        plain_line(out, "Slurm's job %s: %s", s->place.job, s->why);
    for (int i = 0; i < s->n; i++) {
        const struct slurm_line *l = &s->line[i];
        const char *means = slurm_reason_means(l->reason),
                   *plural = l->nodes[1] || *l->nodes != '1' ? "s" : "";
        if (strcmp(l->state, "PENDING") == 0)
            plain_line(
                out,
                "Slurm's job %s: PENDING (%s)%s%s; %s node%s, submitted %s, expected to start: %s",
                l->id, l->reason, means ? ": " : "", means ? means : "", l->nodes, plural,
                l->submitted, l->starts);
        else
            plain_line(out, "Slurm's job %s: %s; %s node%s, submitted %s, started %s, ran %s",
                       l->id, l->state, l->nodes, plural, l->submitted, l->starts, l->ran);
    }
}

static void json_slurm(struct json_out *w, const struct slurm_said *s)
{
    if (!s) {
        json_null(w, "slurm");
        return;
    }
    json_array(w, "slurm");
    for (int i = 0; i < s->n; i++) {
        const struct slurm_line *l = &s->line[i];
        json_object(w, NULL);
        json_str(w, "job", l->id);
        json_str(w, "state", l->state);
        json_str(w, "reason", l->reason);
        json_str(w, "nodes", l->nodes);
        json_str(w, "submitted", l->submitted);
        json_str(w, "starts", l->starts);
        json_str(w, "ran", l->ran);
        json_end(w);
    }
    json_end(w);
}

static void print_json(const Weft__V1__WhyReply *r, const struct slurm_said *s, struct buf *out)
{
    struct json_out w;
    double goodput = why_goodput(r);
    json_print_start(&w, out, true);
    json_members(&w, &r->base);
    json_slurm(&w, s);
    json_known_double(&w, "goodput", goodput >= 0, goodput);
    json_print_end(&w);
}

static void show(const Weft__V1__WhyReply *r, const struct slurm_said *s, const struct args *a)
{
    struct buf out = {0};
    if (a->json)
        print_json(r, s, &out);
    else {
        if (s)
            print_slurm(s, &out);
        why_print(r, a->full, &out);
    }
    put_out(&out);
}

// Whether the newest run of this name that was started in this folder is one of an allocation. Where jobs'
// checkpoints lie there is no more than what is kept of it.
static bool is_in_allocation(const struct args *a, struct run_place *out)
{
    const char *named = getenv("WEFT_COORDINATOR");
    char path[100];
    struct stat own, place;
    struct err e = {0};
    if (a->coordinator || (named && *named) || !folder_name_ok(a->pos[0]))
        return false;
    snprintf(path, sizeof path, ".weft/%s/job", a->pos[0]);
    bool alone = !stat(path, &own);
    snprintf(path, sizeof path, ".weft/%s.place", a->pos[0]);
    bool placed = !stat(path, &place);
    snprintf(path, sizeof path, ".weft/%s.history", a->pos[0]);
    if ((!placed && stat(path, &place)) || (alone && own.st_mtime > place.st_mtime))
        return false;
    *out = (struct run_place){.root = "."};
    if (!placed || !run_place_read(".", a->pos[0], out, &e))
        return true;
    plain_error("weft why: of a run in an allocation nothing is looked for: %s", e.text);
    return false;
}

static int explain_in_allocation(const struct args *a, struct slurm_said *s)
{
    Weft__V1__WhyReply none, *r = NULL;
    struct err e = {0};
    const bool slurm = *s->place.job;
    if (slurm && slurm_queue_ask(s->place.job, s->line, &s->n, &e))
        snprintf(s->why, sizeof s->why, "%s", e.text);
    else if (slurm && !s->n)
        snprintf(s->why, sizeof s->why,
                 "squeue does not list it: it has left the queue, or Slurm does not answer");
    e = (struct err){0};
    if (run_history_read(s->place.root, a->pos[0], &r, &e))
        plain_error("weft why: what it did is not known%s: %s",
                    e.code == ERR_NOTFOUND ? " yet" : "", e.text);
    weft__v1__why_reply__init(&none);
    show(r ? r : &none, slurm ? s : NULL, a);
    cli_link_free(r);
    return CLIENT_OK;
}

int verb_why(const struct verb *v, const struct args *a)
{
    static struct slurm_said slurm;
    V1_NEW(JobRequest, job_request, req);
    struct cli_link l = {0};
    ProtobufCMessage *m;
    if (is_in_allocation(a, &slurm.place))
        return explain_in_allocation(a, &slurm);
    int rc = cli_link_open(&l, v, a);
    if (rc)
        return rc;
    req.job = frame_text(a->pos[0]);
    rc = cli_link_ask(&l, LINK_WHY, &req.base, &m);
    if (!rc) {
        show((const Weft__V1__WhyReply *)(const void *)m, NULL, a);
        cli_link_free(m);
    }
    cli_link_close(&l);
    return rc;
}
