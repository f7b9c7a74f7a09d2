// SPDX-License-Identifier: Apache-2.0
// Chooses what carries an attempt's collectives (transport.h): the devices, where they can, or their
// hosts. All ranks come to one choice, by what each of them offers.
#pragma once
#include "worker/collective/transport.h"

enum transport_wish { TRANSPORT_AUTO, TRANSPORT_DEVICES, TRANSPORT_HOST };

struct transport_options {
    enum transport_wish wish;
    struct world *world;
    int rank, ranks;
    const char *host; // ranks with equal text are on one host
    bool plain;       // between hosts tensors may travel unencrypted
    const struct backend *backend;
    struct device *device;
};

// ERR_UNSUPPORTED: the devices were asked for and cannot; the text says which rank's, why, and what to
// do. With TRANSPORT_AUTO the hosts carry them then, and rank 0 logs why.
// by: what carries them, for the record of numerics: "NCCL 2.28.9, pinned", "hosts".
enum { TRANSPORT_BY = 64 };
int transport_choose(const struct transport_options *o, const struct transport **out,
                     char by[TRANSPORT_BY], struct err *e);
