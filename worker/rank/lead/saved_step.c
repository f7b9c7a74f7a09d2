// SPDX-License-Identifier: Apache-2.0
// DIR/saved; see saved_step.h.
#include "worker/rank/lead/saved_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/folder.h"
#include "common/base/log.h"

int64_t saved_step_read(const char *dir)
{
    static const char *const names[] = {"saved", "state"};
    static const char key[] = "step ";
    char text[1024];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *at =
            folder_read(dir, names[i], text, sizeof text, NULL) ? NULL : strstr(text, key);
        if (at)
            return atoll(at + strlen(key));
    }
    return 0;
}

int64_t saved_step_trained(const char *dir)
{
    static const char head[] = "{\"step\":";
    char path[5000], *line = NULL;
    size_t room = 0;
    int64_t step = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "re");
    for (ssize_t n; f && (n = getline(&line, &room, f)) > 0;)
        if (!strncmp(line, head, strlen(head)) && line[n - 1] == '\n') // a torn row is none
            step = atoll(line + strlen(head));
    free(line);
    if (f)
        fclose(f);
    return step;
}

void saved_step_write(const char *dir, int64_t step)
{
    char text[40];
    struct err e = {0};
    snprintf(text, sizeof text, "step %lld\n", (long long)step);
    if (folder_write(dir, "saved", text, FOLDER_LOOSE, &e))
        log_warn("solo", "%s", e.text);
}
