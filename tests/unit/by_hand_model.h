// SPDX-License-Identifier: Apache-2.0
// For tests: a program of a user's own that uses what weft's programs do not, as text within a job.
#pragma once

// A program of one's own: attention from products, a mask and a softmax, its heads' products in f32.
#define BY_HAND_TEXT                                                                          \
    "sizes\\n  layers = 4\\n  embed = 24\\n  heads = 8\\n  head = 4 like head_dim\\n"         \
    "  mlp = 48\\n  seq = 24\\n  vocab = 24\\n"                                               \
    "let attend(q, k, v)\\n"                                                                  \
    "  s = causal(f32(q){heads*} @ k{seq as key} / sqrt(head))\\n"                            \
    "  return compute(softmax(s, key) @ v{seq as key, heads*})\\n"                            \
    "model\\n"                                                                                \
    "  x = embed(tokens, ids[vocab, embed]) + embed(positions, at[position = seq, embed])\\n" \
    "  repeat layers\\n"                                                                      \
    "    h = rmsnorm(x, norm)\\n"                                                             \
    "    q, k, v = h @ qkv[3, embed, heads, head]\\n"                                         \
    "    a = attend(q, k, v) @ out[heads, head, embed]\\n"                                    \
    "    x = x + dropout(a, 0.2) * (2 * gain[embed] ~ ones) + relu(h @ up[embed, mlp]) @ "    \
    "down[mlp, embed]\\n"                                                                     \
    "  logits = x @ ids[vocab, embed]\\n"                                                     \
    "  loss = cross_entropy(logits, targets)\\n"
