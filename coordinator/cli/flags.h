// SPDX-License-Identifier: Apache-2.0
// The client's flags: one table for all verbs, so that a flag means the same everywhere. Flags and
// arguments may be mixed; "--flag value" and "--flag=value" are the same; "--" ends the flags.
// Inside coordinator/cli/ only.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct verb;

enum flag {
#define X(flag, ...) FLAG_##flag,
#include "coordinator/cli/flags.def"
#undef X
    FLAGS
};
__extension__ typedef unsigned __int128 flag_set; // a bit a flag
#define FLAG_BIT(f) ((flag_set)1 << (f))
_Static_assert(FLAGS <= 128, "flag_set");

enum { ARGS_MAX_SET = 256, ARGS_MAX = 1024, ARGS_MAX_STOP = 64, ARGS_MAX_PAIRS = 15 };

struct args { // texts are borrowed from argv
    const char *coordinator, *tls, *device, *request, *why, *dir;
    bool json, csv, log, metrics, markdown, all, follow, fresh, yes, full;
    const char *state, *since, *sort, *tag;
    const char *tokenizer, *ids, *show, *device_file, *continues;
    const char *to, *dtype, *program;
    uint64_t shard_size; // bytes; 0: not given
    int64_t from_step;   // -1: from the newest checkpoint
    int rank;            // -1 for all
    int lines;           // the last so many; 0 for all
    int attempt;         // 0 for all
    const char *out, *format, *field, *end, *val_fraction;
    int64_t shard_tokens, vocab; // 0: not given
    int threads;                 // 0: all cores
    const char *set[ARGS_MAX_SET];
    int nset;
    struct args_pairs { // NAME=COMMAND, NAME=URL
        const char *v[ARGS_MAX_PAIRS];
        int n;
    } sinks, notify;
    const char *mesh, *data, *labels;
    int batch; // 0: the verb's own
    const char *prompt, *prompts;
    int64_t tokens;                    // 0: not given
    int samples, context, top_k, seed; // 0: not given
    double temperature, top_p, min_p, penalty;
    bool slide, no_cache, generate;
    int chunk;
    const char *render, *image, *claim, *queue, *secret, *user, *hosts, *ssh, *weft;
    int per_node;        // devices; 0: not given
    uint64_t write_rate; // bytes a second; 0: not given
    int64_t grace_ns;    // 0: not given
    const char *keys, *svg;
    double smooth;                              // 0: not
    const char *stop[ARGS_MAX_STOP], *stop_ids; // texts; "1,2"
    int nstop;
    const char *pos[ARGS_MAX]; // the arguments that are no flags
    int npos;
};

enum flag_type {
    IS_SWITCH,
    IS_TEXT,
    IS_NUMBER,
    IS_STEP,
    IS_COUNT,
    IS_BYTES,
    IS_DURATION,
    IS_REAL,
    IS_LIST,
    IS_STOPS,
    IS_PAIRS
};
extern const struct flag_row {
    const char *name, *brief; // "--json"; "-f", "" if it has no short one
    const char *value, *doc;  // what its value is called, "" if it takes none; what it does
    enum flag_type type;
    size_t offset; // in struct args
} flag_rows[FLAGS];

// argv[0] is the first word after the verb. Returns an exit code; what is wrong has been printed.
int flags_parse(struct args *a, const struct verb *v, int argc, char **argv);
// The VALUE of NAME=VALUE; null: nobody gave it.
const char *args_pair(const struct args_pairs *p, const char *name);
