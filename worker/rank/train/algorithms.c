// SPDX-License-Identifier: Apache-2.0
// Agreement on algorithms. See algorithms.h.
#include "worker/rank/train/algorithms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attempt/board.h"
#include "common/base/heap.h"
#include "common/base/log.h"

enum { KEY = 64, CHUNK = 3000 };
_Static_assert(1 + CHUNK < BOARD_VALUE_MAX, "a piece fits a value of the board");
static const char HEADER[] = "algorithms ";

// ---- texts through the link's keys -------------------------------------------------------------

// Puts a text under several keys, in pieces. A piece begins with '+' where another one follows, the
// last one with '.'.
static int put_text(struct link *l, const char *name, int i, const char *text, struct err *e)
{
    char key[KEY], value[BOARD_VALUE_MAX];
    int rc = 0;
    for (int piece = 0; !rc; piece++) {
        bool more = strlen(text) > CHUNK;
        snprintf(key, sizeof key, "algorithms/%s/%d/%d", name, i, piece);
        snprintf(value, sizeof value, "%c%.*s", more ? '+' : '.', (int)CHUNK, text);
        rc = link_kv_put(l, key, value, e);
        if (!more)
            break;
        text += CHUNK;
    }
    return rc;
}

// Appends to `to` the text that another rank puts. This waits as long as that rank lives, for
// measuring takes its time. If it hangs, its page stands still and the leader ends the attempt.
static int get_text(const struct algorithms_options *o, const char *name, int i, struct buf *to,
                    struct err *e)
{
    char key[KEY], value[BOARD_VALUE_MAX];
    for (int piece = 0;; piece++) {
        snprintf(key, sizeof key, "algorithms/%s/%d/%d", name, i, piece);
        int rc = link_kv_await(o->link, key, value, sizeof value, o->page, e);
        if (rc)
            return rc;
        buf_puts(to, value[0] ? value + 1 : "");
        if (value[0] != '+')
            return 0;
    }
}

// ---- sections ----------------------------------------------------------------------------------

// The length of the section that begins at `text`.
static size_t get_section_length(const char *text)
{
    const char *next = strstr(text, "\nalgorithms ");
    return next ? (size_t)(next + 1 - text) : strlen(text);
}

// The first section of a text, whatever stands before it; "" if there is none.
static const char *find_section(const char *text)
{
    const char *at =
        strncmp(text, HEADER, sizeof HEADER - 1) ? strstr(text, "\nalgorithms ") : text;
    return !at ? "" : at + (*at == '\n');
}

static bool is_same_header(const char *a, const char *b)
{
    size_t n = strcspn(a, "\n");
    return n == strcspn(b, "\n") && !memcmp(a, b, n);
}

// Adds a section, in place of one for the same device model: it holds all that the other did.
static void add_to_record(struct buf *record, const char *section)
{
    struct buf all = {0};
    for (const char *s = find_section(buf_str(record)); *s; s += get_section_length(s))
        if (!is_same_header(s, section))
            buf_append(&all, s, get_section_length(s));
    buf_puts(&all, section);
    buf_reset(record);
    buf_puts(record, buf_str(&all));
    buf_clear(&all);
}

// Gives the backend all choices for a device like this one; others are left out. Appends to `own`
// (may be null) the sections that were taken.
static int import_sections(const struct algorithms_options *o, const char *text, struct buf *own,
                           struct err *e)
{
    int rc = 0;
    for (const char *s = find_section(text); *s && !rc; s += get_section_length(s)) {
        struct buf one = {0};
        buf_append(&one, s, get_section_length(s));
        rc = o->backend->choice->read(o->device, buf_str(&one), e);
        if (!rc && own)
            buf_puts(own, buf_str(&one));
        if (rc == ERR_UNSUPPORTED)
            rc = 0;
        buf_clear(&one);
    }
    return rc;
}

// ---- who measures ------------------------------------------------------------------------------

static void describe_device(const struct algorithms_options *o, char out[BOARD_VALUE_MAX])
{
    struct device_info info;
    o->backend->device.info(o->device, &info);
    snprintf(out, BOARD_VALUE_MAX, "%s, %s, %s", info.model, info.isa, info.libraries);
}

