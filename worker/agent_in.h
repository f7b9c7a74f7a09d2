// SPDX-License-Identifier: Apache-2.0
// Inside of the agent: its state, and what agent.c (the stream, time), agent_ranks.c (attempts and
// their processes) and agent_say.c (messages up) share.
#pragma once
#include "worker/agent.h"
#include "worker/attempts.h"

enum agent_state {
    AGENT_AWAY,        // no stream; CONNECT was asked, OPEN or CLOSED comes
    AGENT_GREETING,    // Hello was said
    AGENT_REGISTERING, // Register was said
    AGENT_ATTACHED,
    AGENT_CLOSING, // DISCONNECT was asked, CLOSED comes
    AGENT_FENCED,  // kills; when nothing lives CLEAR, and CLEARED comes; or a twin, which exits
    AGENT_DONE,    // EXIT was asked: every event is ignored
    AGENT_STATES
};

struct storing { // one durable act at a time a job
    struct list link;
    Weft__V1__Storage *now, *next; // next: the newest that came meanwhile, or null
};

struct agent {
    struct agent_config c; // its texts are the arena's
    struct arena texts;
    char *cluster, *incarnation; // change; null: no cluster yet
    enum agent_state state;
    bool stream;   // there is one, or one is being opened
    bool twin;     // FENCED: exits
    bool clearing; // FENCED: CLEAR was asked
    int failures;  // to attach, in a row
    uint32_t draws;
    int64_t lease_ns, heartbeat_ns;
    int64_t state_ns;         // since when in `state`
    int64_t heard_ns;         // from the coordinator
    int64_t looked_ns;        // the last TICK
    int64_t next_ns;          // when the next one was due; 0: none was
    int64_t beat_ns, told_ns; // the last heartbeat, the last Progresses
    uint64_t seq;
    bool beat_now;   // a heartbeat says something new
    int terms;       // AGENT_EV_TERM so far
    int64_t term_ns; // the end of the grace
    struct attempts t;
    struct list storing;
};

struct agent_action *agent_act(struct agent_out *out, enum agent_action_kind kind);

// ---- agent_ranks.c ----
void agent_start(struct agent *g, const Weft__V1__Start *s, int64_t now, struct agent_out *out);
void agent_stop(struct agent *g, const Weft__V1__Stop *s, int64_t now, struct agent_out *out);
void agent_sync(struct agent *g, const Weft__V1__Sync *s, struct agent_out *out);
void agent_frame_down(struct agent *g, const Weft__V1__RankFrame *f, struct agent_out *out);
void agent_frame_up(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_spawned(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_ended(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_page(struct agent *g, const struct agent_event *ev);
// Stop frames to every rank that lives, SIGKILL at `kill_ns`.
void agent_drain(struct agent *g, const char *reason, int64_t now, int64_t kill_ns,
                 struct agent_out *out);
void agent_kill_all(struct agent *g, struct agent_out *out);
void agent_kill_due(struct agent *g, int64_t now, struct agent_out *out);
void agent_forget_all(struct agent *g, struct agent_out *out);

// ---- agent_say.c: nothing goes up unless ATTACHED (but hello and register) ----
void say_hello(struct agent *g, struct agent_out *out);
void say_register(struct agent *g, const Weft__V1__Challenge *c, int64_t now,
                  struct agent_out *out);
void say_heartbeat(struct agent *g, int64_t now, struct agent_out *out);
void say_progress(struct agent *g, int64_t now, struct agent_out *out);
bool say_has_progress(const struct agent *g);
void say_frame(struct agent *g, const struct kept *k, int rank, const Weft__Rank__Frame *f,
               struct agent_out *out);
void say_end(struct agent *g, struct kept_rank *r, int64_t now, struct agent_out *out);
void say_reaped(struct agent *g, const char *job, uint64_t epoch, struct agent_out *out);
void say_leaving(struct agent *g, int64_t now, struct agent_out *out);
void say_storage(struct agent *g, const Weft__V1__StorageDone *d, struct agent_out *out);
void say_log(struct agent *g, const Weft__V1__LogChunk *c, struct agent_out *out);
// What was not answered and last went up before `before_ns` goes up again.
void say_again(struct agent *g, int64_t now, int64_t before_ns, struct agent_out *out);
