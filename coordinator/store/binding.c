// SPDX-License-Identifier: Apache-2.0
// Host ids and certificates; see binding.h.
#include "coordinator/store/binding.h"

#include <stdio.h>
#include <string.h>

static int make_room(struct db *db, const struct binding *b, const char **hosts, int n,
                     struct err *e)
{
    int left = n;
    for (int i = 0; i < n && left >= b->most; i++) {
        if (!b->gives_way(b->ctx, hosts[i]))
            continue;
        int rc = db_unbind(db, hosts[i], e);
        if (rc)
            return rc;
        b->gone(b->ctx, hosts[i]);
        left--;
    }
    if (left < b->most)
        return 0;
    return err_set(e, ERR_LIMIT,
                   "the certificate '%s' is for %d host%s at a time, and host %.8s has it: join "
                   "this one with a token of its own, or issue a certificate with --hosts",
                   b->name, b->most, b->most == 1 ? "" : "s", hosts[0]);
}

int binding_make(struct db *db, const struct binding *b, struct err *e)
{
    struct db_owner owner, new = {0};
    const char **hosts;
    struct arena a = {0};
    int n, rc = db_owner(db, b->host, &owner, e);
    if (rc)
        return rc;
    if (owner.name[0] && (strcmp(owner.name, b->name) != 0 || strcmp(owner.print, b->print) != 0))
        return err_set(e, ERR_FENCED,
                       "host %s belongs to the key that first spoke for it, of '%s', and this is "
                       "another one, of '%s'",
                       b->host, owner.name, b->name);
    if (owner.name[0])
        return 0;
    rc = db_owned(db, b->print, &a, &hosts, &n, e);
    if (!rc && n >= b->most)
        rc = make_room(db, b, hosts, n, e);
    arena_clear(&a);
    snprintf(new.name, sizeof new.name, "%s", b->name);
    snprintf(new.print, sizeof new.print, "%s", b->print);
    return rc ? rc : db_bind(db, b->host, &new, e);
}
