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
SERVICE_SRC := proto/planner.proto proto/weft.proto proto/health.proto

BASE_SRC    := notify child system entropy duration flag folder host_address cores err heap arena buf utf8 plain map log suggest url clock hash rand json json_read stream root data_identity
BASE_SRC    := $(BASE_SRC:%=common/base/%.c)

OP_SRC      := op dims point gemm mask widen chain parts route
OP_SRC      += attention rotary
OP_SRC      := $(OP_SRC:%=common/op/%.c)

JOB_SRC     := text job_tree yaml setting job_mesh job_sharding job_model pipeline param_groups load_names schema schema_print job_schema reading parse check job_print job_json lr prompt sample until
JOB_SRC     := $(JOB_SRC:%=common/job/%.c)

# Text to token ids and back, the lowest first.
TOKENIZER_SRC := token_ids char_class nfc known_patterns class_pattern regex_pattern
TOKENIZER_SRC += vocabulary piece_cache bpe added_tokens normalize encode decode pieces read_model read_json plain_kinds tokenizer
TOKENIZER_SRC := $(TOKENIZER_SRC:%=common/tokenizer/%.c)

# The compiler's storeys, the lowest first.
COMPILE_SRC := layout/mesh layout/spec layout/reshard layout/reshard_blocks layout/zigzag
COMPILE_SRC += graph/graph graph/op_experts graph/op_scratch graph/experts graph/optable graph/node_work graph/tape graph/vjp graph/carry graph/token_class graph/cached_keys graph/grad graph/remat graph/optimiser graph/norm_groups
COMPILE_SRC += shard/facts shard/sharding shard/resolve shard/refine shard/sharding_check shard/op_rules shard/partition shard/stage
COMPILE_SRC += program/fuse_match program/fuse_chain program/fuse_norm program/fuse_matmul_sum program/fuse_places program/fuse_rows program/fuse_update program/fuse program/copies program/pack
COMPILE_SRC += program/order program/bucket program/weights program/schedule program/part program/sharing program/program program/lower program/group program/occupancy program/memory_plan program/contents program/verify program/dump program/plan_hash
COMPILE_SRC += compile
COMPILE_SRC := $(COMPILE_SRC:%=common/compile/%.c)

# What explains a plan to people.
EXPLAIN_SRC := findings fixes sharding_findings explain heads routing unruled work repeated usage cost decode_plan device_models fit plan_table plan_report plan_text
EXPLAIN_SRC += picture_draw picture picture_mesh picture_time picture_memory
EXPLAIN_SRC := $(EXPLAIN_SRC:%=common/explain/%.c)

# Reading programs, the lowest first; and building the graphs that they say.
LANGUAGE_SRC := model_errors initial lexer parser foreign_section syntax number model_names size_expression model_sizes model_program model_facts model_dims
LANGUAGE_SRC := $(LANGUAGE_SRC:%=common/language/%.c)
MODEL_SRC   := draws loss term parameter algebra model_inputs layers attention_calls reductions mixture functions expression builder
MODEL_SRC   := $(MODEL_SRC:%=common/model/%.c)
# What a job and its model come to.
PLAN_SRC    := plan model_check schema_list nccl_memory
PLAN_SRC    := $(PLAN_SRC:%=common/plan/%.c)
# The programs that come with weft, compiled in as text.
MODEL_PROGRAMS := gpt2 gpt3 llama llama2 mistral mixtral deepseek-v2-lite jaxformer qwen2 qwen3 gemma2 palm nanochat cookbook mlp vae starter

DATA_SRC    := data_schema array array_type idx npy llmc token_index dataset tokens pattern sampler job_set inspect
DATA_SRC    += $(addprefix prepare/,input sources jsonl documents conveyor shards journal prepare piece_counts bpe_train train_tokenizer)
DATA_SRC    := $(DATA_SRC:%=common/data/%.c)

CKPT_SRC    := ckpt_schema slice shard_file deal manifest manifest_json durable store store_write load source match commit lost_steps ls diff
CKPT_SRC    := $(CKPT_SRC:%=common/ckpt/%.c)

# Checkpoints of others, both ways.
WEIGHTS_SRC := neutral_fields config mapping move foreign_files described beside npz export import
WEIGHTS_SRC := $(WEIGHTS_SRC:%=common/weights/%.c)

# What a leader decides about a running attempt, whoever leads: rank 0 or the coordinator.
METRICS_SRC := rows bounded_curve chart chart_braille chart_svg
METRICS_SRC := $(METRICS_SRC:%=common/metrics/%.c)

ATTEMPT_SRC := life page frame message leader_act board watch saves leader
ATTEMPT_SRC := $(ATTEMPT_SRC:%=common/attempt/%.c)

RPC_SRC     := rpc exchange rpc_loop call packet address args rate_limit guard server health channel tls tls_cert tls_ca tls_token tls_join coordinator_address
RPC_SRC     := $(RPC_SRC:%=common/rpc/%.c)

# The coordinator and the worker daemon without their main.c: what tests link.
DECIDER_SRC := words ids outbox row host job_record placement checkpoint attempt attempt_leader attempt_storage \
               live_attempts recover queue requests job_paths acts found_jobs tidy frames attach settle shortage job_status views notices coord
DECIDER_SRC := $(DECIDER_SRC:%=coordinator/decide/%.c)
COORD_SRC   := $(addprefix store/,db binding)
COORD_SRC   += $(addprefix serve/,questions service streams data_looks row_reads webhooks job_facts planner_process planner http prometheus)
COORD_SRC   += coord_daemon certs
COORD_SRC   := $(COORD_SRC:%=coordinator/%.c) $(DECIDER_SRC)

DECIDING_AGENT_SRC := attempts agent_messages agent_ranks agent
DECIDING_AGENT_SRC := $(DECIDING_AGENT_SRC:%=worker/agent/%.c)
AGENT_SRC   := local_leader poll_loop rank_logs rankslock supervise observe disk_room storage finder home join_cluster worker_daemon worker_setup
AGENT_SRC   := $(AGENT_SRC:%=worker/%.c) $(DECIDING_AGENT_SRC)
# The sink that comes with weft.
SINK_SRC    := event_file tensorboard tail sink sinks
SINK_SRC    := $(SINK_SRC:%=worker/sinks/%.c)

# The lower first.
COLLECTIVE_SRC := collective_op sum_tree peer_page greet shm tcp progress_thread world process_world
COLLECTIVE_SRC += seal announce operation communicator staging host_transport device_transport choose_transport gather
COLLECTIVE_SRC := $(COLLECTIVE_SRC:%=worker/collective/%.c)

RANK_SRC    := main process probe warm
RANK_SRC    += $(addprefix link/,rank_link answers rank_frames metrics_file)
RANK_SRC    += $(addprefix exec/,exec run segments lane marks model_state initial_values noise)
RANK_SRC    += $(addprefix save/,saver snapshot)
RANK_SRC    += $(addprefix train/,train trainer job_history take_source inputs feed evaluate sampling choice algorithms asked pace device_use detail)
RANK_SRC    := $(RANK_SRC:%=worker/rank/%.c)

CLI_SRC     := main flags completion manual cli_link cli_print message_json progress log_order request resolved_job source_look data_files run_record run_left several run_lead run_agent up_order up_member run_file run_history run_place why_text slurm_queue slurm_call render_job time_limit run_begin own_coordinator own_worker stored job_rows job_scores held_text allocation leader_file local_ranks generation bar live job_curve
# Each holds the verbs that its name says.
CLI_SRC     += verb_act verb_data verb_delete verb_doctor verb_eval verb_files verb_generate verb_jobs verb_logs verb_metrics verb_model verb_plan verb_plot verb_render verb_run verb_sbatch verb_submit verb_up verb_watch verb_weights verb_why
CLI_SRC     += render/cluster_facts render/kubernetes render/slurm render/systemd
CLI_SRC     := $(CLI_SRC:%=coordinator/cli/%.c)