// On rank 0: asks all ranks for their devices, and chooses the first rank of each device model in
// each stage. The list is a rank a line: "0\n4\n".
static int choose_measuring_ranks(const struct algorithms_options *o, struct buf *list,
                                  struct err *e)
{
    char **devices = heap_alloc(sizeof *devices * (size_t)o->ranks);
    int rc = 0;
    for (int r = 0; r < o->ranks && !rc; r++) {
        struct buf text = {0};
        rc = get_text(o, "device", r, &text, e);
        devices[r] = heap_strdup(buf_str(&text));
        buf_clear(&text);
    }
    for (int s = 0; s < o->compiled->nstages && !rc; s++)
        for (int r = 0; r < o->ranks; r++) {
            bool known = compiled_stage(o->compiled, r) != s;
            for (int q = 0; q < r && !known; q++)
                known = compiled_stage(o->compiled, q) == s && !strcmp(devices[q], devices[r]);
            if (!known)
                buf_printf(list, "%d\n", r);
        }
    for (int r = 0; r < o->ranks; r++)
        free(devices[r]);
    free(devices);
    return rc ? rc : put_text(o->link, "plan", 0, buf_str(list), e);
}

static int agree_on_measuring_ranks(const struct algorithms_options *o, struct buf *list,
                                    struct err *e)
{
    char device[BOARD_VALUE_MAX];
    describe_device(o, device);
    int rc = put_text(o->link, "device", o->rank, device, e);
    if (rc)
        return rc;
    return o->rank == 0 ? choose_measuring_ranks(o, list, e) : get_text(o, "plan", 0, list, e);
}

// ---- agreeing ----------------------------------------------------------------------------------

static int measure_products(const struct algorithms_options *o, struct buf *text, struct err *e)
{
    int rc = exec_tune(o->exec, true, e);
    return rc ? rc : o->backend->choice->write(o->device, text, e);
}

static int agree_with_ranks(const struct algorithms_options *o, struct buf *record, struct err *e)
{
    struct buf list = {0};
    bool measured = false;
    int rc = agree_on_measuring_ranks(o, &list, e), i = 0;
    for (const char *at = buf_str(&list); *at && !rc; at = strchr(at, '\n') + 1, i++) {
        struct buf text = {0};
        if (atoi(at) == o->rank) {
            measured = true;
            rc = measure_products(o, &text, e);
            if (!rc)
                rc = put_text(o->link, "text", i, buf_str(&text), e);
        } else {
            rc = get_text(o, "text", i, &text, e);
            if (!rc)
                rc = import_sections(o, buf_str(&text), NULL, e);
        }
        if (!rc)
            add_to_record(record, buf_str(&text));
        buf_clear(&text);
    }
    buf_clear(&list);
    return rc || measured ? rc : exec_tune(o->exec, false, e);
}

static int warn_of_changes(const struct algorithms_options *o, const char *before, struct err *e)
{
    struct buf now = {0};
    int rc = o->backend->choice->write(o->device, &now, e);
    int changed = rc ? 0 : backend_choices_changed(before, buf_str(&now));
    if (changed)
        log_warn("numerics",
                 "%d of the checkpoint's algorithms cannot be had here: from now on sums may round "
                 "otherwise",
                 changed);
    buf_clear(&now);
    return rc;
}

int algorithms_agree(const struct algorithms_options *o, struct buf *record, struct err *e)
{
    struct buf own = {0}; // the checkpoint's choices for a device like this one
    if (!o->backend->choice)
        return 0;
    int rc = o->before ? import_sections(o, o->before, &own, e) : 0;
    if (rc)
        err_wrap(e, "cannot use the algorithms that the checkpoint recorded");
    else
        rc = o->ranks == 1 ? measure_products(o, record, e) : agree_with_ranks(o, record, e);
    if (!rc)
        rc = warn_of_changes(o, buf_str(&own), e);
    if (!rc && o->before && *find_section(o->before) && !own.len)
        log_warn("numerics", "the checkpoint's algorithms were chosen on another device or with "
                             "another library: from now on sums may round otherwise");
    buf_clear(&own);
    return rc;
}
