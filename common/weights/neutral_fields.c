// SPDX-License-Identifier: Apache-2.0
// The table of neutral fields. See neutral_fields.h.
#include "common/weights/neutral_fields.h"

#include <stddef.h>

// clang-format off
const struct neutral_field neutral_fields[] = {
    // who wrote it, and how it is loaded
    {"transformers_version", NULL, "who wrote the file"},
    {"_name_or_path", NULL, "where it came from"},
    {"_commit_hash", NULL, "where it came from"},
    {"_attn_implementation_autoset", NULL, "kernels are the reader's choice"},
    {"_attn_implementation", NULL, "kernels are the reader's choice"},
    {"attn_implementation", NULL, "kernels are the reader's choice"},
    {"_experts_implementation", NULL, "kernels are the reader's choice"},
    {"experts_implementation", NULL, "kernels are the reader's choice"},
    {"auto_map", NULL, "code of others, which is not run"},
    {"torch_dtype", NULL, "the tensors say their own"},
    {"dtype", NULL, "the tensors say their own"},
    // token ids and generation: beside the model
    {"bos_token_id", NULL, "read with the tokenizer's files"},
    {"eos_token_id", NULL, "read with the tokenizer's files"},
    {"pad_token_id", NULL, "read with the tokenizer's files"},
    {"sep_token_id", NULL, "of the tokenizer"},
    {"decoder_start_token_id", NULL, "of encoders with decoders"},
    {"tokenizer_class", NULL, "of the tokenizer"},
    {"prefix", NULL, "of generation"},
    {"task_specific_params", NULL, "of generation"},
    {"use_cache", NULL, "of generation"},
    {"cache_implementation", NULL, "of generation"},
    // what a training begins with
    {"initializer_range", NULL, "how weights were born"},
    {"attention_dropout", "0", "none in training either"},
    {"router_jitter_noise", "0", "none in training either"},
    {"aux_loss_alpha", NULL, "the weight of a loss of training"},
    {"seq_aux", NULL, "how a loss of training is added up"},
    {"output_router_logits", NULL, "a loss of training, or none"},
    // what outputs are returned
    {"output_attentions", NULL, "what else is returned"},
    {"output_hidden_states", NULL, "what else is returned"},
    {"return_dict", NULL, "how outputs are returned"},
    {"torchscript", NULL, "how outputs are returned"},
    {"chunk_size_feed_forward", NULL, "the same sums in parts"},
    {"pretraining_tp", NULL, "the same products in parts"},
    {"ep_size", NULL, "where experts lie"},
    {"reorder_and_upcast_attn", NULL, "the same products in another order"},
    {"gradient_checkpointing", NULL, "memory of training"},
    // other tasks' heads
    {"problem_type", NULL, "of classifiers"},
    {"id2label", NULL, "of classifiers"},
    {"label2id", NULL, "of classifiers"},
    {"num_labels", NULL, "of classifiers"},
    {"finetuning_task", NULL, "of classifiers"},
    {"summary_type", NULL, "of classifiers"},
    {"summary_use_proj", NULL, "of classifiers"},
    {"summary_activation", NULL, "of classifiers"},
    {"summary_proj_to_labels", NULL, "of classifiers"},
    {"summary_first_dropout", NULL, "of classifiers"},
    // what acts only beside a setting that the program's lines compare
    {"max_window_layers", NULL, "counts where use_sliding_window is true"},
    {"use_mrope", "false", "positions are of one kind"},
    {"rope_interleaved", "false", "halves are turned together"},
    {"is_llama_config", NULL, "of the program that trained it"},
    {"transformers.js_config", NULL, "of a program for browsers"},
    {"add_cross_attention", "false", "there is none"},
    {"is_decoder", NULL, "of encoders with decoders"},
    {"is_encoder_decoder", "false", "there is no encoder"},
    {"cross_attention_hidden_size", "null", "there is none"},
    {"pruned_heads", "{}", "none is left out"},
    {"head_dim", "null", "follows from other fields"},
    {"use_bidirectional_attention", "false", "there is none"},
    {"sliding_window", "null", "there is none"},
    {NULL, NULL, NULL},
};

const struct switched_field switched_fields[] = {
    {"sliding_window", "use_sliding_window"},
    {NULL, NULL},
};
// clang-format on