CPU_SRC     := cpu_backend cpu_memory pool loops cpu_gemm cpu_chain cpu_reduce cpu_rows cpu_block cpu_update
CPU_SRC     += cpu_route cpu_dispatch
CPU_SRC     += cpu_embed cpu_cache cpu_pieces cpu_pad cpu_norm cpu_rotary cpu_attention cpu_attention_small cpu_draw cpu_widen
CPU_SRC     := $(CPU_SRC:%=kernels/cpu/%.c) kernels/kernel.c kernels/unfused.c
# kernels/cpu/vec.c and vec_product.c are compiled once for each of the first, packed.c and streamed.c of the second,
# tiled.c of the third.
CPU_ISAS    := baseline avx2 avx512
PACKED_ISAS := avx2 avx512 avx512bf16
TILED_ISAS  := amx

# libweft_cuda.so: C by the project's compiler against CUDA's headers, kernels by nvcc. A file a line.
CUDA_SRC    := cuda_backend
CUDA_SRC    += cuda_device
CUDA_SRC    += cuda_memory
CUDA_SRC    += cuda_stream
CUDA_SRC    += cuda_attention attention_choice
CUDA_SRC    += algos switches
CUDA_SRC    += layout
CUDA_SRC    += product product_plan contest
CUDA_SRC    += cuda_gemm
CUDA_SRC    += linear matmul_sum
CUDA_SRC    := $(CUDA_SRC:%=kernels/cuda/%.c) kernels/cpu/loops.c kernels/kernel.c kernels/unfused.c
CUDA_CU     := probe mark
CUDA_CU     += elementwise
CUDA_CU     += draw
CUDA_CU     += pieces pad
CUDA_CU     += block
CUDA_CU     += update
CUDA_CU     += attention attention_pair
CUDA_CU     += reduce
CUDA_CU     += sqnorm
CUDA_CU     += rows
CUDA_CU     += norm norm_grads
CUDA_CU     += rotary
CUDA_CU     += embed cache
CUDA_CU     += route
CUDA_CU     += dispatch
CUDA_CU     := $(CUDA_CU:%=kernels/cuda/%.cu)
# What stands for the GPU in tests: CUDA's runtime and libraries, and the device's language.
FAKE_SRC    := emulate
FAKE_SRC    += fake_runtime
FAKE_SRC    += fake_memory
FAKE_SRC    += fake_queue
FAKE_SRC    += fake_stream
FAKE_SRC    += fake_graph
FAKE_SRC    += fake_cublaslt fake_cublaslt_problem fake_cublaslt_run
FAKE_SRC    := $(FAKE_SRC:%=tests/cuda/%.c)

# Each is tests/<dir>/test_<name>.c, a cmocka program; those of a room are linked as one (ROOMS).
UNIT_BASE    := err url deadline arena buf plain list map log rand hash json stream root folder host_address flag cores child
UNIT_TOKENIZER := tokenizer_kinds tokenizer_files tokenizer_pitfalls tokenizer_refusals
UNIT_MODEL   := model_language model_build model_initial model_examples model_published model_experts model_attention model_limits model_places
UNIT_JOB     := until job_yaml job_parse job_check job_print job_sharding job_sample job_model
UNIT_COMPILE := compile compile_decoder compile_remat compile_context compile_heads compile_rules compile_reshard compile_programs explain_findings compile_collectives compile_precision compile_random compile_random_text compile_verify compile_sample compile_decode compile_decode_meshes explain_decode compile_score compile_draws compile_zero compile_pipeline compile_schedule
UNIT_COMPILE += explain_experts explain_repeated explain_own explain_programs compile_experts compile_experts_moved explain_picture explain_table explain_devices explain_fit explain_examples compile_order compile_buckets compile_meshes compile_own compile_fuse_rows compile_fuse_sums compile_fuse compile_copies compile_group compile_occupancy compile_pieces compile_pack compile_padded
UNIT_DATA    := data_idx data_npy data_dataset data_tokens data_sampler data_inspect data_documents data_prepare data_index data_bpe
UNIT_CKPT    := ckpt_shard ckpt_deal ckpt_manifest ckpt_store ckpt_load ckpt_source ckpt_forged ckpt_commit ckpt_schedules ckpt_crash ckpt_snapshot
UNIT_WEIGHTS := weights_folders
UNIT_METRICS := metrics_rows metrics_bounded metrics_chart
UNIT_COLLECTIVE := collective_sum_tree collective_operations collective_peers collective_send collective_fake collective_tcp
UNIT_RANK    := attempt_frame attempt_watch attempt_board attempt_leader rank_link rank_metrics rank_feed rank_attempt rank_agent rank_choice rank_pace rank_segments rank_transport rank_marks rank_initial_values
UNIT_RPC     := rpc tls_ca tls_join rpc_limits rpc_guard rpc_tls
UNIT_COORD   := coord_db coord_found coord_planner coord_looks coord_service coord_run coord_http coord_faults coord_hosts coord_acts coord_queue coord_data coord_settle coord_rows coord_placement coord_metrics coord_lies coord_forged coord_notices coord_webhooks
UNIT_AGENT   := agent_life agent_supervise agent_frames agent_storage agent_daemon agent_join agent_events agent_sinks agent_observe
UNIT_TESTS  := $(UNIT_BASE) $(UNIT_TOKENIZER) $(UNIT_JOB) $(UNIT_MODEL) $(UNIT_COMPILE) $(UNIT_DATA) $(UNIT_CKPT) $(UNIT_WEIGHTS) $(UNIT_METRICS) $(UNIT_COLLECTIVE) $(UNIT_RANK)
# These link the service's libraries too. coord_streams has doubles of their functions: it is linked alone.
SERVICE_TESTS := $(UNIT_RPC) $(UNIT_COORD) $(UNIT_AGENT) log_order held_text generation allocation leader_file up_order run_history job_curve coord_streams
OPS_TESTS   := backend contract ops transformer draw numerics bf16 chain fused_rows reductions views layouts packed updates linears large route cache chain_random
# Of them those that take any backend: run on the CUDA backend's emulated twin too.
CUDA_OPS    := $(filter-out backend packed,$(OPS_TESTS))
# The emulator and the fake runtime by themselves: linked with them.
EMULATED_TESTS := emulate fake
PARITY_TESTS := jax
# Of the CUDA backend: without a device, and through its emulated twin.
CUDA_PARTS  := algos
CUDA_RIGS   := products choices faults
SIM_TESTS    := sim
FUZZERS     := rows events weights json tokenizer jsonl index array job model plan shard manifest source frame up leader history slurm
BENCHES     := kernels allreduce ckpt_write compile step
# These link the service's libraries.
SERVICE_BENCHES := hosts placement restart cancel
GPU_BENCH    := $(BUILD)/tests/bench/gpu/bench_ops

# The simulator: the real deciders, compiled with rules that can be taken away, over fakes.
SIM_SRC     := sim disk disk_calls net dbase sim_coordinator sim_host sim_storage rank save sim_attempt sim_check sim_check_disk fault client sim_world trace test_sim
SIM_SRC     := $(SIM_SRC:%=tests/sim/%.c)
# The store's system calls, sent to the simulated disk.
SIM_WRAP    := open openat close fsync mkdir mkdirat stat fstat fstatat faccessat renameat renameat2 \
               unlinkat read pread pwrite fdopendir readdir closedir getrandom
SIM_WRAP    := $(SIM_WRAP:%=-Wl,--wrap=%)

