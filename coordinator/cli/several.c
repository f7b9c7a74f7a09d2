// SPDX-License-Identifier: Apache-2.0
// What leader and agents have in common; see several.h.
#include "coordinator/cli/several.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/folder.h"
#include "common/base/hash.h"
#include "coordinator/cli/run_record.h"
#include "coordinator/cli/verbs.h"

#define WAIT_NS (300 * CLOCK_S)

// One that an earlier start left holds nothing that counts.
static int make_place(struct several *s, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    struct record old;
    char digest[65], ours[4000];
    tmp = tmp && *tmp == '/' ? tmp : "/tmp";
    if ((size_t)snprintf(ours, sizeof ours, "%s/weft-%u", tmp, (unsigned)geteuid()) > 3800)
        return err_set(e, ERR_INVALID, "TMPDIR is too long");
    sha256_hex(s->root, strlen(s->root), digest);
    snprintf(s->place, sizeof s->place, "%s/%s-%.8s-%d", ours, s->name, digest, s->a.index);
    int rc = folder_make_own(ours, e);
    rc = rc ? rc : folder_make_own(s->place, e);
    rc = rc ? rc : record_open(&old, s->place, s->name, e);
    if (rc)
        return rc;
    rc = record_remove(&old, e);
    record_close(&old);
    return rc;
}

int several_open(struct several *s, const struct job *job, const char *base, struct err *e)
{
    const char *dir = job->checkpoint.dir, *wait = getenv("WEFT_WAIT");
    int64_t devices = job->resources.devices;
    char root[4096], at[4200];
    bool below = dir[0] != '/';
    int folder;
    s->wait_ns = WAIT_NS;
    if (wait && *wait && duration_read(wait, &s->wait_ns, e))
        return err_wrap(e, "WEFT_WAIT");
    int rc = *s->secret.text ? 0 : leader_secret_read(&s->secret, e);
    if (rc)
        return rc;
    if ((size_t)snprintf(root, sizeof root, "%s%s%s", below ? base : "", below ? "/" : "", dir) >=
        sizeof root)
        return err_set(e, ERR_INVALID, "checkpoint.dir is too long");
    snprintf(s->name, sizeof s->name, "%s", job->name);
    s->devices = (int)((devices + s->a.size - 1) / s->a.size);
    snprintf(at, sizeof at, "%s/.weft", root);
    if (!s->a.index && folder_make(at, e))
        return err_wrap(e, "checkpoint.dir");
    // An agent that does not see it yet says so when it has waited.
    if (!realpath(root, s->root))
        snprintf(s->root, sizeof s->root, "%s", root);
    // What others could put there no start would believe, so that none is to follow.
    rc = folder_open(root, ".weft", !*s->secret.text, &folder, e);
    if (rc && !(rc == ERR_NOTFOUND && s->a.index))
        return err_wrap(e, "checkpoint.dir");
    if (!rc)
        close(folder);
    return make_place(s, e);
}

bool several_leader_answers(const struct several *s, const struct leader_file *f, int stop)
{
    struct pollfd p = {.fd = stop, .events = POLLIN};
    struct tls_token_text token;
    char file[4300];
    bool does = false;
    if (tls_token_parse(f->token, &token, NULL))
        return false;
    snprintf(file, sizeof file, "%s/answer.pem", s->place);
    for (int i = 0; i < f->naddresses && !does; i++)
        does = poll(&p, 1, 0) == 1 ||
               !tls_fetch_ca(f->address[i], token.ca_sha256, file, SEVERAL_LOOK_S, NULL);
    (void)unlink(file);
    return does;
}

int several_exit(int code, int signal)
{
    if (code == CLIENT_INTERRUPTED)
        return signal && signal != SIGINT ? SEVERAL_AGAIN : CLIENT_INTERRUPTED;
    return code == CLIENT_USAGE || code == CLIENT_REFUSED ? SEVERAL_PERSON : code;
}
