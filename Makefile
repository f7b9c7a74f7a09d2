# SPDX-License-Identifier: Apache-2.0
# weft's build. `make help` lists the targets; V=1 shows the commands; BUILD=dir builds elsewhere.
# Sources are listed, never globbed: what is in the product is written here.

BUILD ?= build
CC ?= gcc
CLANG ?= clang
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-7s %s\n' '$(1)' '$(patsubst $(BUILD)/%,%,$(2))')

# ---- what is built -----------------------------------------------------------------------------
PROTO_SRC   := proto/rank.proto

BASE_SRC    := err arena buf map log clock hash rand json json_read stream
BASE_SRC    := $(BASE_SRC:%=common/base/%.c)

OP_SRC      := op gemm
OP_SRC      := $(OP_SRC:%=common/op/%.c)

JOB_SRC     := text tree yaml suggest value mesh groups schema rows parse check print lr
JOB_SRC     := $(JOB_SRC:%=common/job/%.c)

COMPILE_SRC := mesh spec graph optable vjp shard grad optim partition schedule lower plan verify dump cost report compile
COMPILE_SRC := $(COMPILE_SRC:%=common/compile/%.c)

MODEL_SRC   := model mlp model_schema schema_list
MODEL_SRC   := $(MODEL_SRC:%=common/model/%.c)

DATA_SRC    := data_schema array idx npy dataset sampler inspect
DATA_SRC    := $(DATA_SRC:%=common/data/%.c)

CKPT_SRC    := ckpt_schema
CKPT_SRC    := $(CKPT_SRC:%=common/ckpt/%.c)

COLL_SRC    :=
COLL_SRC    := $(COLL_SRC:%=worker/collective/%.c)

RANK_SRC    :=
RANK_SRC    := $(RANK_SRC:%=worker/rank/%.c)

CLI_SRC     := main plan files
CLI_SRC     := $(CLI_SRC:%=coordinator/cli/%.c)

CPU_SRC     := backend memory pool loops gemm elementwise reduce rows update
CPU_SRC     := $(CPU_SRC:%=kernels/cpu/%.c)
# kernels/cpu/vec.c is compiled once for each.
CPU_ISAS    := baseline avx2 avx512

# Each is tests/<dir>/test_<name>.c, a cmocka program linked with every library of ours.
UNIT_BASE    :=
UNIT_JOB     :=
UNIT_COMPILE := compile
UNIT_DATA    := data_idx data_npy data_dataset data_sampler data_inspect
UNIT_CKPT    :=
UNIT_COLL    :=
UNIT_RANK    :=
UNIT_TESTS  := $(UNIT_BASE) $(UNIT_JOB) $(UNIT_COMPILE) $(UNIT_DATA) $(UNIT_CKPT) $(UNIT_COLL) $(UNIT_RANK)
OPS_TESTS   := backend ops numerics
FUZZERS     := array
BENCHES     := kernels

COMMON_SRC  := $(BASE_SRC) $(OP_SRC) $(JOB_SRC) $(COMPILE_SRC) $(MODEL_SRC) $(DATA_SRC) $(CKPT_SRC)

# ---- flags -------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
        -Wpointer-arith -Wcast-qual -Wwrite-strings -Wvla -Wundef -Wno-format-truncation
OPT  ?= -O2 -g
override CPPFLAGS += -I. -I$(BUILD)/gen -D_GNU_SOURCE -DWEFT_VERSION='"$(VERSION)"'
override CFLAGS   += -std=c11 $(OPT) $(WARN) -fPIC -fno-strict-aliasing -pthread -MMD -MP
VERSION := 0.1.0

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

.PHONY: help
help:
	@sed -n 's/^## //p' Makefile

# ---- objects and libraries ---------------------------------------------------------------------
$(BUILD)/obj/%.o: %.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/gen/proto/%.pb-c.c $(BUILD)/gen/proto/%.pb-c.h &: proto/%.proto
	$(call say,PROTO,$@)
	@mkdir -p $(BUILD)/gen
	$(Q)protoc-c --c_out=$(BUILD)/gen $<

$(BUILD)/libcommon.a: $(call obj,$(COMMON_SRC))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# The inner loops of the CPU backend. Contraction is off so that slices never change a result.
VEC_FLAGS := -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi
VEC_baseline :=
VEC_avx2     := -mavx2 -mfma
VEC_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
CPU_VEC_OBJ  := $(CPU_ISAS:%=$(BUILD)/obj/kernels/cpu/vec-%.o)
$(CPU_VEC_OBJ): $(BUILD)/obj/kernels/cpu/vec-%.o: kernels/cpu/vec.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(VEC_FLAGS) $(VEC_$*) -DVEC_ISA=$* -c $< -o $@

$(BUILD)/libweft_cpu.so: $(call obj,$(CPU_SRC) common/base/err.c common/op/op.c common/op/gemm.c) $(CPU_VEC_OBJ) kernels/cpu/export.map
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=kernels/cpu/export.map -o $@ $(filter %.o,$^) -ldnnl -lgomp -lm

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---- tests -------------------------------------------------------------------------------------
COMMON_LIBS := -lyaml -lxxhash -lm

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(COMMON_LIBS)

# Op tests look for the backend two folders above themselves, or in WEFT_BACKEND_DIR.
$(BUILD)/tests/ops/%: $(BUILD)/obj/tests/ops/%.o $(call obj,tests/ops/reference.c tests/ops/rig.c kernels/backend.c) $(BUILD)/libcommon.a | $(BUILD)/libweft_cpu.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka -ldl -lm