COMMON_SRC  := $(BASE_SRC) $(OP_SRC) $(LANGUAGE_SRC) $(TOKENIZER_SRC) $(JOB_SRC) $(COMPILE_SRC) $(EXPLAIN_SRC) $(MODEL_SRC) $(PLAN_SRC) $(DATA_SRC) $(CKPT_SRC) $(WEIGHTS_SRC) $(METRICS_SRC)

# ---- flags -------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition \
        -Wpointer-arith -Wcast-qual -Wwrite-strings -Wvla -Wundef
# Truncation by snprintf is meant wherever it happens; gcc alone knows these, and sees phantoms at -O1.
ifeq ($(shell $(CC) --version 2>/dev/null | grep -c clang),0)
WARN += -Wno-format-truncation -Wno-format-overflow
endif
VERSION := 0.1.0
OPT  ?= -O2 -g
SAN  ?=
override CPPFLAGS += -I. -I$(BUILD)/gen -D_GNU_SOURCE -DWEFT_VERSION='"$(VERSION)"'
override CFLAGS   += -std=c11 $(OPT) $(SAN) $(WARN) -fPIC -fno-strict-aliasing -pthread -MMD -MP
COMMON_LIBS := -lyaml -lxxhash -lutf8proc -lpcre2-8 -lz -lzstd -lm
RANK_LIBS   := -lprotobuf-c -lcrypto $(COMMON_LIBS) -ldl

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
RPC_LIBS    := -lgrpc -lgpr -lssl -lcrypto -lprotobuf-c
COORD_LIBS  := $(RPC_LIBS) -lsqlite3 -lmicrohttpd -lcurl $(COMMON_LIBS)
PROTO_C := $(PROTO_SRC:%.proto=$(BUILD)/gen/%.pb-c.c)
PROTO_O := $(PROTO_SRC:%.proto=$(BUILD)/obj/gen/%.pb-c.o)
SERVICE_C := $(SERVICE_SRC:%.proto=$(BUILD)/gen/%.pb-c.c)
SERVICE_O := $(SERVICE_SRC:%.proto=$(BUILD)/obj/gen/%.pb-c.o)
# A rank without its main: what tests link.
RANK_PARTS := $(call obj,$(filter-out worker/rank/main.c,$(RANK_SRC)) kernels/backend.c $(ATTEMPT_SRC)) $(PROTO_O)

DAEMONS  := $(if $(wildcard coordinator/main.c),$(BUILD)/weft-coordinator) $(if $(wildcard worker/main.c),$(BUILD)/weft-worker)
# CUDA: nvcc for the product, CUDA's headers alone for its emulated twin.
CUDA_HOME ?= /usr/local/cuda
NVCC      ?= $(wildcard $(CUDA_HOME)/bin/nvcc)
CUDA_INCLUDE := $(if $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h),$(CUDA_HOME)/include)
# cuDNN is loaded, not linked; without its headers attention has our own kernels alone.
CUDNN     ?= $(wildcard $(CUDA_HOME)/include/cudnn.h)
CUDA_SRC  += $(patsubst %,kernels/cuda/%.c,$(if $(CUDNN),attention_library sdpa sdpa_graph,attention_alone))
CUDA_REAL := $(if $(CUDNN),kernels/cuda/cudnn.c)
FAKE_SRC  += $(if $(CUDNN),tests/cuda/fake_cudnn.c)
CUDA_RIGS += $(if $(CUDNN),attention)
# NCCL the same; without its header collectives of CUDA devices go through the hosts.
NCCL      ?= $(wildcard $(CUDA_HOME)/include/nccl.h)
CUDA_SRC  += $(if $(NCCL),kernels/cuda/cuda_collectives.c)
CUDA_REAL += $(if $(NCCL),kernels/cuda/nccl.c)
FAKE_SRC  += $(if $(NCCL),tests/cuda/fake_nccl.c tests/cuda/fake_nccl_run.c tests/cuda/fake_nccl_wait.c)
NCCL_RIGS := $(if $(NCCL),collectives collectives_library device_transport)
CUDA_RIGS += $(NCCL_RIGS)
EMULATED_TESTS += $(if $(NCCL),fake_nccl)
NO_NCCL    = $(if $(NCCL),,@echo "SKIPPED: no nccl.h in $(CUDA_HOME)/include: collectives by NCCL were not built")
NO_CUDNN   = $(if $(CUDNN),,@echo "SKIPPED: no cudnn.h in $(CUDA_HOME)/include: attention by cuDNN was not built")
PRODUCTS := $(BUILD)/weft $(BUILD)/weft-rank $(BUILD)/weft-sink $(DAEMONS) $(BUILD)/libweft_cpu.so $(if $(NVCC),$(BUILD)/libweft_cuda.so)
# The rooms: tests/ROOM is a program of the test files named. What is asked for may be a part of them (tsan).
ROOM_unit/base       := $(UNIT_BASE)
ROOM_unit/tokenizer  := $(UNIT_TOKENIZER)
ROOM_unit/job        := $(UNIT_JOB)
ROOM_unit/model      := $(UNIT_MODEL)
ROOM_unit/compile    := $(UNIT_COMPILE)
ROOM_unit/data       := $(UNIT_DATA)
ROOM_unit/ckpt       := $(UNIT_CKPT)
ROOM_unit/weights    := $(UNIT_WEIGHTS)
ROOM_unit/metrics    := $(UNIT_METRICS)
ROOM_unit/collective := $(UNIT_COLLECTIVE)
ROOM_unit/rank       := $(UNIT_RANK)
ROOM_unit/rpc        := $(UNIT_RPC)
ROOM_unit/coord      := $(UNIT_COORD) log_order held_text generation allocation leader_file up_order run_history job_curve
ROOM_unit/agent      := $(UNIT_AGENT)
ROOM_ops/ops         := $(OPS_TESTS) $(if $(OPS_TESTS),huge)
ROOM_cuda/cuda       := $(CUDA_PARTS) $(if $(CUDA_INCLUDE),$(CUDA_RIGS))
ROOM_cuda/emulator   := $(if $(CUDA_INCLUDE),$(EMULATED_TESTS))
SERVICE_ROOMS := unit/rpc unit/coord unit/agent
UNIT_ROOMS    := unit/base unit/tokenizer unit/job unit/model unit/compile unit/data unit/ckpt unit/weights unit/metrics unit/collective unit/rank $(SERVICE_ROOMS)
$(foreach r,$(UNIT_ROOMS),$(eval ROOM_$(r) := $(filter $(UNIT_TESTS) $(SERVICE_TESTS),$(ROOM_$(r)))))
ROOMS := $(foreach r,$(UNIT_ROOMS) ops/ops cuda/cuda cuda/emulator,$(if $(strip $(ROOM_$(r))),$(r)))
# Files that are a program by themselves: with NVIDIA's own library, where it is, and cuDNN's planner.
SINGLE := $(PARITY_TESTS:%=parity/test_%) $(SIM_TESTS:%=sim/test_%) $(patsubst %,unit/test_%,$(filter coord_streams,$(SERVICE_TESTS)))
SINGLE += $(if $(CUDA_PARTS),$(if $(wildcard $(CUDA_HOME)/lib64/libcublasLt.so),cuda/test_cublaslt) $(if $(CUDA_INCLUDE),$(if $(CUDNN),cuda/test_sdpa)) \
              $(if $(NCCL),$(if $(wildcard $(CUDA_HOME)/lib64/libnccl.so.2),cuda/test_nccl)))
