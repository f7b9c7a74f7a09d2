// SPDX-License-Identifier: Apache-2.0
// Rules of the protocol by name. In products WEFT_RULE(x) is the constant true and leaves nothing
// behind; in the simulator's build (-DWEFT_FAULTS) a test takes one rule away and sees that some
// schedule then goes wrong.
#pragma once

// The odd sentences of design §9 and §10, each of which closes a hole that was seen.
#define WEFT_RULES(X)                                                                        \
    X(fence_rename)       /* a fence renames what older epochs have open */                  \
    X(fence_fsync)        /* and syncs the directory before it answers */                    \
    X(epoch_marker)       /* epoch-E is made, once */                                        \
    X(fsync_shard)        /* before ShardDone */                                             \
    X(fsync_directory)    /* the checkpoint's directory is synced */                         \
    X(fsync_parent)       /* the job's directory is synced */                                \
    X(trash_fsync)        /* before a deleted checkpoint's files go */                       \
    X(commit_all_in)      /* ORDERED only when every shard is in */                          \
    X(reply_after_commit) /* a transaction first, then what it answered */                   \
    X(request_ids)        /* a repeated call gets the first answer */                        \
    X(reaped_frees)       /* devices are freed when all is reaped, not before */             \
    X(incarnation)        /* messages meant for, or from, another incarnation are refused */ \
    X(refuse_reaped)      /* a worker refuses an Assign up to the epoch it has reaped */     \
    X(no_save)            /* no save while one is open */                                    \
    X(last_save_waits)    /* the last save waits for the open one's answer */                \
    X(ordered_durable)    /* ORDERED is written before the order goes out */                 \
    X(fence_durable)      /* the fence's answer is written before the first Assign */        \
    X(first_answer)       /* the writer repeats its first answer for a step */               \
    X(nonce)              /* a registration counts once it echoes the newest nonce */        \
    X(grace)              /* a lease of grace after a restart or a stall */                  \
    X(shard_repeated)     /* a ShardDone not answered is repeated on re-attach */            \
    X(barrier_brought)    /* an answer brought back is the answer */

enum weft_rule {
#define X(name) RULE_##name,
    WEFT_RULES(X)
#undef X
        RULE_COUNT
};

#ifdef WEFT_FAULTS
extern unsigned long long weft_rules_off; // a bit a rule
#define WEFT_RULE(name) (!((weft_rules_off >> RULE_##name) & 1))
#else
#define WEFT_RULE(name) 1
#endif
