// SPDX-License-Identifier: Apache-2.0
// The tables of a rank's states and exit codes; see life.h.
#include "common/attempt/life.h"

#include <signal.h>
#include <stddef.h>

#include "common/base/err.h"

const char *rank_state_text(int state)
{
    static const char *const text[RANK_STATE_COUNT] = {
#define X(id, name) [RANK_##id] = name,
        RANK_STATES(X)
#undef X
    };
    return state >= 0 && state < RANK_STATE_COUNT ? text[state] : "in an unknown state";
}

// Whose fault it is decides: the user's input and paths 78, the bytes of data 65, those of the checkpoint
// 67, data that is not on this machine 66, somebody else's end 69, the device 71, the machine's memory, disk
// or address 74; the rest is ours and worth another try.
static const unsigned char exits[ERR_COUNT] = {
    [ERR_INVALID] = RANK_EXIT_CONFIG,     [ERR_DATA] = RANK_EXIT_DATA,
    [ERR_CORRUPT] = RANK_EXIT_DAMAGED,    [ERR_IO] = RANK_EXIT_INTERNAL,
    [ERR_EXISTS] = RANK_EXIT_CONFIG,      [ERR_NOTFOUND] = RANK_EXIT_CONFIG,
    [ERR_FENCED] = RANK_EXIT_LOST,        [ERR_PEER] = RANK_EXIT_LOST,
    [ERR_TIMEOUT] = RANK_EXIT_LOST,       [ERR_ABORTED] = RANK_EXIT_LOST,
    [ERR_DEVICE] = RANK_EXIT_DEVICE,      [ERR_LIMIT] = RANK_EXIT_INTERNAL,
    [ERR_UNSUPPORTED] = RANK_EXIT_CONFIG, [ERR_NOMEM] = RANK_EXIT_HOST,
    [ERR_INTERNAL] = RANK_EXIT_INTERNAL,  [ERR_ABSENT] = RANK_EXIT_ABSENT,
};

int rank_exit_code(int err)
{
    if (!err)
        return RANK_EXIT_DONE;
    int code = err > 0 && err < ERR_COUNT ? exits[err] : 0;
    return code ? code : RANK_EXIT_INTERNAL;
}

bool rank_exit_is_cause(int code)
{
    return code != RANK_EXIT_DONE && code != RANK_EXIT_LOST && code != RANK_EXIT_DRAINED;
}

bool rank_exit_is_lasting(int code)
{
    return code == RANK_EXIT_DATA || code == RANK_EXIT_ABSENT || code == RANK_EXIT_DAMAGED ||
           code == RANK_EXIT_CONFIG;
}

bool rank_exit_is_of_host(int code)
{
    return code == RANK_EXIT_DEVICE || code == RANK_EXIT_HOST;
}

bool rank_signal_is_of_host(int signal)
{
    static const int own[] = {SIGSEGV, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i] == signal)
            return false;
    return signal > 0;
}

const char *rank_exit_text(int code)
{
    static const struct {
        int code;
        const char *text;
    } texts[] = {
        {RANK_EXIT_DONE, "done"},
        {RANK_EXIT_DATA, "bad data or numbers"},
        {RANK_EXIT_ABSENT, "its data cannot be opened"},
        {RANK_EXIT_DAMAGED, "its checkpoint is damaged"},
        {RANK_EXIT_LOST, "lost a peer"},
        {RANK_EXIT_DEVICE, "device failed"},
        {RANK_EXIT_HOST, "the host's disk, memory or network failed"},
        {RANK_EXIT_DRAINED, "drained"},
        {RANK_EXIT_CONFIG, "bad configuration"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "failed";
}