TEST_BINS = $(ROOMS:%=$(BUILD)/tests/%) $(patsubst %,$(BUILD)/tests/%,$(SINGLE)) $(if $(CUDA_INCLUDE),$(BUILD)/tests/cuda/libweft_cuda.so)
# What tests/run.sh is given: PROGRAM, or PROGRAM:TEST of a room; with cuda: before it, over the emulated twin.
in_room   = $(patsubst %,$(BUILD)/tests/$(1):test_%,$(2))
OVER_TWIN = $(if $(CUDA_INCLUDE),$(call in_room,ops/ops,$(CUDA_OPS)) \
                $(BUILD)/tests/parity/test_jax $(call in_room,unit/rank,rank_marks) $(call in_room,unit/compile,compile_decode) $(call in_room,cuda/cuda,$(CUDA_RIGS)))
CPU_RUNS  = $(foreach r,$(ROOMS),$(call in_room,$(r),$(filter-out huge $(CUDA_RIGS),$(ROOM_$(r))))) $(SINGLE:%=$(BUILD)/tests/%)
NO_EMULATION = $(if $(CUDA_INCLUDE),,@echo "SKIPPED: no CUDA headers in $(CUDA_HOME)/include: the CUDA backend was not tested")
# Those that take longest begin first, so that every core has work to the end.
LONGEST    = %test_sim %test_compile_own %test_jax %test_compile_meshes %test_ops %test_reductions %test_transformer %test_chain %test_compile_decoder
LONGEST   += %test_compile_pipeline %test_bf16 %test_layouts %test_compile_experts %test_compile_random %test_rank_attempt %test_ckpt_crash
ALL_RUNS   = $(OVER_TWIN:%=cuda:%) $(CPU_RUNS)
RUN_BINS   = $(foreach l,$(LONGEST),$(filter $(l),$(ALL_RUNS))) $(filter-out $(LONGEST),$(ALL_RUNS))

.PHONY: help deps all demo demo-gpt test check-long check-peers lint format asan tsan fuzz bench benches install clean tests
help:
	@sed -n 's/^## //p' Makefile

## make deps         install what a bare Debian 12 lacks (sudo only when not root)
deps:
	$(Q)sh deploy/deps.sh

# `make test` installs what is missing by itself. Of a shell whose last command is not there make takes no output: so `true`.
ifneq ($(filter all,$(MAKECMDGOALS)),)
NEEDED  := yaml.h xxhash.h utf8proc.h pcre2.h zlib.h zstd.h oneapi/dnnl/dnnl.h protobuf-c/protobuf-c.h grpc/grpc.h openssl/ssl.h sqlite3.h microhttpd.h curl/curl.h
MISSING := $(shell for p in protoc-c $(filter-out -%,$(CC)); do command -v $$p >/dev/null || echo $$p; done; \
             printf '\043if !__has_include(<%s>)\n"%s"\n\043endif\n' $(foreach h,$(NEEDED),$h $h) | $(CC) -E -P - 2>/dev/null; \
             true)
$(if $(MISSING),$(error missing: $(MISSING). `make deps` installs what the build needs))
endif

## make all          build the programs and the backends into build/ (NVCC= leaves out CUDA's)
all: $(PRODUCTS)
	$(if $(NVCC),,@echo "built for CPUs: with nvcc in $(CUDA_HOME)/bin (CUDA_HOME=) it builds libweft_cuda.so too")

## make demo         install, build, train a classifier on Fashion-MNIST over two rank processes
demo:
	$(Q)sh deploy/examples/demo.sh "$(MAKE)" "$(BUILD)"

## make demo-gpt     its own tokenizer, a small GPT on two ranks, one killed; evaluates, writes, exports
demo-gpt:
	$(Q)sh deploy/examples/demo-gpt.sh "$(MAKE)" "$(BUILD)"

# ---- objects and libraries ---------------------------------------------------------------------
$(BUILD)/obj/%.o: %.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c $< -o $@

$(BUILD)/gen/proto/%.pb-c.c $(BUILD)/gen/proto/%.pb-c.h &: proto/%.proto | $(PROTO_SRC) $(SERVICE_SRC)
	$(call say,PROTO,$@)
	@mkdir -p $(BUILD)/gen
	$(Q)protoc-c --c_out=$(BUILD)/gen $<

$(BUILD)/obj/gen/%.o: $(BUILD)/gen/%.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -w -c $< -o $@

# Their text as C strings, a line each.
MODEL_TEXTS := $(MODEL_PROGRAMS:%=common/model/programs/%.model)
$(BUILD)/gen/model_texts.c: $(MODEL_TEXTS) Makefile
	$(call say,TEXT,$@)
	@mkdir -p $(@D)
	$(Q){ echo '#include "common/language/model_program.h"'; \
	  echo 'const struct model_text model_texts[] = {'; \
	  for p in $(MODEL_PROGRAMS); do echo "{\"$$p\","; \
	    sed 's/[\\"]/\\&/g; s/.*/"&\\n"/' common/model/programs/$$p.model; echo '},'; done; \
	  echo '{0, 0}};'; } > $@

# Whoever includes a generated header waits for it; one includes others.
$(PROTO_O) $(SERVICE_O): | $(PROTO_C) $(SERVICE_C)
$(call obj,$(RANK_SRC) $(ATTEMPT_SRC)): | $(PROTO_C)
$(UNIT_RANK:%=$(BUILD)/obj/tests/unit/test_%.o): | $(PROTO_C)
$(call obj,$(RPC_SRC) $(COORD_SRC) coordinator/main.c $(AGENT_SRC) worker/main.c $(CLI_SRC)): | $(PROTO_C) $(SERVICE_C)
$(SERVICE_TESTS:%=$(BUILD)/obj/tests/unit/test_%.o): | $(PROTO_C) $(SERVICE_C)

$(BUILD)/libcommon.a: $(call obj,$(COMMON_SRC)) $(BUILD)/obj/gen/model_texts.o
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libcollective.a: $(call obj,$(COLLECTIVE_SRC))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# Everything the daemons and the client share beyond libcommon.
$(BUILD)/libservice.a: $(call obj,$(RPC_SRC) $(ATTEMPT_SRC)) $(PROTO_O) $(SERVICE_O)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libcoord.a: $(call obj,$(COORD_SRC))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/libagent.a: $(call obj,$(AGENT_SRC) $(SINK_SRC))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

$(BUILD)/librank.a: $(RANK_PARTS)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# ---- products ----------------------------------------------------------------------------------
$(BUILD)/weft: $(call obj,$(CLI_SRC)) $(BUILD)/libcoord.a $(BUILD)/libagent.a $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(COORD_LIBS)

$(BUILD)/weft-coordinator: $(call obj,coordinator/main.c) $(BUILD)/libcoord.a $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(COORD_LIBS)

$(BUILD)/weft-worker: $(call obj,worker/main.c) $(BUILD)/libagent.a $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RPC_LIBS) $(COMMON_LIBS)

$(BUILD)/weft-rank: $(call obj,worker/rank/main.c) $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RANK_LIBS)

$(BUILD)/weft-sink: $(call obj,worker/sinks/sink_main.c $(SINK_SRC)) $(BUILD)/libcommon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(COMMON_LIBS)

# The inner loops of the CPU backend. Contraction is off so that slices never change a result.
VEC_FLAGS := -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi
VEC_baseline :=
VEC_avx2     := -mavx2 -mfma
VEC_avx512   := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mprefer-vector-width=512
VEC_avx512bf16 := $(VEC_avx512) -mavx512bf16
VEC_amx      := $(VEC_avx512bf16) -mamx-tile -mamx-bf16
# per_isa SOURCE, ISAS: one object for each, SOURCE-ISA.o
per_isa       = $(2:%=$(BUILD)/obj/$(1)-%.o)
define per_isa_rule
$(call per_isa,$(1),$(2)): $(BUILD)/obj/$(1)-%.o: $(1).c
	$$(call say,CC,$$@)
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(VEC_FLAGS) $$(VEC_$$*) -DVEC_ISA=$$* -c $$< -o $$@
endef
$(foreach source,kernels/cpu/vec kernels/cpu/vec_product tests/bench/fma_peak,$(eval $(call per_isa_rule,$(source),$(CPU_ISAS))))
$(foreach source,kernels/cpu/packed kernels/cpu/streamed,$(eval $(call per_isa_rule,$(source),$(PACKED_ISAS))))
$(eval $(call per_isa_rule,kernels/cpu/tiled,$(TILED_ISAS)))

