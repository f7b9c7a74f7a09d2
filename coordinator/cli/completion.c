// SPDX-License-Identifier: Apache-2.0
// weft completion bash: a function for the shell, written from the tables of verbs and flags. Jobs
// and workers are asked of the coordinator, within a second.
#include <stdio.h>
#include <string.h>

#include "common/base/plain.h"
#include "coordinator/cli/verbs.h"

// The shell command whose output are the words that an argument may become; null: none.
static const char *find_words(const struct verb *v)
{
    if (strncmp(v->args, "JOB.yaml", 8) == 0 || strstr(v->args, "FILE"))
        return "compgen -f -- \"$cur\"";
    if (strstr(v->args, "DIR"))
        return "compgen -W 'ls verify' -- \"$cur\"; compgen -d -- \"$cur\"";
    if (strncmp(v->args, "JOB", 3) == 0)
        return "compgen -W \"$(timeout 1 weft jobs --all 2>/dev/null | awk 'NR>1{print $1, $2}')\" "
               "-- \"$cur\"";
    if (strncmp(v->args, "HOST", 4) == 0)
        return "compgen -W \"$(timeout 1 weft workers 2>/dev/null | awk 'NR>1{print $2}')\" -- "
               "\"$cur\"";
    return strcmp(v->args, "bash") == 0 ? "echo bash" : NULL;
}

int print_completion(const struct verb *v, const struct args *a, const struct verb *verbs, int n)
{
    if (strcmp(a->pos[0], "bash") != 0)
        return usage(v, "bash is the only shell it knows");
    plain_puts(stdout, "_weft() {\n"
                       "    local cur=${COMP_WORDS[COMP_CWORD]} IFS=$' \\t\\n' words= flags=\n"
                       "    if [ \"$COMP_CWORD\" = 1 ]; then\n");
    plain_printf(stdout, "        COMPREPLY=($(compgen -W 'help");
    for (int i = 0; i < n; i++)
        plain_printf(stdout, " %s", verbs[i].name);
    plain_puts(stdout, "' -- \"$cur\"))\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < n; i++) {
        const struct verb *o = &verbs[i];
        const char *words = find_words(o);
        plain_printf(stdout, "    %s) flags='", o->name);
        for (int f = 0; f < FLAGS; f++)
            if (o->flags & FLAG_BIT(f))
                plain_printf(stdout, "%s ", f == FLAG_SET ? "-s" : flag_name((enum flag)f));
        plain_printf(stdout, "--help'; [[ $cur == -* ]] || words=$(%s) ;;\n", words ? words : ":");
    }
    plain_puts(stdout,
               "    esac\n"
               "    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\"))\n"
               "    else COMPREPLY=($words); fi\n"
               "}\n"
               "complete -o filenames -F _weft weft\n");
    return CLIENT_OK;
}
