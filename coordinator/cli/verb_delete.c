// SPDX-License-Identifier: Apache-2.0
// weft delete: an ended job with its history and its checkpoints. Of a served job the coordinator has
// a worker remove the folder and then forgets it. Of a `weft run` that is not under way this process
// does both: the checkpoints first, what is known of it last, so that it can be called again.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/folder.h"
#include "common/base/plain.h"
#include "common/ckpt/store.h"
#include "coordinator/cli/cli_print.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/verbs.h"

static int confirm(const struct verb *v, const struct args *a, const char *what)
{
    char answer[16] = "";
    if (a->yes)
        return CLIENT_OK;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return usage(v, "it asks on a terminal; --yes deletes without a question");
    plain_puts(stderr, what);
    plain_puts(stderr, " [y/N] ");
    bool yes = fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
    return yes ? CLIENT_OK : CLIENT_FAILED;
}

// Its checkpoints, unless the folder is another job's.
static int remove_store(const struct record *r, struct err *e)
{
    struct store s = {.fd = -1};
    struct store_owner owner;
    struct arena a = {0};
    if (!*r->store)
        return 0;
    int rc = store_open(&s, NULL, r->store, e);
    if (!rc)
        rc = store_read_owner(&s, &a, &owner, e);
    if (!rc && strcmp(owner.job, r->job) != 0)
        rc = err_set(e, ERR_EXISTS, "%s belongs to another job", r->store);
    if (!rc || (rc == ERR_NOTFOUND && s.fd < 0)) // gone: what an earlier removal left goes too
        rc = store_destroy(&s, NULL, NULL, e);
    store_close(&s);
    arena_clear(&a);
    return rc;
}

static int delete_run(const struct verb *v, const struct args *a, const char *name)
{
    struct record *r = calloc(1, sizeof *r);
    struct err e = {0};
    struct json_out w;
    struct buf what = {0}, out = {0};
    char base[PATH_MAX];
    PRE(r != NULL);
    int rc = record_open(r, ".", name, &e), code = CLIENT_REFUSED;
    bool moved = !rc && realpath(".", base) && record_follow(r, base);
    // Checkpoints that were not copied with the folder are those of the job that it was copied from.
    size_t n = moved ? strlen(base) : 0;
    if (moved && record_is_copy(r, name) && (strncmp(r->store, base, n) != 0 || r->store[n] != '/'))
        r->store[0] = 0;
    buf_printf(&what, "delete %s, what is known of it in %s%s%s?", name, r->dir,
               *r->store ? " and its checkpoints in " : "", r->store);
    if (!rc && (code = confirm(v, a, buf_str(&what))) == CLIENT_OK) {
        rc = remove_store(r, &e);
        rc = rc ? rc : record_remove(r, &e);
    }
    if (rc) {
        complain(v, e.text, r->dir, rc == ERR_EXISTS && r->lock < 0 ? "stop it first" : "");
        code = CLIENT_REFUSED;
    } else if (code == CLIENT_OK && a->json) {
        json_print_start(&w, &out, a->npos == 1); // of several a line each
        json_str(&w, "verb", v->name);
        json_str(&w, "target", name);
        json_str(&w, "text", "deleted");
        json_print_end(&w);
    } else if (code == CLIENT_OK) {
        buf_printf(&out, "%s: deleted\n", name);
    }
    put_out(&out);
    buf_clear(&what);
    record_close(r);
    free(r);
    return code;
}

// A name is looked for here first, unless a coordinator is named; those that are not here are served.
int verb_delete(const struct verb *v, const struct args *a)
{
    const char *named = getenv("WEFT_COORDINATOR");
    bool here = !a->coordinator && !(named && *named);
    struct args served = *a;
    struct buf what = {0};
    int first = CLIENT_OK;
    served.npos = 0;
    buf_puts(&what, "delete");
    for (int i = 0; i < a->npos; i++) {
        const char *name = a->pos[i];
        if (here && folder_name_ok(name) && record_is_there(".", name)) {
            int rc = delete_run(v, a, name);
            first = first ? first : rc;
            continue;
        }
        buf_printf(&what, "%s %s", served.npos ? "," : "", name);
        served.pos[served.npos++] = name;
    }
    buf_puts(&what, " with history and checkpoints?");
    int rc = served.npos ? confirm(v, a, buf_str(&what)) : CLIENT_OK;
    if (served.npos && !rc)
        rc = verb_act(v, &served);
    buf_clear(&what);
    return first ? first : rc;
}