CPU_VEC_OBJ  := $(foreach source,kernels/cpu/vec kernels/cpu/vec_product,$(call per_isa,$(source),$(CPU_ISAS)))
CPU_VEC_OBJ  += $(foreach source,kernels/cpu/packed kernels/cpu/streamed,$(call per_isa,$(source),$(PACKED_ISAS)))
CPU_VEC_OBJ  += $(call per_isa,kernels/cpu/tiled,$(TILED_ISAS))

$(BUILD)/libweft_cpu.so: $(call obj,$(CPU_SRC)) $(CPU_VEC_OBJ) $(BUILD)/libcommon.a kernels/cpu/export.map
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=kernels/cpu/export.map -o $@ \
	    $(filter %.o %.a,$^) -ldnnl -lgomp -lm

# ---- CUDA --------------------------------------------------------------------------------------
# libweft_cuda.so needs nvcc; its emulated twin in build/tests/cuda needs CUDA's headers and gcc.
CUDA_ARCHS ?= 80 90 100
CUDA_CODE  = $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
             -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
# A product and a sum are rounded apart unless a kernel says mad(): nvcc would fuse them in one
# kernel this way and in another that way, and what two kernels share would have two results.
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -fmad=false $(CUDA_CODE) -I. -D_GNU_SOURCE \
             -Xcompiler -fPIC,-Wall,-Wextra,-Werror,-fno-exceptions,-fno-threadsafe-statics,-fno-strict-aliasing
# A kernel of ours keeps what it works on in registers, on each of the devices: one that spills is an
# error. Another nvcc may count otherwise: `make NVCC_SPILLS=` takes its kernels as they are.
NVCC_SPILLS ?= -Xptxas --warn-on-spills,--warning-as-error
cuda_obj = $(patsubst %.c,$(BUILD)/obj/cuda/%.o,$(filter %.c,$(1))) $(patsubst %.cu,$(BUILD)/obj/cuda/%.cu.o,$(filter %.cu,$(1)))
emulated_obj = $(patsubst %.c,$(BUILD)/obj/emulated/%.o,$(filter %.c,$(1))) $(patsubst %.cu,$(BUILD)/obj/emulated/%.cu.o,$(filter %.cu,$(1)))
# CUDA's headers are not held to our warnings.
CUDA_CC = $(CPPFLAGS) $(if $(NCCL),-DWEFT_NCCL) -isystem $(CUDA_INCLUDE) $(CFLAGS)

$(BUILD)/obj/cuda/%.o: %.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CUDA_CC) -c $< -o $@

$(BUILD)/obj/cuda/%.cu.o: %.cu
	$(call say,NVCC,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(NVCC_SPILLS) -MD -MP -MF $(@:.o=.d) -c $< -o $@

$(BUILD)/libweft_cuda.so: $(call cuda_obj,$(CUDA_SRC) $(CUDA_REAL) $(CUDA_CU)) $(BUILD)/libcommon.a kernels/cuda/export.map
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-z,defs -Wl,--version-script=kernels/cuda/export.map -o $@ $(filter %.o %.a,$^) \
	    -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudart_static -lcublasLt -lrt -lpthread -ldl -lm

# Nested functions carry a launch's arguments: gcc alone has them. An access of several elements at
# an address that is no multiple of its size traps, as on a GPU (a sanitizer's build says so itself).
EMULATE_CC ?= gcc
ALIGNED = -fsanitize=alignment -fsanitize-undefined-trap-on-error
EMULATE_FLAGS = $(filter-out -Wshadow,$(CUDA_CC)) -std=gnu11 -ffp-contract=off -DWEFT_EMULATE -Wno-maybe-uninitialized $(if $(SAN),-fsanitize-sections=weft_shared,$(ALIGNED))
# Fibers are no threads, and one launch runs at a time: the thread sanitizer leaves kernels out.
KERNEL_FLAGS = $(filter-out -fsanitize=thread,$(EMULATE_FLAGS))
$(BUILD)/obj/emulated/tests/cuda/emulate.o: EMULATE_FLAGS := $(KERNEL_FLAGS)
$(BUILD)/obj/emulated/%.o: %.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(EMULATE_CC) $(EMULATE_FLAGS) -c $< -o $@

$(BUILD)/obj/emulated/%.cu.o: %.cu
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(EMULATE_CC) -x c $(KERNEL_FLAGS) -c $< -o $@

$(BUILD)/tests/cuda/libweft_cuda.so: $(call emulated_obj,$(CUDA_SRC) $(CUDA_CU) $(FAKE_SRC)) $(BUILD)/libcommon.a kernels/cuda/export.map
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(EMULATE_CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=kernels/cuda/export.map -o $@ $(filter %.o %.a,$^) -lpthread -lm

# ---- tests -------------------------------------------------------------------------------------
# What tests share: the f64 interpreter, the plain reference ops, the rig that loads a backend.
TEST_SRC := tests/support/interp.c tests/support/replay.c tests/support/rank_threads.c tests/support/fake_world.c tests/support/late_transport.c tests/support/random_graph.c tests/support/random_text.c tests/support/random_text_loss.c tests/support/named.c worker/local_leader.c
TEST_SRC += tests/ops/reference.c tests/ops/reference_product.c tests/ops/reference_heads.c tests/ops/reference_step.c tests/ops/reference_route.c tests/ops/rig.c
# Most of what the C tests compute. It is what the product is held against: sanitizers need not look at it.
REFERENCE_SRC := $(filter tests/support/interp.c tests/ops/reference%,$(TEST_SRC))
$(call obj,$(REFERENCE_SRC)): override CFLAGS += -O3 -fno-sanitize=all
$(BUILD)/libtest.a: $(call obj,$(TEST_SRC))
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# A room's program: room.c, and the files with their main() by the file's name.
$(BUILD)/obj/rooms/%.o: $(BUILD)/obj/%.o
	@mkdir -p $(@D)
	$(Q)objcopy --redefine-sym main=$(notdir $*) $< $@
room_obj = $(foreach t,$(ROOM_$(1)),$(BUILD)/obj/rooms/$(if $(filter %/emulator,$(1)),emulated/)tests/$(dir $(1))test_$(t).o)
define room_rule
$(BUILD)/tests/$(1): $(call room_obj,$(1))
$(BUILD)/obj/tests/$(1).o: tests/support/room.c Makefile
	$$(call say,CC,$$@)
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(CPPFLAGS) $$(CFLAGS) -DROOM='$(ROOM_$(1):%=TEST(test_%))' -c $$< -o $$@
endef
$(foreach r,$(ROOMS),$(eval $(call room_rule,$(r))))
$(BUILD)/tests/cuda/emulator: $(call emulated_obj,$(FAKE_SRC))
$(BUILD)/tests/cuda/cuda: $(call obj,kernels/cuda/algos.c)

# A room's, or that of one file alone: make build/tests/unit/test_json.
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(BUILD)/libtest.a $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(RANK_LIBS)

$(BUILD)/tests/cuda/test_cublaslt: $(call cuda_obj,tests/cuda/test_cublaslt.c kernels/cuda/layout.c) $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcmocka $(COMMON_LIBS)
$(BUILD)/tests/cuda/test_nccl: $(call cuda_obj,tests/cuda/test_nccl.c kernels/cuda/nccl.c) $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -Wl,-rpath,$(CUDA_HOME)/lib64 -lcmocka $(COMMON_LIBS)
SDPA_SRC := tests/cuda/test_sdpa.c $(patsubst %,kernels/cuda/%.c,attention_choice sdpa sdpa_graph cudnn)
FAKE_DNN := $(foreach v,91000 91500 91700 91800,$(BUILD)/tests/cuda/dnn-$(v)/libcudnn.so.9)
$(BUILD)/tests/cuda/test_sdpa: $(call cuda_obj,$(SDPA_SRC)) $(BUILD)/libcommon.a | $(BUILD)/tests/cuda/libfake_driver.so $(FAKE_DNN)
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -Wl,-rpath,$(CUDA_HOME)/lib64 -lcmocka $(COMMON_LIBS)
$(FAKE_DNN): $(BUILD)/tests/cuda/dnn-%/libcudnn.so.9: tests/cuda/fake_dnn.c
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CUDA_CC)) -fPIC -shared -Wl,-soname,libcudnn_graph.so.9 -DDNN_VERSION=$* -o $(@D)/libcudnn_graph.so.9 $<
	$(Q)$(CC) $(filter-out -MMD -MP,$(CUDA_CC)) -fPIC -shared -Wl,-soname,libcudnn.so.9 -o $@ $<
