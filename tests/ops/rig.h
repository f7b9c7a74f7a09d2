// SPDX-License-Identifier: Apache-2.0
// One op called on a backend and in the reference, on the same operands.
//
// A case is written as an einsum: "ik,kj->ij", a letter a loop. Operands are kept as doubles that
// f32 holds exactly, so both sides start from the same numbers.
#pragma once
#include "common/base/arena.h"
#include "kernels/backend.h"
#include "tests/ops/reference.h"

// ---- a device under test -----------------------------------------------------------------------

struct rig {
    const struct backend *backend;
    struct device *device;
    struct stream_q *q;
    struct device_info info;
};

// WEFT_RIG: the backend under test, "cpu" (when not set) or "cuda".
const char *rig_backend(void);
bool rig_is_cuda(void);
// The folder of the libraries, for a test that is run by hand: two above the program, where the
// CUDA backend's emulated twin lies in tests/cuda.
void rig_find_backend(void);
int rig_set_up(void **state); // the same, as the set-up of a group of tests
// isa: WEFT_CPU_ISA; null: the machine's best. CUDA: neither counts, guard zones are on.
void rig_open(struct rig *r, int threads, const char *isa);
void rig_close(struct rig *r);

// Memory of the device with these bytes in it (null: what the backend gives), exactly so long that
// who reads or writes too far is found: on the CPU it is the heap's.
void *rig_memory(const struct rig *r, const void *from, size_t bytes);
// Waits for the stream first.
void rig_read(const struct rig *r, void *to, const void *memory, size_t bytes);
void rig_free(const struct rig *r, void *memory);

// ---- a case ------------------------------------------------------------------------------------

struct rig_case {
    enum op op;
    struct op_attr attr;
    int nin, nout;
    struct ref_tensor in[OP_MAX_IN];
    struct ref_tensor start[OP_MAX_OUT]; // what the outputs hold before the call
    bool accumulate, in_place;           // in_place: outputs lie over the inputs they update
    int over;                            // in place: the input that the first output lies over
    // Elements of its buffer that lie before an operand, inputs first; as many bytes, and more, lie
    // behind it. What is around an output has to stay. 0: the operand is its buffer.
    int shift[OP_MAX_IN + OP_MAX_OUT];
};

// Extents by letter: ext[0] is that of 'a'. Outputs have the labels behind "->", the last given
// ones for what is left of them; an op with any number of outputs gets three.
void rig_case(struct rig_case *c, struct arena *a, enum op op, const char *einsum,
              const int64_t ext[26]);
// Uniform numbers in [lo, hi); integers for u8 and i32.
void rig_fill(struct ref_tensor *t, uint64_t seed, double lo, double hi);

// Of a gradient of attention: y and its log-sum-exp become what the forward makes of the inputs.
void rig_attend(struct rig_case *c);

// Results as doubles, in arrays of the arena. False: the call was refused, which is wrong, and they are
// NaN.
bool rig_run(const struct rig *r, const struct rig_case *c, struct arena *a,
             double *out[OP_MAX_OUT]);
void rig_reference(const struct rig_case *c, struct arena *a, double *out[OP_MAX_OUT]);
// "2x3 f32, 3x4 f32 -> 2x4 f32"
void rig_describe(const struct rig_case *c, char *to, size_t room);
// Wrong, with case, how many elements, the first and the worst, unless |got − want| ≤ atol +
// rtol·|want| for all.
void rig_compare(const char *what, const double *got, const double *want, int64_t n, double rtol,
                 double atol);

// ---- what is wrong -----------------------------------------------------------------------------

// Fails the test. In a group of rig_run_group it says so, and the rest of the test runs: on a device
// that is rarely there all that is wrong is to be known at once. The test fails at its end.
void rig_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// cmocka_run_group_tests that notes what is wrong. A device that has failed serves its process no
// more: the tests behind the one that it failed in run in a process of their own.
// $WEFT_TEST_AFTER: begins behind that test.
struct CMUnitTest;
int rig_run_group(const char *name, const struct CMUnitTest *tests, size_t n,
                  int (*begin)(void **state), int (*end)(void **state));
