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

OP_SRC      :=
OP_SRC      := $(OP_SRC:%=common/op/%.c)

JOB_SRC     := text tree yaml suggest value mesh groups schema rows parse check print lr
JOB_SRC     := $(JOB_SRC:%=common/job/%.c)

COMPILE_SRC :=
COMPILE_SRC := $(COMPILE_SRC:%=common/compile/%.c)

MODEL_SRC   := model_schema schema_list
MODEL_SRC   := $(MODEL_SRC:%=common/model/%.c)

DATA_SRC    := data_schema array idx npy dataset sampler inspect
DATA_SRC    := $(DATA_SRC:%=common/data/%.c)

CKPT_SRC    := ckpt_schema
CKPT_SRC    := $(CKPT_SRC:%=common/ckpt/%.c)

COLL_SRC    :=
COLL_SRC    := $(COLL_SRC:%=worker/collective/%.c)

RANK_SRC    := rank page metrics frame report link board watch join lead status solo spawn main
RANK_SRC    := $(RANK_SRC:%=worker/rank/%.c)

CLI_SRC     :=
CLI_SRC     := $(CLI_SRC:%=coordinator/cli/%.c)

CPU_SRC     :=
CPU_SRC     := $(CPU_SRC:%=kernels/cpu/%.c)

# Each is tests/<dir>/test_<name>.c, a cmocka program linked with every library of ours.
UNIT_BASE    :=
UNIT_JOB     :=
UNIT_COMPILE :=
UNIT_DATA    := data_idx data_npy data_dataset data_sampler data_inspect
UNIT_CKPT    :=
UNIT_COLL    :=
UNIT_RANK    := rank_frame rank_link rank_watch rank_metrics rank_solo
UNIT_TESTS  := $(UNIT_BASE) $(UNIT_JOB) $(UNIT_COMPILE) $(UNIT_DATA) $(UNIT_CKPT) $(UNIT_COLL) $(UNIT_RANK)
OPS_TESTS   :=
FUZZERS     := array frame
BENCHES     :=

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

# What weft-rank is made of but main(): the tests link it too.
RANK_LIBS := -lprotobuf-c
RANK_OBJ  := $(call obj,$(filter-out worker/rank/main.c,$(RANK_SRC)) $(COLL_SRC))
$(call obj,$(RANK_SRC) tests/fuzz/fuzz_frame.c): | $(BUILD)/gen/proto/rank.pb-c.h
$(BUILD)/obj/tests/unit/test_rank_%.o: | $(BUILD)/gen/proto/rank.pb-c.h

$(BUILD)/gen/proto/%.pb-c.o: $(BUILD)/gen/proto/%.pb-c.c
	$(call say,CC,$@)
	$(Q)$(CC) -I$(BUILD)/gen $(OPT) -fPIC -c $< -o $@

$(BUILD)/librank.a: $(RANK_OBJ) $(BUILD)/gen/proto/rank.pb-c.o
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/weft-rank: $(call obj,worker/rank/main.c kernels/backend.c) $(BUILD)/librank.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RANK_LIBS) $(COMMON_LIBS) -ldl

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---- tests -------------------------------------------------------------------------------------
COMMON_LIBS := -lyaml -lxxhash -lm

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(COMMON_LIBS)

# The rank's tests have its library too, and a weft-rank whose training is a double.
$(BUILD)/tests/unit/test_rank_%: $(BUILD)/obj/tests/unit/test_rank_%.o $(BUILD)/librank.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(RANK_LIBS) $(COMMON_LIBS)

$(BUILD)/tests/weft-rank-double: $(call obj,worker/rank/main.c tests/unit/rank_double.c) $(BUILD)/librank.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RANK_LIBS) $(COMMON_LIBS)
$(BUILD)/tests/unit/test_rank_solo: | $(BUILD)/tests/weft-rank-double