$(BUILD)/tests/cuda/libfake_driver.so: $(BUILD)/obj/tests/cuda/fake_driver.o
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^
$(SERVICE_TESTS:%=$(BUILD)/tests/unit/test_%) $(SERVICE_ROOMS:%=$(BUILD)/tests/%): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o \
        $(BUILD)/libcoord.a $(BUILD)/libagent.a $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(COORD_LIBS)

# What bench_kernels measures products by, for each instruction set.
$(BUILD)/tests/bench/bench_kernels: $(call per_isa,tests/bench/fma_peak,$(CPU_ISAS))

$(SERVICE_BENCHES:%=$(BUILD)/tests/bench/bench_%): $(BUILD)/tests/bench/bench_%: $(BUILD)/obj/tests/bench/bench_%.o \
        $(BUILD)/libcoord.a $(BUILD)/libagent.a $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(COORD_LIBS)
$(SERVICE_BENCHES:%=$(BUILD)/obj/tests/bench/bench_%.o): | $(PROTO_C) $(SERVICE_C)

$(BUILD)/tests/unit/test_log_order $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/log_order.o
$(BUILD)/tests/unit/test_held_text $(BUILD)/tests/unit/test_generation $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/held_text.o
$(BUILD)/tests/unit/test_generation $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/generation.o
$(BUILD)/tests/unit/test_allocation $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/allocation.o
$(BUILD)/tests/unit/test_leader_file $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/leader_file.o $(BUILD)/obj/coordinator/cli/run_file.o
# The test has a double of cli_link.c: where it is left out, the room cannot have what calls that.
$(BUILD)/tests/unit/test_job_curve $(if $(filter job_curve,$(ROOM_unit/coord)),$(BUILD)/tests/unit/coord): $(BUILD)/obj/coordinator/cli/job_curve.o
$(BUILD)/tests/unit/test_up_order $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/up_order.o
$(BUILD)/tests/unit/test_run_history $(BUILD)/tests/unit/coord: $(BUILD)/obj/coordinator/cli/run_history.o $(BUILD)/obj/coordinator/cli/run_file.o

# The world that the coordinator's decider is played in.
COORD_WORLD := tests/unit/coord_world.c tests/unit/coord_people.c tests/support/stored_row.c
$(UNIT_COORD:%=$(BUILD)/tests/unit/test_%) $(BUILD)/tests/unit/coord: $(call obj,$(COORD_WORLD))
$(call obj,$(COORD_WORLD)): | $(PROTO_C) $(SERVICE_C)

# Objects with -DWEFT_FAULTS live apart; the rest is the product's own.
faults = $(patsubst %.c,$(BUILD)/obj/faults/%.o,$(1))
$(BUILD)/obj/faults/%.o: %.c
	$(call say,CC,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -DWEFT_FAULTS -c $< -o $@
SIM_OBJ := $(call faults,$(SIM_SRC) tests/support/stored_row.c coordinator/serve/job_facts.c $(DECIDER_SRC) $(DECIDING_AGENT_SRC) common/ckpt/commit.c $(ATTEMPT_SRC))
$(SIM_OBJ): | $(PROTO_C) $(SERVICE_C)
$(BUILD)/tests/sim/test_sim: $(SIM_OBJ) $(PROTO_O) $(SERVICE_O) $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(SIM_WRAP) -o $@ $^ -lcmocka -lprotobuf-c $(COMMON_LIBS)

# weft-rank with a double in training's place: what surrounds training is tested by itself.
$(BUILD)/tests/weft-rank-double: $(call obj,worker/rank/main.c tests/unit/rank_double.c) \
        $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RANK_LIBS)
$(call obj,tests/unit/rank_double.c): | $(PROTO_C)

# Leads ranks without a daemon: for tests of ranks by themselves, benchmarks and the bundle for GPUs.
LEAD_PARTS := $(call obj,tests/support/lead_ranks.c worker/local_leader.c)
$(BUILD)/tests/lead-ranks: $(LEAD_PARTS) $(BUILD)/librank.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RANK_LIBS)
$(LEAD_PARTS): | $(PROTO_C)

# A tokenizer for programs that compare or measure it.
$(BUILD)/tests/tokenize: $(call obj,tests/support/tokenize.c) $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(COMMON_LIBS)

# A coordinator that answers from a script: the client is tested against it by itself.
$(BUILD)/tests/coordinator-double: $(call obj,tests/support/coordinator_double.c) $(BUILD)/libservice.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(RPC_LIBS) $(COMMON_LIBS)
$(call obj,tests/support/coordinator_double.c): | $(PROTO_C) $(SERVICE_C)

# A device with memory and a time of its own, over the CPU backend: it goes by the name of cuda.
LATE := $(BUILD)/tests/late/libweft_cuda.so
$(LATE): $(call obj,tests/support/late.c) $(BUILD)/libcommon.a tests/support/late.map | $(BUILD)/libweft_cpu.so
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,--version-script=tests/support/late.map -o $@ \
	    $(filter %.o %.a,$^) -ldl -lm
$(patsubst %,$(BUILD)/tests/unit/%,compile rank test_compile_meshes test_compile_own test_compile_random_text test_rank_transport test_rank_marks): | $(LATE)

# Preloaded into ranks by tests/fault: it replaces the C library's file calls and links nothing of ours.
$(BUILD)/libfaultshim.so: $(BUILD)/obj/tests/fault/shim.o
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^

tests: $(TEST_BINS) $(BUILD)/weft-rank $(BUILD)/weft-worker $(BUILD)/weft-coordinator $(BUILD)/tests/weft-rank-double \
        $(BUILD)/tests/lead-ranks $(BUILD)/tests/coordinator-double $(BUILD)/tests/tokenize $(BUILD)/libfaultshim.so $(LATE) $(GPU_BENCH)

# A bare machine is brought what the tests need first; then make reads this file again, with a compiler.
test_all = sh deploy/deps.sh $(if $(WEFT_LONG),long,all) && $(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$$(nproc)) tested
## make test         installs what is missing, builds on all cores, and runs all but what check-long adds
test:
	@n=$$(nproc); echo "make test: installs what is missing, builds and runs every test: about $$((6 + 16 / n)) minutes on $$n cores"
	+$(Q)$(test_all)

