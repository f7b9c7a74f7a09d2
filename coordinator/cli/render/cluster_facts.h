// SPDX-License-Identifier: Apache-2.0
// What a cluster must know of a job, all of it derived from the job's plan, once for all formats in which it
// is written. Pure. Inside coordinator/cli/ only.
#pragma once
#include "common/explain/plan_report.h"

enum render_kind {
    RENDER_SLURM,
    RENDER_JOB,
    RENDER_JOBSET,
    RENDER_TRAINJOB,
    RENDER_SYSTEMD,
    RENDER_KINDS
};
extern const char *const render_names[RENDER_KINDS]; // as --for takes them

enum {
    RENDER_NAME_MAX =
        46, // of what a cluster calls it, with its end: pods' names hold more behind it
    RENDER_FACTS = 8,
    RENDER_PORT = 7700, // where the leader of a Kubernetes Job listens
};
#define RENDER_USER "10001" // of pods, unless another is given

struct render_flag { // of the `weft run` that is started
    const char *flag, *value;
};

// What no plan says. Texts are borrowed.
struct render_options {
    enum render_kind kind;
    const char *file;    // absolute path of the job file
    const char *folder;  // that it is in
    const char *program; // path of weft on the nodes; null: "weft", in PATH
    int per_node;        // devices that a node has; 0: eight, or for systemd all
    uint64_t rate;       // bytes a second that the storage takes; 0: nobody has measured it
    const char *image, *claim, *mount, *queue, *secret, *user; // null: the kind's own
    const struct render_flag *flags;
    int nflags;
};

struct render_fact { // a line of the output's head
    const char *name, *text;
};
struct render_facts {
    const struct render_options *o;
    const struct job *job;
    char name[RENDER_NAME_MAX]; // a DNS label that begins with a letter
    int nodes, per_node;        // per_node devices on each of the nodes
    int cores;                  // of a node
    uint64_t memory_mib;        // of a node
    uint64_t checkpoint, rate;  // bytes, bytes a second
    int grace_s;                // for ranks to save when they are asked to stop
    int stop_s;                 // before the cluster kills: grace_s, and time to end
    struct render_fact fact[RENDER_FACTS];
    int nfacts;
};

// Everything lies in `a`. ERR_INVALID: no such nodes run the job, or the job names what they cannot
// have; nothing of `out` is to be used then.
int render_facts_make(const struct render_options *o, const struct job *job,
                      const struct report *plan, struct arena *a, struct render_facts *out,
                      struct err *e);
// A comment line for each fact, behind `title`.
void render_head(const struct render_facts *f, const char *title, struct buf *out);

// The command line of `weft run`; `word` prints one word as the format wants it quoted, `more` stands
// behind the flags as it is.
void render_command(const struct render_facts *f, void (*word)(const char *text, struct buf *out),
                    const char *more, struct buf *out);

// slurm.c, kubernetes.c, systemd.c: append one file. ERR_INVALID: it cannot say what the job asks for.
typedef int render_fn(const struct render_facts *f, struct arena *a, struct buf *out,
                      struct err *e);
render_fn render_slurm, render_kubernetes, render_systemd;
