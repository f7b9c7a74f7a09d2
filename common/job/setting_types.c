// SPDX-License-Identifier: Apache-2.0
// The table of types: how the setting of each is read and printed. See setting.h.
#include "common/job/setting.h"

// clang-format off
const struct setting_type setting_types[SCHEMA_COUNT] = {
    [SCHEMA_INT]       = {"integer", setting_read_int, setting_print_int},
    [SCHEMA_FLOAT]     = {"number", setting_read_float, setting_print_float},
    [SCHEMA_BOOL]      = {"true or false", setting_read_bool, setting_print_bool},
    [SCHEMA_STRING]    = {"text", setting_read_string, setting_print_string},
    [SCHEMA_TEXT]      = {"lines of text", setting_read_text, setting_print_text},
    [SCHEMA_ENUM]      = {"word", setting_read_enum, setting_print_enum},
    [SCHEMA_DURATION]  = {"duration", setting_read_duration, setting_print_duration},
    [SCHEMA_INT_LIST]  = {"list of integers", setting_read_int_list, setting_print_int_list},
    [SCHEMA_PAIR]      = {"two numbers", setting_read_pair, setting_print_pair},
    [SCHEMA_DURATIONS] = {"two durations", setting_read_durations, setting_print_durations},
    [SCHEMA_MESH]      = {"map of axis: size", setting_read_mesh, setting_print_mesh},
    [SCHEMA_RULES]     = {"map of dimension: axes", setting_read_rules, setting_print_rules},
    [SCHEMA_PARAMS]    = {"list of parameter specs", setting_read_params, setting_print_params},
    [SCHEMA_POINTS]    = {"map of point: spec", setting_read_points, setting_print_points},
    [SCHEMA_AXES]      = {"list of axes", setting_read_axes, setting_print_axes},
    [SCHEMA_REFINE]    = {"list of axes, or of parameter specs", setting_read_refine, setting_print_refine},
    [SCHEMA_GROUPS]    = {"list of groups", setting_read_groups, setting_print_groups},
};
// clang-format on
