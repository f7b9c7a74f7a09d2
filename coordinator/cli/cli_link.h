// SPDX-License-Identifier: Apache-2.0
// The client's connection to a coordinator, and what its failures mean to a person: which address
// was tried and where it came from, what is wrong there, what to do, and the exit code.
// Inside coordinator/cli/ only.
//
// A folder of `weft run` stands for the coordinator of its run. Where none is under way, what is stored
// is read, without a stream (`stored`), and a verb that acts has that coordinator in its own process.
//
// A verb that asks once calls cli_link_open, cli_link_ask, cli_link_close. One that follows a
// stream calls cli_link_open, cli_link_stream_open, and cli_link_stream_next for each event; the
// stream connects again by itself.
#pragma once
#include "common/base/arena.h"
#include "common/rpc/rpc.h"
#include "coordinator/cli/verbs.h"
#include "proto/weft.pb-c.h"

enum cli_link_method {
    LINK_SUBMIT,
    LINK_ACT,
    LINK_JOBS,
    LINK_STATUS,
    LINK_WHY,
    LINK_WORKERS,
    LINK_CHECKPOINTS,
    LINK_WATCH,
    LINK_LOGS,
    LINK_ROWS,
    LINK_METHODS
};

enum { LINK_ADDRESS_MAX = 320, LINK_TIMEOUT_S = 15, LINK_SUBMIT_S = 90 };

struct cli_link {
    const struct verb *verb;
    char address[LINK_ADDRESS_MAX];
    const char *origin;     // of the address: "--coordinator", "WEFT_COORDINATOR", …
    const char *tls;        // as the verb was given it, borrowed
    bool secure;            // certificates were given
    const char *own;        // the folder of `weft run`, whose own coordinator it is; else null
    const char *start_over; // then: what to do to start over
    const char *folder;     // .weft/NAME of a `weft run`, where --coordinator names one; else null
    int folder_fd;          // of it, for the address of the run that is under way; 0: none
    struct stored *stored;  // what is read of one that is not under way; else null
    struct own_coordinator *host; // the coordinator of one that a verb acts on; else null
    int lock;                     // then: of the folder
    struct rpc *rpc;
    struct rpc_channel *channel;
    struct arena arena;
};

// Returns an exit code; what went wrong has been printed. From now on Ctrl-C ends the process with
// 130.
int cli_link_open(struct cli_link *l, const struct verb *v, const struct args *a);
// As cli_link_open, but for doctor and run: prints nothing and leaves signals alone.
int cli_link_dial(struct cli_link *l, const struct verb *v, const char *address, const char *tls,
                  struct err *e);
void cli_link_close(struct cli_link *l);

// Returns an exit code; a failure has been printed. *reply, of the method's type, is the caller's
// to free with cli_link_free.
int cli_link_ask(struct cli_link *l, enum cli_link_method m, const ProtobufCMessage *request,
                 ProtobufCMessage **reply);
// As cli_link_ask, but prints nothing: returns ERR_PEER, or ERR_REFUSED with *code.
int cli_link_try(struct cli_link *l, enum cli_link_method m, const ProtobufCMessage *request,
                 int64_t timeout_ns, ProtobufCMessage **reply, enum rpc_code *code, struct err *e);
void cli_link_free(void *message);
// Prints why a call failed; returns its exit code.
int cli_link_explain(const struct cli_link *l, enum rpc_code code, const char *text);

// ---- streams ----
struct cli_link_stream {
    struct cli_link *link;
    enum cli_link_method method;
    uint64_t call;   // 0 while none is open
    bool heard;      // whether anything came since it was opened
    int64_t away_ns; // since when the coordinator is away; 0 if it is there
    int tries;
    int64_t again_ns; // when to open the next; monotonic
};
enum cli_link_said {
    LINK_NOTHING, // nothing came in time
    LINK_MESSAGE, // *m is the caller's to free with cli_link_free
    LINK_AWAY,    // the stream broke (code, text) and will be opened again
    LINK_END,     // the coordinator ended it in order
    LINK_FAILED,  // it broke (code, text) and will not be opened again
};
// Opens the call, in place of one that is open. The request may change from one call to the next.
void cli_link_stream_open(struct cli_link_stream *s, const ProtobufCMessage *request);
// Waits for one event. `request` is what to ask if the stream has to be opened again. If `patient`,
// a coordinator that was never reached is waited for too; else the first failure is LINK_FAILED.
enum cli_link_said cli_link_stream_next(struct cli_link_stream *s, const ProtobufCMessage *request,
                                        bool patient, int64_t timeout_ns, ProtobufCMessage **m,
                                        enum rpc_code *code, char text[RPC_TEXT_MAX]);

// Finds the certificates in a --tls folder: ca.pem, and client.* or else admin.*. Without a folder
// (null or "") there are none.
int cli_link_tls(const char *dir, struct arena *a, struct rpc_tls *out, struct err *e);
