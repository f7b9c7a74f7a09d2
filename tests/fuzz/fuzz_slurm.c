// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as each text by which processes of an allocation learn what they are: squeue's
// lines and time left, Slurm's list of hosts, the place of a run, and the order of `weft up`.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/job/until.h"
#include "coordinator/cli/run_place.h"
#include "coordinator/cli/slurm_queue.h"
#include "coordinator/cli/up_order.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void read_queue(const char *text)
{
    static struct slurm_line lines[SLURM_LINES];
    struct err e = {0};
    int n = -1;
    if (slurm_queue_parse(text, lines, &n, &e)) {
        must(e.code == ERR_DATA && *e.text);
        return;
    }
    must(n >= 0 && n <= SLURM_LINES && (n > 0) == (*text != 0));
    for (int i = 0; i < n; i++) {
        const char *const words[] = {lines[i].id,        lines[i].state,  lines[i].nodes,
                                     lines[i].submitted, lines[i].starts, lines[i].ran,
                                     lines[i].reason};
        for (int k = 0; k < 7; k++)
            must(strlen(words[k]) < SLURM_WORD && !strchr(words[k], '\n'));
        (void)slurm_reason_means(lines[i].reason);
    }
}

// What is accepted is what such a run would have written.
static void read_place(const char *text, size_t size)
{
    struct run_place p;
    struct buf again = {0};
    if (run_place_parse(text, size, &p, NULL))
        return;
    buf_printf(&again, "root %s\n%s%s%s", p.root, *p.job ? "job " : "", p.job, *p.job ? "\n" : "");
    must(*p.root == '/' && again.len == size && !memcmp(again.data, text, size));
    buf_clear(&again);
}

static void read_order(const char *text, size_t size)
{
    static struct up_order o;
    static struct several s;
    size_t len;
    if (!up_order_length(text, &len, NULL))
        must(len > 0 && len <= UP_ORDER_MAX);
    if (size > UP_ORDER_MAX || up_order_parse(text, size, &o, NULL))
        return;
    must(o.index >= 0 && o.index < o.size && o.size <= ALLOCATION_MAX && *o.folder == '/');
    must(o.nwords > 0 && o.nwords <= UP_ORDER_WORDS);
    up_order_take(&o, &s);
    must(!strcmp(s.secret.text, o.secret) && !strcmp(s.a.host, o.host));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = 0;
    read_queue(text);
    must(until_read_time_left(text) >= -1);
    int hosts = allocation_count_hosts(text);
    must(hosts == -1 || (hosts > 0 && hosts <= ALLOCATION_MAX));
    read_place(text, size);
    read_order(text, size);
    free(text);
    return 0;
}
