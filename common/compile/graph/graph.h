// SPDX-License-Identifier: Apache-2.0
// The graph: one microbatch's computation on global shapes, in an order that can be run.
//
// A model builds the forward part with graph_op and friends; grad.c adds the backward part, the
// optimiser (optimiser.c) the update; partition.c makes a second graph from it in which every value
// has a spec and collectives are nodes of their own. Everything lives in the graph's arena.
//
// Values have at most one producer. What outlives a microbatch: parameters and optimiser state, which the
// update changes in place (its outputs are new values with `alias`), and *sums*, which collect
// contributions: gradients, the loss and its parts. A contribution is a value like any other until the
// program writes it into its sum's buffer.
#pragma once
#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/compile/layout/reshard.h"
#include "common/op/dims.h"
#include "common/op/op.h"
#include "common/op/point.h"

// WEIGHTS: the part of the backward that makes weights' gradients, where a schedule has it apart.
enum phase { PHASE_FORWARD, PHASE_BACKWARD, PHASE_WEIGHTS, PHASE_UPDATE, PHASE_COUNT };
const char *phase_name(enum phase p);

enum value_kind {
    VALUE_INPUT,  // read from the data set: in whatever cut an op wants, never a collective
    VALUE_SCALAR, // set by the host each step: control bits, learning rate
    VALUE_PARAM,
    VALUE_STATE, // of the optimiser
    VALUE_COPY,  // a parameter in the compute dtype, as the update left it (copies.h)
    VALUE_SUM,   // collects contributions over the microbatches
    VALUE_CACHE, // rows of keys, which outlive a run (cached_keys.h)
    VALUE_TEMP,
};

// Whose kernels run it. Programs mean the same on all backends; the scratch of their ops differs.
enum backend_kind { BACKEND_CPU, BACKEND_CUDA, BACKEND_KINDS };

// TRUNCATED: a normal that is drawn within twice its deviation and then scaled, so that what is left
// has the deviation that is said.
enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_TRUNCATED, INIT_UNIFORM };

struct value {
    const char *name; // "layers/0/weight", "grad/layers/0/weight", or null for what has no name
    enum value_kind kind;
    enum dtype dtype;
    struct shape shape;      // global, of one microbatch
    enum dim dims[MAX_DIMS]; // logical names
    enum point point;
    bool open;           // one of several contributions to a cotangent: stays as it is made
    int producer;        // node, −1 for none
    int alias;           // the value whose buffer this one is, changed in place; −1: its own
    int of;              // STATE, COPY, gradient SUM, a parameter's cast: the parameter; −1
    enum init_kind init; // PARAM
    float init_std;
    bool frozen;             // PARAM: stays as it is
    bool share;              // a sum over a microbatch's samples (carry.h)
    int8_t born[MAX_DIMS];   // DIM_BATCH, DIM_SEQ: along the data's, however it is called (carry.h)
    int64_t limit[MAX_DIMS]; // entries of the dimension from here on are padding; 0: none
    struct spec spec;        // set by the partitioner
    uint64_t stages;         // of the partitioned graph: those that have it, a bit each
};

// RESHARD is one step of a reshard. The last two are made by stage.c: a send takes its input to the
// next stage or the one before, a stage sum adds up what the stages of a group have.
enum node_kind { NODE_OP, NODE_RESHARD, NODE_SEND, NODE_STAGE_SUM };
// What the first microbatch makes stays for the others of the step.
enum node_when { EVERY_MICROBATCH, FIRST_MICROBATCH, LAST_MICROBATCH };

struct node {
    enum node_kind kind;
    enum op op;
    bool sums_cotangent; // ADD: of contributions to one cotangent, which partition.c adds per spec
    struct op_attr attr;
    struct reshard_step step; // of its one input
    const char *what;         // all but OP: the tensor it is about, for people
    int64_t hides, from;      // the last ADD of causal(): of which dim's keys, and its window
    axis_set owner;           // counts at coordinate 0 of these axes only: elsewhere its scale is 0
    int nin, nout, in[OP_MAX_IN], out[OP_MAX_OUT];
    int scope, line;  // index into scopes; of the model's text, 0: none
    int layer;        // of the model, from 0; what stands outside of layers is with the one before
    int place;        // on the way through the pipeline: chunk · stages + stage
    int stage, chunk; // of the partitioned graph (stage.c): where it stands; SEND: the sender
    int peer, peer_chunk; // SEND: the receiver
    uint64_t stages;      // those that run it, a bit each
    enum phase phase;
    enum node_when when;
    bool again; // a forward node that the backward runs once more (remat.h)
    int bucket; // RESHARD: neighbours of one number, from 1, travel together (bucket.h); 0: alone
};

// Contributions, in the order they are made, and the sum they go into.
struct sum {
    int value, n, cap, *contrib;
};

// A companion of the loss (accuracy, how often each expert was chosen): a sum of so many numbers.
// Several may have one name, as those of all layers have.
struct loss_part {
    const char *name;
    int value;
    int64_t count;
};

// A parameter that no gradient trains: after each step every element goes a step towards where its
// load, the part of this number, would be the mean of all (op BALANCE).
struct balance {
    int param, part;
    float rate;
};

