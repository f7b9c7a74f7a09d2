// SPDX-License-Identifier: Apache-2.0
// weft: the client. This version has the verbs that need no coordinator.
#include <stdio.h>
#include <string.h>

#include "coordinator/cli/verbs.h"

static const struct verb verbs[] = {
    {"plan", "JOB.yaml [-s key=value]… [--device MODEL] [--json]",
     "what the job needs: shards, memory, collectives; runs nothing", verb_plan},
    {"schema", "[--markdown | --json]", "every key of a job file", verb_schema},
    {"ckpt", "ls|verify DIR [--json]", "list checkpoints, or read and check every byte", verb_ckpt},
    {"data", "inspect FILE… [--json]", "format, shape and values of data files", verb_data},
};
enum { VERBS = sizeof verbs / sizeof *verbs };

static void help(FILE *to)
{
    fprintf(to, "weft %s: distributed training as a service\n\n", WEFT_VERSION);
    for (int i = 0; i < VERBS; i++)
        fprintf(to, "  weft %-7s %s\n               %s\n", verbs[i].name, verbs[i].args,
                verbs[i].doc);
    fprintf(to, "\nexit: 0 ok, 1 something is wrong, 2 usage or bad job file\n");
}

int usage(const struct verb *v, const char *what)
{
    fprintf(stderr, "weft %s: %s\nusage: weft %s %s\n", v->name, what, v->name, v->args);
    return CLIENT_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return CLIENT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return CLIENT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", WEFT_VERSION);
        return CLIENT_OK;
    }
    for (int i = 0; i < VERBS; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) {
            int rc = verbs[i].run(&verbs[i], argc - 2, argv + 2);
            if (fflush(stdout) == 0)
                return rc;
            perror("weft: cannot write");
            return CLIENT_FAILED;
        }
    fprintf(stderr, "weft: no verb '%s'\n", argv[1]);
    help(stderr);
    return CLIENT_USAGE;
}
