// SPDX-License-Identifier: Apache-2.0
// What Slurm's queue says of a job; see slurm_queue.h.
#include "coordinator/cli/slurm_queue.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "coordinator/cli/slurm_call.h"

#define ASK_NS (15 * CLOCK_S)
enum { COLUMNS = 7 };

const char *slurm_reason_means(const char *reason)
{
    static const struct {
        const char *reason, *means;
    } known[] = {
        {"Priority", "jobs of a higher priority are in front of it"},
        {"Resources", "it is the next, once enough nodes are free"},
        {"BeginTime", "it was queued again a moment ago, or begins later (--begin)"},
        {"Dependency", "it waits for another job (--dependency)"},
        {"DependencyNeverSatisfied", "the job that it waits for has failed: scancel it"},
        {"JobHeldUser", "it is held: scontrol release continues it"},
        {"JobHeldAdmin", "an administrator holds it"},
        {"JobArrayTaskLimit", "so many of its array's tasks run already (--array=…%N)"},
        {"PartitionTimeLimit", "--time is longer than the partition allows"},
        {"PartitionNodeLimit", "it asks for more nodes than the partition has or allows"},
        {"PartitionDown", "the partition starts no jobs now"},
        {"PartitionInactive", "the partition starts no jobs now"},
        {"ReqNodeNotAvail", "nodes that it needs are down, drained or reserved"},
        {"AssocGrpNodeLimit", "the account's nodes are all in use"},
        {"QOSMaxJobsPerUserLimit", "so many jobs of yours run already"},
        {"launch failed requeued held", "a node could not start it: scontrol release tries again"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(reason, known[i].reason, strcspn(reason, ",")) == 0 &&
            !known[i].reason[strcspn(reason, ",")])
            return known[i].means;
    return strncmp(reason, "Nodes required for job are DOWN", 31) == 0
               ? "nodes that it needs are down, drained, or taken by a higher partition"
               : NULL;
}

int slurm_queue_parse(const char *text, struct slurm_line out[SLURM_LINES], int *n, struct err *e)
{
    for (*n = 0; *text && *n < SLURM_LINES; text += *text == '\n') {
        struct slurm_line *l = &out[*n];
        char *const words[COLUMNS] = {l->id,     l->state, l->nodes, l->submitted,
                                      l->starts, l->ran,   l->reason};
        for (int i = 0; i < COLUMNS; i++) {
            // The reason may hold anything; it is the last.
            size_t len = strcspn(text, i + 1 < COLUMNS ? "|\n" : "\n");
            if ((i + 1 < COLUMNS) != (text[len] == '|'))
                return err_set(e, ERR_DATA, "squeue printed '%.80s', which is no line of a job",
                               text);
            snprintf(words[i], SLURM_WORD, "%.*s", (int)(len < SLURM_WORD ? len : SLURM_WORD - 1),
                     text);
            text += len + (i + 1 < COLUMNS);
        }
        ++*n;
    }
    return 0;
}

int slurm_queue_ask(const char *job, struct slurm_line out[SLURM_LINES], int *n, struct err *e)
{
    char squeue[] = "squeue", header[] = "-h", states[] = "-t", all[] = "all", select[] = "-j",
         id[32], format[] = "-o", columns[] = "%i|%T|%D|%V|%S|%M|%r";
    char *argv[] = {squeue, header, states, all, select, id, format, columns, NULL};
    struct buf answer = {0};
    snprintf(id, sizeof id, "%s", job);
    *n = 0;
    int rc = slurm_call(&(struct slurm_call){.argv = argv, .quiet = true, .wait_ns = ASK_NS},
                        &answer, e);
    if (!rc)
        rc = slurm_queue_parse(buf_str(&answer), out, n, e);
    buf_clear(&answer);
    if (rc != ERR_REFUSED) // it ends so for a job that it has forgotten
        return rc;
    *e = (struct err){0};
    return 0;
}
