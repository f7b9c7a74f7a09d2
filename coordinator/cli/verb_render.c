// SPDX-License-Identifier: Apache-2.0
// weft render: prints a job as what a cluster's scheduler takes (render_job.h). Asks nobody and runs nothing.
#include <string.h>

#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/render_job.h"

static void print_json(const struct render_facts *r, const char *text, struct buf *out)
{
    struct json_out w;
    json_print_start(&w, out, true);
    json_str(&w, "for", render_names[r->o->kind]);
    json_str(&w, "name", r->name);
    json_int(&w, "nodes", r->nodes);
    json_int(&w, "devices_per_node", r->per_node);
    json_int(&w, "cores_per_node", r->cores);
    json_uint(&w, "memory_bytes", r->memory_mib << 20);
    json_uint(&w, "checkpoint_bytes", r->checkpoint);
    json_uint(&w, "write_rate", r->rate);
    json_int(&w, "grace_s", r->grace_s);
    json_int(&w, "stop_s", r->stop_s);
    json_array(&w, "facts");
    for (int i = 0; i < r->nfacts; i++) {
        json_object(&w, NULL);
        json_str(&w, "name", r->fact[i].name);
        json_str(&w, "text", r->fact[i].text);
        json_end(&w);
    }
    json_end(&w);
    json_str(&w, "text", text);
    json_print_end(&w);
}

int verb_render(const struct verb *v, const struct args *f)
{
    struct arena a = {0};
    struct rendered r;
    struct buf json = {0};
    int kind = 0;
    while (kind < RENDER_KINDS && (!f->render || strcmp(f->render, render_names[kind]) != 0))
        kind++;
    if (kind == RENDER_KINDS)
        return usage(v, "--for takes slurm, job, jobset, trainjob or systemd");
    int rc = render_job(v, f, (enum render_kind)kind, NULL, &a, &r);
    if (!rc && f->json)
        print_json(&r.facts, buf_str(&r.text), &json);
    if (!rc)
        put_out(f->json ? &json : &r.text);
    buf_clear(&r.text);
    buf_clear(&json);
    arena_clear(&a);
    return rc;
}