struct graph {
    struct arena *arena;
    struct dims *dims; // borrowed: the job's other graphs and its rules have the same
    struct value *values;
    struct node *nodes;
    struct sum *sums;
    const char **scopes;
    int nvalues, values_cap, nnodes, nodes_cap, nsums, sums_cap, nscopes, scopes_cap;
    // Marks that the next node gets.
    int scope, layer, place, line;
    enum phase phase;
    enum point point;
    enum node_when when;
    int nlayers;                 // of the model, so far
    const char *ordered, *mixed; // or null: the first op of that kind (carry.h), and where
    // The dtypes of activations and of reductions of gradients; DT_NONE: f32.
    enum dtype compute, reduce;
    bool tf32; // products may read f32 so (op_attr)
    enum backend_kind backend;
    int64_t scratch, bucket; // bytes: of CUDA's libraries, 0: as usual (op_attr); of bucket.h
    // Values by their ids; −1: none.
    int loss, metrics; // the loss's sum (a sample program's: the logits'); the metrics of all ranks
    int nparts, parts_cap, nbalances, balances_cap;
    struct loss_part *parts; // behind the loss and its like in the metrics vector
    struct balance *balances;
    struct err *err; // the first failure of a builder call; borrowed
    int failed;      // its code: later builder calls do nothing, the caller looks once at the end
};

// Where `dims` is null, the graph has a list of names of its own.
void graph_init(struct graph *g, struct arena *a, struct dims *dims, struct err *e);

// Makes room for so many nodes and values in all, so that few arrays are outgrown and left behind.
void graph_reserve(struct graph *g, int nodes, int values);

// Names the scope of the nodes that follow.
void graph_scope(struct graph *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// What lies between two points takes the next point's spec: a model calls this before the ops that
// lead there.
void graph_at(struct graph *g, enum point p);
// The model's layer n begins, counted from 0 over the whole of it: a pipeline may be cut here, and
// only where a layer begins. What comes before the first is with it.
void graph_layer(struct graph *g, int64_t n);

// Leaves. Dimensions come as arrays of n names and sizes.
int graph_value(struct graph *g, enum value_kind kind, const char *name, enum dtype t, int n,
                const enum dim *dims, const int64_t *sizes);
int value_find_dim(const struct value *v, enum dim dim); // its place in a value, −1
int graph_one(struct graph *g);                          // the scalar 1, a constant of the host
int graph_param(struct graph *g, const char *name, int n, const enum dim *dims,
                const int64_t *sizes, enum init_kind init, float std);
int graph_sum(struct graph *g, const char *name, int of, int like); // a sum shaped like a value
void graph_contribute(struct graph *g, int sum, int value);
// `value`, what an op that accumulates makes, is a part of that name; returns its number.
int graph_report(struct graph *g, const char *name, int value);
void graph_balance(struct graph *g, int param, int part, float rate);
int64_t graph_part_slots(const struct graph *g); // of all parts

// One op; returns its first output (outputs are consecutive ids). The output's dimensions are
// named; names shared with inputs are the same loop. attr may be null: only scalars of it are
// read, labels are worked out here. `sizes` (or null) has those of output dimensions that no
// input has: what is broadcast.
//
// In the forward phase an f32 parameter or input is read as its copy in g->compute: a parameter's
// is cast once a step (and stage), by the first microbatch, in the parameter's own cut, so that
// what is gathered is the copy. (An op that also reads a value made in f32 reads the leaf as it
// is.) Models name no dtype: an output has its first float operand's.
struct op_output {
    int n;
    const enum dim *dims;
    const int64_t *sizes;
    enum dtype dtype; // DT_NONE: as that of op_args
};
struct op_args {
    enum op op;
    int nin;
    const int *in;
    int nout_dims;
    const enum dim *out_dims;
    const struct op_attr *attr;
    enum dtype dtype; // of the outputs; DT_NONE: the first float operand's, CAST: g->compute
    const int64_t *sizes;
    int nout; // of an op with any number of outputs, all alike
    // Or null: outputs that are not alike; out_dims and sizes are then the first's.
    const struct op_output *outputs;
    const int *like; // or null: output k is shaped like value like[k]; the first gives out_dims
    const enum dim *read_as; // or null: what the dimensions of input `read_input` are called here
    int read_input;
};
int graph_op(struct graph *g, const struct op_args *a);
// Elementwise: shape and dtype are those of `like`.
int graph_like(struct graph *g, enum op op, int nin, const int *in, int like);
// One output with the dimensions and sizes of `like`, of a dtype as in op_args.
int graph_shaped(struct graph *g, enum op op, int nin, const int *in, int like,
                 const struct op_attr *attr, enum dtype t);
int graph_pad(struct graph *g, int x, float by); // x with `by` in its padding
// Returns x with its dimensions in this order; they are called `as` first (null: as they are).
int graph_permute(struct graph *g, int x, const enum dim *order, const enum dim *as, enum dtype t);
int graph_matmul(struct graph *g, int a, int b, int n, const enum dim *out_dims);
int graph_matmul_as(struct graph *g, int a, int b, int n, const enum dim *out_dims, enum dtype t);

// Whether the node brings a parameter to the compute dtype: the first microbatch does it for all.
bool node_casts_param(const struct node *n);
// Lists the nodes that read each value: of value v readers[first[v]] to before readers[first[v + 1]].
void graph_find_readers(const struct graph *g, int **first, int **readers);
// Drops the marked nodes; what nobody makes then has the producer −1.
void graph_drop_nodes(struct graph *g, const bool *dropped);
// The node is copied; its inputs and outputs are ids of this graph.
struct node *graph_node(struct graph *g, const struct node *n);
