// SPDX-License-Identifier: Apache-2.0
// weft-sink: how a worker starts the programs that get a job's metrics, and the one that comes with weft.
//
//   weft-sink tensorboard                 header and rows on standard input: TensorBoard's events
//   weft-sink --parent PID COMMAND ARG…   becomes COMMAND, which dies with the worker's thread PID belongs to
//
// Exit codes: 0 all rows are durable · 1 not · 2 usage · 127 COMMAND cannot be run
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common/base/plain.h"
#include "worker/sinks/tensorboard.h"

int main(int argc, char **argv)
{
    struct err e = {0};
    if (argc == 2 && !strcmp(argv[1], "tensorboard")) {
        if (!tensorboard_run(STDIN_FILENO, STDOUT_FILENO, &e))
            return 0;
        plain_error("tensorboard: %s", e.text);
        return 1;
    }
    if (argc < 4 || strcmp(argv[1], "--parent") != 0) {
        plain_error(
            "usage: weft-sink tensorboard, with a header and rows of metrics on standard input");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)strtol(argv[2], NULL, 10))
        return 1;                 // it was gone before
    (void)close_range(3, ~0U, 0); // nothing of the worker's
    execvp(argv[3], argv + 3);
    plain_error("cannot run %s: %m", argv[3]);
    return 127;
}
