// SPDX-License-Identifier: Apache-2.0
// What the operations are made of.
#include "worker/collective/world.h"

const struct operation_kind operation_kinds[] = {
    [COLLECTIVE_ALL_REDUCE] = {"all_reduce", .scatter = true, .gather = true, .sums = true},
    [COLLECTIVE_REDUCE_SCATTER] = {"reduce_scatter", .scatter = true, .sums = true, .even = true},
    [COLLECTIVE_ALL_GATHER] = {"all_gather", .gather = true, .even = true},
    [COLLECTIVE_ALL_TO_ALL] = {"all_to_all", .gather = true, .even = true},
    [COLLECTIVE_BROADCAST] = {"broadcast", .gather = true},
    [COLLECTIVE_SEND] = {"send", .gather = true},
    [COLLECTIVE_RECV] = {"recv", .gather = true},
    [COLLECTIVE_BARRIER] = {"barrier"},
};

const char *collective_op_name(enum collective_op op)
{
    return operation_kinds[op].name;
}

enum collective_op collective_counterpart(enum collective_op op)
{
    switch (op) {
    case COLLECTIVE_SEND:
        return COLLECTIVE_RECV;
    case COLLECTIVE_RECV:
        return COLLECTIVE_SEND;
    default:
        return op;
    }
}
