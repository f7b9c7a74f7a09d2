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

JOB_SRC     :=
JOB_SRC     := $(JOB_SRC:%=common/job/%.c)

COMPILE_SRC :=
COMPILE_SRC := $(COMPILE_SRC:%=common/compile/%.c)

MODEL_SRC   :=
MODEL_SRC   := $(MODEL_SRC:%=common/model/%.c)

DATA_SRC    :=
DATA_SRC    := $(DATA_SRC:%=common/data/%.c)

CKPT_SRC    :=
CKPT_SRC    := $(CKPT_SRC:%=common/ckpt/%.c)

COLL_SRC    :=
COLL_SRC    := $(COLL_SRC:%=worker/collective/%.c)

RANK_SRC    :=
RANK_SRC    := $(RANK_SRC:%=worker/rank/%.c)

CLI_SRC     :=
CLI_SRC     := $(CLI_SRC:%=coordinator/cli/%.c)

CPU_SRC     :=
CPU_SRC     := $(CPU_SRC:%=kernels/cpu/%.c)

# Each is tests/<dir>/test_<name>.c, a cmocka program linked with every library of ours.
UNIT_BASE    := err arena buf list map log rand hash json stream
UNIT_JOB     :=
UNIT_COMPILE :=
UNIT_DATA    :=
UNIT_CKPT    :=
UNIT_COLL    :=
UNIT_RANK    :=
UNIT_TESTS  := $(UNIT_BASE) $(UNIT_JOB) $(UNIT_COMPILE) $(UNIT_DATA) $(UNIT_CKPT) $(UNIT_COLL) $(UNIT_RANK)
OPS_TESTS   :=
FUZZERS     :=
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

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---- tests -------------------------------------------------------------------------------------
COMMON_LIBS := -lyaml -lxxhash -lm

$(BUILD)/tests/unit/%: $(BUILD)/obj/tests/unit/%.o $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(COMMON_LIBS)
