// SPDX-License-Identifier: Apache-2.0
// The file of a job's metrics; see job_rows.h.
#include "coordinator/cli/job_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/attempt/frame.h"
#include "common/base/system.h"

// ---- its state, and where its folder is ----

static int ask_status(struct job_rows *r, char **store)
{
    V1_NEW(JobRequest, job_request, q);
    ProtobufCMessage *reply;
    q.job = r->job;
    int rc = cli_link_ask(r->link, LINK_STATUS, &q.base, &reply);
    if (rc)
        return rc;
    const Weft__V1__JobStatus *s = (const Weft__V1__JobStatus *)(const void *)reply;
    snprintf(r->job, sizeof r->job, "%s", s->job);
    snprintf(r->name, sizeof r->name, "%s", s->name);
    r->state = s->state;
    if (store)
        *store = arena_strdup(&r->link->arena, s->store);
    cli_link_free(reply);
    return CLIENT_OK;
}

// ---- over the service ----

static int append(struct job_rows *r, const ProtobufCBinaryData *text)
{
    if (fwrite(text->data, 1, text->len, r->copy) != text->len || fflush(r->copy)) {
        complain(r->link->verb, strerror(errno), "the temporary file of the metrics that came",
                 "make room in /tmp, or name another folder with TMPDIR");
        return CLIENT_FAILED;
    }
    r->end += (int64_t)text->len;
    return CLIENT_OK;
}

static int fetch(struct job_rows *r)
{
    V1_NEW(RowsRequest, rows_request, q);
    ProtobufCMessage *reply;
    size_t got;
    q.job = r->job;
    do {
        q.from = r->end;
        int rc = cli_link_ask(r->link, LINK_ROWS, &q.base, &reply);
        if (rc)
            return rc;
        const Weft__V1__RowsReply *piece = (const Weft__V1__RowsReply *)(const void *)reply;
        got = piece->text.len;
        rc = got ? append(r, &piece->text) : CLIENT_OK;
        cli_link_free(reply);
        if (rc)
            return rc;
    } while (got);
    return CLIENT_OK;
}

// ---- both ----

static int open_own(struct job_rows *r, const char *store)
{
    struct err e = {0};
    int folder = *store ? open(store, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    int rc = folder < 0 ? 0 : rows_open(folder, &r->fd, &e);
    system_close(&folder);
    if (rc)
        complain(r->link->verb, e.text, store, "look at what lies there");
    return rc ? CLIENT_FAILED : CLIENT_OK;
}

int job_rows_open(struct job_rows *r, struct cli_link *l, const char *target)
{
    char *store = NULL;
    *r = (struct job_rows){.link = l, .fd = -1};
    snprintf(r->job, sizeof r->job, "%s", target);
    int rc = ask_status(r, &store);
    if (rc || l->stored)
        return rc ? rc : open_own(r, store);
    r->copy = tmpfile();
    if (!r->copy) {
        complain(l->verb, strerror(errno), "a temporary file for the metrics",
                 "make room in /tmp, or name another folder with TMPDIR");
        return CLIENT_FAILED;
    }
    r->fd = fileno(r->copy);
    return fetch(r);
}

int job_rows_more(struct job_rows *r)
{
    int rc = r->copy ? ask_status(r, NULL) : CLIENT_OK;
    return rc || !r->copy ? rc : fetch(r);
}

int job_rows_read(const struct job_rows *r, struct rows *rows)
{
    struct err e = {0};
    if (r->fd < 0 || !rows_read(rows, r->fd, &e))
        return CLIENT_OK;
    complain(r->link->verb, e.text, "the job's metrics.jsonl", "look at its folder");
    return CLIENT_FAILED;
}

void job_rows_close(struct job_rows *r)
{
    if (r->copy)
        fclose(r->copy);
    else if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
}