## make check-long   the same with the full counts (30 kills, power loss, …)
check-long: export WEFT_LONG := 1
check-long:
	@echo "make check-long: make test with the full counts: about 70 minutes"
	+$(Q)$(test_all)

.PHONY: tested
tested: all tests
	$(NO_EMULATION)
	$(NO_CUDNN)
	$(NO_NCCL)
	$(Q)sh tests/run.sh "$(BUILD)" $(RUN_BINS)

## make gpu-test     every GPU test, where a GPU is (WEFT_REQUIRE_GPU=1: or fail; WEFT_SANITIZE=1: checked)
gpu-test: all $(BUILD)/tests/lead-ranks $(BUILD)/tests/ops/ops $(BUILD)/tests/parity/test_jax
	$(Q)printf '%s\n' $(BUNDLED_TESTS) >"$(BUILD)/tests/list"
	$(Q)[ ! -e /dev/nvidiactl ] || WEFT_BUILD="$(BUILD)" WEFT_BACKEND_DIR="$(BUILD)" /usr/bin/python3 tests/cuda/models.py "$(BUILD)/models"
	$(Q)sh tests/bench/gpu/lease.sh tests$$([ "$(WEFT_SANITIZE)" != 1 ] || echo ,sanitize) "$(BUILD)" "$(BUILD)/gpu-test" --whole --budget 3600

## make gpu-bench    ops, GPT-2 and Llama beside their peers, where a GPU is; files in tests/bench/results
gpu-bench: all $(BUILD)/tests/lead-ranks $(GPU_BENCH)
	$(Q)sh tests/bench/gpu/lease.sh a,3,4a,4b,4c,sweep "$(BUILD)" "$(BUILD)/gpu-bench"
	$(Q)find "$(BUILD)/gpu-bench" -name '*-gpu-*.txt' -exec cp {} tests/bench/results/ \;

## make gpu-bundle   build/gpu-bundle: what runs the GPU tests and benchmarks on a machine with CUDA and nothing else (LLMC=llm.c's sources)
BUNDLE := $(BUILD)/gpu-bundle
BUNDLED_TESTS = $(patsubst %,ops:test_%,$(CUDA_OPS) huge) test_jax
.PHONY: gpu-test gpu-bench gpu-bundle gpu-rehearsal
gpu-bundle: $(if $(NVCC),$(BUNDLE)/weft-rank $(BUNDLE)/lead-ranks $(BUNDLE)/libweft_cuda.so $(BUNDLE)/tests/ops $(BUNDLE)/tests/test_jax $(BUNDLE)/bench/bench_ops \
        $(BUILD)/weft $(BUILD)/weft-rank $(BUILD)/tests/lead-ranks $(BUILD)/libweft_cpu.so)
	$(if $(NVCC),,@echo "no nvcc in $(CUDA_HOME)/bin: there is no GPU bundle without it"; exit 1)
	$(Q)FLAGS_C='$(subst ','\'',$(filter-out -isystem $(CUDA_INCLUDE),$(CUDA_CC)))' FLAGS_CUDA='$(NVCC_FLAGS)' CUDA_HOME='$(CUDA_HOME)' \
	    sh tests/cuda/objects.sh "$(BUILD)" "$(BUNDLE)" $(call cuda_obj,$(CUDA_SRC) $(CUDA_REAL) $(CUDA_CU))
	$(Q)LLMC='$(LLMC)' LLMC_ARCH='$(if $(filter 90,$(CUDA_ARCHS)),90,$(lastword $(CUDA_ARCHS)))' CUDA_HOME='$(CUDA_HOME)' \
	    sh tests/cuda/bundle.sh "$(BUILD)" "$(BUNDLE)" $(BUNDLED_TESTS)

## make gpu-rehearsal the stages for a lent GPU, from the bundle, on the emulated device at tiny sizes
REHEARSED := --tiny --whole --rates 0.002,0.001,0.0005,0.004 --warm 1 --steps 2
gpu-rehearsal: gpu-bundle $(BUILD)/tests/cuda/libweft_cuda.so
	$(Q)WEFT_BACKEND_DIR="$(abspath $(BUILD))/tests/cuda" WEFT_REQUIRE_GPU=1 \
	    sh "$(BUNDLE)/bench/lease.sh" a,b,nccl,tests,3,4a,4b,4c,sweep "$(BUNDLE)" "$(BUILD)/gpu-rehearsal" $(REHEARSED)

# The same objects, linked to find their libraries beside themselves.
BESIDE := -Wl,-rpath,'$$ORIGIN/lib:$$ORIGIN/../lib'
$(BUNDLE)/weft-rank: $(call obj,worker/rank/main.c) $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(BESIDE) -o $@ $^ $(RANK_LIBS)
$(BUNDLE)/lead-ranks: $(LEAD_PARTS) $(BUILD)/librank.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(BESIDE) -o $@ $^ $(RANK_LIBS)
$(BUNDLE)/libweft_cuda.so: $(BUILD)/libweft_cuda.so
	@mkdir -p $(@D)
	$(Q)cp $< $@ && strip -S $@
$(BUNDLE)/tests/ops: $(BUILD)/obj/tests/ops/ops.o $(call room_obj,ops/ops)
$(BUNDLE)/tests/test_jax: $(BUILD)/obj/tests/parity/test_jax.o
$(BUNDLE)/tests/ops $(BUNDLE)/tests/test_jax: $(BUILD)/libtest.a $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(BESIDE) -o $@ $(filter %.o,$^) $(filter %.a,$^) -lcmocka $(RANK_LIBS)
$(BUNDLE)/bench/bench_ops: $(BUILD)/obj/tests/bench/gpu/bench_ops.o $(BUILD)/librank.a $(BUILD)/libcollective.a $(BUILD)/libcommon.a
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) $(BESIDE) -o $@ $^ $(RANK_LIBS)

## make check-peers  parity with JAX and safetensors, live, in a pinned environment from PyPI
check-peers: all tests
	$(Q)sh tests/parity/check_peers.sh "$(BUILD)"

## make lint         the rules of tests/lint, formatting, clang-tidy (WEFT_LONG=1: the analyzer looks further)
ALL_C = $(COMMON_SRC) $(ATTEMPT_SRC) $(RPC_SRC) $(COORD_SRC) $(AGENT_SRC) $(SINK_SRC) worker/sinks/sink_main.c $(COLLECTIVE_SRC) $(RANK_SRC) $(CLI_SRC) $(CPU_SRC) kernels/backend.c \
        $(if $(CUDA_INCLUDE),$(CUDA_SRC))
# clang's analyzer stops in a function after a third of the states that it would look at by itself: a third of the time.
TIDY_PATHS = $(if $(WEFT_LONG),,$(patsubst %,--extra-arg=%,-Xclang -analyzer-config -Xclang max-nodes=75000))
lint: all
	$(Q)/usr/bin/python3 -m pytest -q -p no:cacheprovider tests/lint
	$(Q)/usr/bin/python3 tests/lint/lint.py --build "$(BUILD)"
	$(Q)git ls-files '*.c' '*.h' '*.cu' | xargs clang-format --dry-run -Werror
	$(Q)$(MAKE) --no-print-directory $(PROTO_C) $(SERVICE_C)
	$(Q)printf '%s\n' $(ALL_C) | xargs -P $$(nproc) -n 6 sh -c 'clang-tidy --quiet --warnings-as-errors="*" $(TIDY_PATHS) "$$@" -- -I. -I$(BUILD)/gen $(if $(CUDA_INCLUDE),-isystem $(CUDA_INCLUDE)) -D_GNU_SOURCE -DWEFT_VERSION=\"x\" -std=c11 2>/dev/null' tidy

