// SPDX-License-Identifier: Apache-2.0
// Inside worker/agent/ only: the agent's state, and what its files call of each other. Calls go
// down:
//
//   agent.c           events, the stream's states, time, the end; settles after every event
//     agent_ranks.c     what events mean for attempts and ranks; what follows from it
//       agent_messages.c  actions, and the messages that go up
//         attempts.c        what is remembered
#pragma once
#include "worker/agent/agent.h"
#include "worker/agent/attempts.h"

enum agent_state {
    AGENT_AWAY,        // no stream; CONNECT was asked for, OPEN or CLOSED comes
    AGENT_GREETING,    // Hello was sent
    AGENT_REGISTERING, // Register was sent
    AGENT_ATTACHED,
    AGENT_CLOSING, // DISCONNECT was asked for, CLOSED comes
    AGENT_FENCED,  // kills; when nothing lives it asks for CLEAR, and CLEARED comes; a twin exits
    AGENT_DONE,    // EXIT was asked for: every event is ignored
    AGENT_STATES
};

// The durable acts of a job: one at a time, and of those that come meanwhile the newest is next.
struct storage_queue {
    struct list link;
    Weft__V1__Storage *now, *next; // either may be null; with both it ends
};

struct agent {
    unsigned char seed[32];
    Weft__V1__Register *about;   // what this host is; the rest of it is filled in when it is sent
    int64_t grace_ns;            // for SIGTERM's drain
    char *cluster, *incarnation; // they change; cluster is null until one is known
    enum agent_state state;
    bool stream;   // there is one, or one is being opened
    bool twin;     // FENCED: another worker has this host's id, so this one exits
    bool clearing; // FENCED: CLEAR was asked for
    int failures;  // to attach, in a row
    uint32_t draws;
    int64_t lease_ns, heartbeat_ns;
    int64_t state_ns;        // since when it has been in `state`
    int64_t heard_ns;        // when the coordinator last said something
    int64_t looked_ns;       // the last TICK
    int64_t next_ns;         // when the next one was due; 0: none was
    int64_t heartbeat_at_ns; // the last heartbeat
    int64_t progress_at_ns;  // the last Progresses
    uint64_t heartbeat_seq;
    bool heartbeat_now; // it would say something new
    struct agent_room room;
    int terms;       // AGENT_EV_TERM so far
    int64_t term_ns; // the end of the grace
    struct attempts attempts;
    struct list storing; // storage_queue
};

// ---- agent_ranks.c: handlers write down what happened ----
void agent_start(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_stop(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_sync(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_frame_down(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_frame_up(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_spawned(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_ended(struct agent *g, const struct agent_event *ev, struct agent_out *out);
void agent_page(struct agent *g, const struct agent_event *ev, struct agent_out *out);
// A Stop frame goes to every rank that lives, SIGKILL at `kill_ns`.
void agent_drain(struct agent *g, const char *reason, int64_t now, int64_t kill_ns,
                 struct agent_out *out);
void agent_kill_all(struct agent *g, struct agent_out *out);
void agent_forget_all(struct agent *g); // nothing lives, and a new incarnation begins
// Marks what was sent up before `before_ns` and was not answered, so that it goes up again.
void agent_repeat(struct agent *g, int64_t before_ns);
// Called when the agent has attached: looks at what was left unsent meanwhile.
void agent_resume(struct agent *g);
// Draws the consequences of what happened, sends what is unsent, frees what is over.
void agent_settle_attempts(struct agent *g, int64_t now, struct agent_out *out);

// ---- agent_messages.c: but for Hello and Register nothing goes up unless it is ATTACHED ----
struct agent_action *agent_act(struct agent_out *out, enum agent_action_kind kind);
void send_hello(struct agent *g, struct agent_out *out);
void send_register(struct agent *g, const Weft__V1__Challenge *c, int64_t now,
                   struct agent_out *out);
void send_heartbeat(struct agent *g, int64_t now, struct agent_out *out);
void send_progress(struct agent *g, int64_t now, struct agent_out *out);
bool agent_has_progress(const struct agent *g);
void send_frame(struct agent *g, const struct local_attempt *at, int rank,
                const Weft__Rank__Frame *f, struct agent_out *out);
void send_end(struct agent *g, const struct attempt_rank *r, struct agent_out *out);
void send_reaped(struct agent *g, const char *job, uint64_t attempt, struct agent_out *out);
void send_leaving(struct agent *g, int64_t now, struct agent_out *out);
void send_storage(struct agent *g, const Weft__V1__StorageDone *d, struct agent_out *out);
void send_log(struct agent *g, const Weft__V1__LogChunk *c, struct agent_out *out);
// Until it is answered, and with every Register.
bool agent_repeats_frame(const Weft__Rank__Frame *f);