## make format       clang-format over every source
format:
	$(Q)git ls-files '*.c' '*.h' '*.cu' | xargs clang-format -i

## make asan, tsan   the unit and op tests under sanitizers, a third of the long sweeps (tsan: what has threads)
ASAN := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
TSAN := -fsanitize=thread -fno-omit-frame-pointer
asan:
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/asan OPT="-O1 -g1" SAN="$(ASAN)" sanitized
tsan:
	$(Q)$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan OPT="-O1 -g1" SAN="$(TSAN)" \
	    UNIT_TESTS="$(UNIT_COLLECTIVE) $(UNIT_RANK) ckpt_snapshot data_prepare data_bpe" OPS_TESTS= PARITY_TESTS= SIM_TESTS= \
	    CUDA_PARTS= EMULATED_TESTS= CUDA_INCLUDE="$(if $(NCCL_RIGS),$(CUDA_INCLUDE))" CUDA_RIGS="$(NCCL_RIGS)" OVER_TWIN='$$(call in_room,cuda/cuda,$$(CUDA_RIGS))' \
	    SERVICE_TESTS="$(UNIT_RPC) coord_http coord_service agent_storage agent_daemon" sanitized
.PHONY: sanitized
sanitized: $(BUILD)/libweft_cpu.so $(BUILD)/weft-sink tests
	$(Q)WEFT_ONLY_C=1 WEFT_SANITIZED=1 sh tests/run.sh "$(BUILD)" $(RUN_BINS)

## make fuzz         each parser for FUZZ_SECONDS (60) from its corpus, under ASan
FUZZ_SECONDS ?= 60
fuzz:
	$(Q)sh tests/fuzz/run.sh "$(BUILD)" $(FUZZ_SECONDS) $(FUZZERS)
# What a fuzzer takes besides libcommon's sources.
FUZZ_WITH_events := worker/sinks/event_file.c
FUZZ_WITH_leader := coordinator/cli/leader_file.c coordinator/cli/run_file.c
FUZZ_WITH_history := $(patsubst %,coordinator/cli/%.c,run_file run_history why_text cli_print message_json) $(PROTO_C) $(SERVICE_C)
FUZZ_WITH_slurm := $(patsubst %,coordinator/cli/%.c,slurm_queue slurm_call run_file run_place allocation up_order)
FUZZ_WITH_frame := common/attempt/frame.c $(PROTO_C)
FUZZ_WITH_up    := tests/support/stored_row.c coordinator/serve/job_facts.c $(DECIDER_SRC) $(ATTEMPT_SRC) $(PROTO_C) $(SERVICE_C)
$(BUILD)/fuzz/fuzz_%: tests/fuzz/fuzz_%.c $(COMMON_SRC) $(BUILD)/gen/model_texts.c | $(PROTO_C) $(SERVICE_C)
	$(call say,FUZZ,$@)
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(CPPFLAGS) -std=c11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    -o $@ $< $(COMMON_SRC) $(BUILD)/gen/model_texts.c $(FUZZ_WITH_$*) $(if $(FUZZ_WITH_$*),-lprotobuf-c) $(COMMON_LIBS)

benches: $(BUILD)/tests/tokenize $(BENCHES:%=$(BUILD)/tests/bench/bench_%) $(SERVICE_BENCHES:%=$(BUILD)/tests/bench/bench_%)

## make bench        the benchmarks of tests/bench, results printed
bench: all benches
	$(Q)sh tests/bench/run.sh "$(BUILD)"

## make wheel        build/weft-VERSION-py3-none-any.whl: jobs, metrics and checkpoints from Python
.PHONY: wheel
wheel:
	$(Q)/usr/bin/python3 deploy/python/make_wheel.py $(VERSION) $(BUILD)

## make install      DESTDIR= PREFIX=/usr/local: programs, backend, sinks, completion, man pages, systemd units, /etc/weft
PREFIX     ?= /usr/local
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
BINDIR  := $(PREFIX)/bin
DOCDIR  := $(PREFIX)/share/doc/weft
# What is read by who uses weft, not by who changes it; links among them hold where they are installed.
USER_DOCS := README.md common/GLOSSARY.md common/job/README.md common/job/KEYS.md common/language/LANGUAGE.md coordinator/cli/README.md deploy/README.md
PROMETHEUS := prometheus.yaml weft-alerts.yaml weft-dashboard.json
UNITDIR := $(PREFIX)/lib/systemd/system
COMPDIR := $(PREFIX)/share/bash-completion/completions
ZSHDIR  := $(PREFIX)/share/zsh/site-functions
MANDIR  := $(PREFIX)/share/man/man1
## make man          the pages of man(1), from the tables of verbs and flags, in build/man
.PHONY: man
man: all
	$(Q)mkdir -p $(BUILD)/man && $(BUILD)/weft help --man >$(BUILD)/man/weft.1
	$(Q)for v in $$($(BUILD)/weft help | sed -n 's/^  weft \([a-z]*\) .*/\1/p'); do \
	    $(BUILD)/weft help $$v --man >$(BUILD)/man/weft-$$v.1 || exit; done
fill = sed -e 's|@BINDIR@|$(BINDIR)|g; s|@SYSCONFDIR@|$(SYSCONFDIR)|g; s|@DOCDIR@|$(DOCDIR)|g' $(1) >$(2) && chmod 644 $(2)
install: all man
	$(Q)for p in weft weft-rank weft-sink weft-coordinator weft-worker; do \
	    install -D -m 755 $(BUILD)/$$p $(DESTDIR)$(BINDIR)/$$p || exit; done
	$(Q)for b in cpu cuda; do [ ! -e $(BUILD)/libweft_$$b.so ] || \
	    install -D -m 755 $(BUILD)/libweft_$$b.so $(DESTDIR)$(PREFIX)/lib/weft/libweft_$$b.so || exit; done
	$(Q)install -d $(DESTDIR)$(PREFIX)/share/weft/sinks && install -m 755 deploy/sinks/*.py $(DESTDIR)$(PREFIX)/share/weft/sinks
	$(Q)for f in $(PROMETHEUS); do install -D -m 644 deploy/prometheus/$$f $(DESTDIR)$(PREFIX)/share/weft/prometheus/$$f || exit; done
	$(Q)for d in LICENSE $(USER_DOCS); do install -D -m 644 $$d $(DESTDIR)$(DOCDIR)/$$d || exit; done
	$(Q)install -d $(DESTDIR)$(UNITDIR) $(DESTDIR)$(COMPDIR) $(DESTDIR)$(PREFIX)/lib/tmpfiles.d $(DESTDIR)$(SYSCONFDIR)/weft
	$(Q)$(BUILD)/weft completion bash >$(DESTDIR)$(COMPDIR)/weft && chmod 644 $(DESTDIR)$(COMPDIR)/weft
	$(Q)install -d $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(MANDIR)
	$(Q)$(BUILD)/weft completion zsh >$(DESTDIR)$(ZSHDIR)/_weft && chmod 644 $(DESTDIR)$(ZSHDIR)/_weft
	$(Q)install -m 644 $(BUILD)/man/*.1 $(DESTDIR)$(MANDIR)
	$(Q)for d in coordinator worker; do \
	    $(call fill,deploy/systemd/weft-$$d.service.in,$(DESTDIR)$(UNITDIR)/weft-$$d.service) || exit; \
	    [ -e $(DESTDIR)$(SYSCONFDIR)/weft/$$d.env ] || \
	    install -m 644 deploy/etc/$$d.env $(DESTDIR)$(SYSCONFDIR)/weft/$$d.env || exit; done
	$(Q)install -D -m 644 deploy/systemd/weft.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/weft.conf
	$(Q)$(call fill,deploy/systemd/weft.tmpfiles.in,$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/weft.conf)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
