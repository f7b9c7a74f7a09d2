// SPDX-License-Identifier: Apache-2.0
// weft, the client: the table of its verbs. Help, usage and completion are made from the rows.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/plain.h"
#include "common/base/suggest.h"
#include "coordinator/cli/verbs.h"
#include "coordinator/serve/planner_process.h"
#include "proto/weft.pb-c.h"

static int run_completion(const struct verb *v, const struct args *a);

#define F(name) FLAG_BIT(FLAG_##name)
#define REMOTE  (F(COORDINATOR) | F(TLS) | F(JSON))
#define A_JOB   "JOB is an id, a unique start of one, or a name: then the newest job of that name."
#define A_HOST  "HOST is a worker's id or name."

static const struct verb verbs[] = {
    {"run", "JOB.yaml", "train here: starts what it needs, and continues where it was",
     F(SET) | F(NEW) | F(FROM_STEP) | F(SINK) | F(NOTIFY) | F(GRACE) | F(JSON), 1, 1, verb_run,
     "State is in .weft/NAME beside the job file. Ctrl-C saves and stops, Ctrl-Z stops for a "
     "while;\n"
     "the same command continues, after a crash too. A second Ctrl-C stops at once.\n"
     "Once anything is saved it continues with other settings where `weft schema` says `same` or "
     "`may\n"
     "change`; another model, seed or data is refused unless --new. `weft why NAME` prints its "
     "history.\n"
     "Under srun, or in the pods of an Indexed Job, one runs on each node and that of index 0 "
     "leads;\n"
     "WEFT_WAIT=10m waits longer for the others (5m), WEFT_SECRET_FILE names a file of a secret "
     "that\n"
     "all have. There --new and --from-step are refused, since every start repeats the command: to "
     "start\n"
     "over move the job's checkpoint folder away. Exit 75: start it again, it continues; 78: a "
     "person\n"
     "must look, as where the job is held or was cancelled, which the next start resumes.",
     0},
    {"up", "JOB.yaml", "train on bare machines: `weft run` on each host, started by ssh",
     F(HOSTS) | F(SSH) | F(WEFT) | F(SET) | F(SINK) | F(NOTIFY) | F(GRACE) | F(JSON), 1, 1, verb_up,
     "Every host needs this version of weft, a key by which ssh asks no question, and this folder, "
     "the\n"
     "job's data and checkpoint.dir under the same paths. Nothing is installed, and nothing begins "
     "before\n"
     "all hosts are there. Ctrl-C saves and stops, as does the end of `weft up` or of a "
     "connection; the\n"
     "same command continues it. Each host's lines begin with its name. Exit codes are those of "
     "`weft run`\n"
     "on several hosts: 75: start it again, it continues; 78: a person must look.",
     0},
    {"submit", "JOB.yaml", "give a job to the coordinator",
     REMOTE | F(SET) | F(REQUEST) | F(CONTINUE) | F(FROM_STEP), 1, 1, verb_submit,
     "A submit that was killed may be repeated: it leads to one job. Its request id is kept until "
     "the\n"
     "answer was printed, in $XDG_STATE_HOME/weft/submit (or ~/.local/state/weft/submit), for 23 "
     "h.\n"
     "With --request the id is yours. --continue trains a job on with other settings, where `weft "
     "schema`\n"
     "says `same` or `may change`; with another model, seed or data it is refused.",
     0},
    {"plan", "JOB.yaml", "what the job needs: memory, communication, time; runs nothing",
     F(SET) | F(FULL) | F(DEVICE) | F(DEVICE_FILE) | F(SHOW) | F(GENERATE) | F(MESH) | F(BATCH) |
         F(CONTEXT) | F(CHUNK) | F(JSON),
     1, 1, verb_plan,
     "A finding of severity error, or a device that is too small, is exit 2; a fix is text for "
     "-s.\n"
     "--device NAME:memory=80GB,libraries=2GB,flops=312e12,bandwidth=2TB,link=25GB describes a "
     "model\n"
     "of your own, or changes what is known of one: flops, bytes of its memory and bytes that it "
     "sends\n"
     "a second. A device's memory holds\n"
     "  params      its part of the parameters\n"
     "  grads       of their gradients, summed over the microbatches\n"
     "  optimizer   of the optimiser's state: two moments under adamw\n"
     "  copies      of the parameters in bf16, where ops read such\n"
     "  stash       what a forward makes and a backward reads, at its most\n"
     "  transient   what is made and read within a forward or a backward, at its most\n"
     "  workspace   scratch memory of ops\n"
     "  libraries   CUDA's context and libraries, or the program; an estimate\n"
     "  NCCL        its communicators, where GPUs may carry tensors by it; as a run here measured, "
     "or "
     "an estimate\n"
     "and the host beside it staging: two batches, and a device's share of a checkpoint. The time "
     "of a\n"
     "step is an estimate by the device's rates, of which products reach 63 %, attention 24 %, "
     "memory 90 %;\n"
     "the less of communication is hidden behind compute, the longer. MFU counts 6N + 6LCT FLOPs a "
     "token\n"
     "(--full). The bubble is the share of time in which a pipeline's stages wait for each other.\n"
     "--generate plans what `weft generate` does with the job's checkpoints, on --mesh (default: "
     "one\n"
     "device) and with so many texts (--batch): what their keys take, how many texts fit, what a "
     "step\n"
     "reads and sends, and tokens a second at the rate of the device's memory.",
     0},
    {"render", "JOB.yaml", "the job as a cluster's scheduler takes it; asks nobody",
     F(FOR) | F(SET) | F(PER_NODE) | F(WRITE_RATE) | F(DEVICE) | F(DEVICE_FILE) | F(IMAGE) |
         F(CLAIM) | F(QUEUE) | F(SECRET) | F(USER) | F(SINK) | F(NOTIFY) | F(JSON),
     1, 1, verb_render,
     "A script for sbatch, manifests for kubectl (an Indexed Job, a JobSet, a TrainJob of "
     "Kubeflow) "
     "or a\n"
     "unit of systemd, all derived from the plan: nodes, memory, cores, GPUs, the time to save, "
     "what "
     "ends\n"
     "the job and what starts it again. Its head says how each came about. A job that fits no "
     "--device is\n"
     "refused. Relative paths of a job for pods begin at the claim's mount. --sink and --notify "
     "say, "
     "as\n"
     "to `weft run`, what names of the job are; a URL only as NAME=@/PATH, of a file where the job "
     "runs.",
     0},
    {"sbatch", "JOB.yaml", "give a job to Slurm; sbatch's own options stand behind --",
     F(SET) | F(PER_NODE) | F(WRITE_RATE) | F(DEVICE) | F(DEVICE_FILE) | F(QUEUE) | F(SINK) |
         F(NOTIFY) | F(JSON),
     1, ARGS_MAX, verb_sbatch,
     "As in `weft sbatch job.yaml --per-node 8 -- --time=4:00:00 --account=me`: submits what `weft "
     "render\n"
     "--for slurm` prints, as you. A job that does not fit, or whose data is not there, is refused "
     "before it\n"
     "waits. At a time limit, when it is preempted and when a node is lost it is queued again and "
     "continues.\n"
     "`weft why NAME` in the job file's folder says what it waits for and what it did.",
     0},
    {"schema", "", "every key of a job file", F(MARKDOWN) | F(JSON), 0, 0, verb_schema, NULL, 0},
    {"model", "list|show NAME|check FILE|new NAME",
     "models that come with weft, and what one of your own is", F(SET) | F(JSON), 1, 2, verb_model,
     "list: the programs that come with weft; show: the text of one. check FILE, or one of these\n"
     "names: the dimensions of every value with its line, parameters, FLOPs, and what each "
     "default\n"
     "rule cuts; -s SIZE=VALUE gives a size. new: writes NAME.model, a small decoder with\n"
     "comments that trains as it is. common/language/LANGUAGE.md says what may stand in one.",
     0},
    {"jobs", "", "the jobs that wait or run",
     REMOTE | F(ALL) | F(METRICS) | F(STATE) | F(SINCE) | F(TAG) | F(SORT), 0, 0, verb_jobs,
     "With --state, --since or --tag ended jobs count too. A job's tags are its key `tags`, as in\n"
     "`weft submit job.yaml -s tags=sweep,lr`. On a terminal columns that do not fit are left out.",
     0},
    {"status", "JOB", "one job now", REMOTE, 1, 1, verb_status, A_JOB, 0},
    {"watch", "JOB", "its progress to the end; exits as the job does", REMOTE, 1, 1, verb_watch,
     A_JOB, 0},
    {"logs", "JOB", "what its ranks wrote, in all attempts, by time",
     REMOTE | F(FOLLOW) | F(RANK) | F(LINES) | F(ATTEMPT), 1, 1, verb_logs, A_JOB, 0},
    {"metrics", "JOB", "what it measured: losses, rates and norms, a row a step, over all attempts",
     REMOTE | F(CSV) | F(FOLLOW) | F(LINES), 1, 1, verb_metrics,
     "The last rows as a table; with --json or --csv all of them, with every number. A step has "
     "one "
     "row,\n"
     "of the newest attempt that ran it. coordinator/cli/README.md says what the members mean.",
     0},
    {"plot", "JOB…", "curves of what jobs measured, over one another",
     REMOTE | F(KEYS) | F(SMOOTH) | F(LOG) | F(SVG), 1, ARGS_MAX, verb_plot,
     "KEY is a member of the rows that `weft metrics JOB --json` prints, or of what one of them "
     "holds, as\n"
     "detail.groups.embed.weight_norm. With --json the points.",
     0},
    {"why", "JOB", "its history: every wait, failure and restart, and where the time went",
     REMOTE | F(FULL), 1, 1, verb_why, A_JOB, 0},
    {"cancel", "JOB…", "save it and end it", REMOTE | F(WHY), 1, ARGS_MAX, verb_act, A_JOB,
     WEFT__V1__VERB__CANCEL},
    {"hold", "JOB…", "save it and keep it from running", REMOTE | F(WHY), 1, ARGS_MAX, verb_act,
     A_JOB, WEFT__V1__VERB__HOLD},
    {"delete", "JOB…", "forget an ended job and remove its checkpoints", REMOTE | F(WHY) | F(YES),
     1, ARGS_MAX, verb_delete, A_JOB, WEFT__V1__VERB__DELETE},
    {"preempt", "JOB…", "save it and put it back into the queue", REMOTE | F(WHY), 1, ARGS_MAX,
     verb_act, A_JOB, WEFT__V1__VERB__PREEMPT},
    {"resume", "JOB…", "queue a held, failed or cancelled job again",
     REMOTE | F(WHY) | F(FROM_STEP), 1, ARGS_MAX, verb_act, A_JOB, WEFT__V1__VERB__RESUME},
    {"adopt", "JOB…", "take a job that was found again after a lost database", REMOTE | F(WHY), 1,
     ARGS_MAX, verb_act, A_JOB, WEFT__V1__VERB__ADOPT},
    {"workers", "", "the hosts and their devices", REMOTE, 0, 0, verb_workers, NULL, 0},
    {"cordon", "HOST…", "place nothing new on it", REMOTE | F(WHY), 1, ARGS_MAX, verb_act, A_HOST,
     WEFT__V1__VERB__CORDON},
    {"uncordon", "HOST…", "take it into use again", REMOTE | F(WHY), 1, ARGS_MAX, verb_act, A_HOST,
     WEFT__V1__VERB__UNCORDON},
    {"drain", "HOST…", "save and move what runs there; place nothing new", REMOTE | F(WHY), 1,
     ARGS_MAX, verb_act, A_HOST, WEFT__V1__VERB__DRAIN},
    {"checkpoints", "JOB", "the checkpoints the coordinator knows of", REMOTE, 1, 1,
     verb_checkpoints, A_JOB, 0},
    {"ckpt", "ls|verify DIR, diff A B",
     "list checkpoints, read and check every byte, or compare two", F(JSON), 1, 3, verb_ckpt,
     "diff: tensor by tensor, without padding; exit 1 where they differ. A and B are checkpoints "
     "as for "
     "export.",
     0},
    {"export", "CKPT DIR", "a checkpoint as transformers or numpy open it",
     F(TO) | F(DTYPE) | F(SHARD_SIZE) | F(PROGRAM) | F(SET) | F(JSON), 2, 2, verb_export,
     "CKPT is a step's folder, or a job's (@STEP: of that step, else the newest), or the name of a "
     "job that was run here. DIR is made: "
     "config.json "
     "and\n"
     "safetensors files as the section `export hf` of the model's program says, and what a "
     "tokenizer's\n"
     "files beside the checkpoint are. -s eos_token_id=2 (bos_, eos_, pad_) sets a token id in "
     "config.json;\n"
     "else they are those of generation_config.json beside the checkpoint.",
     0},
    {"import", "DIR", "a checkpoint of step 0 from what others wrote",
     F(PROGRAM) | F(OUT) | F(JSON), 1, 1, verb_import,
     "DIR has config.json and model.safetensors, or model.safetensors.index.json and its files. "
     "Every\n"
     "tensor and every field must be known, or nothing is made. --out becomes a job's folder of\n"
     "checkpoints, without state of an optimiser, with a job.yaml to start from. Without --program "
     "it is\n"
     "the first of weft's own that takes config.json.",
     0},
    {"data", "inspect PATH… | prepare IN… --out DIR | train-tokenizer IN… --vocab N --out FILE",
     "what data files hold; text to tokens; a tokenizer learned from text",
     F(JSON) | F(VOCAB) | F(IDS) | F(OUT) | F(TOKENIZER) | F(END) | F(FORMAT) | F(FIELD) |
         F(VAL_FRACTION) | F(SHARD_TOKENS) | F(THREADS),
     1, ARGS_MAX, verb_data,
     "prepare takes texts, a document each, and JSONL, a document a line, packed with gzip or zstd "
     "or "
     "not;\n"
     "patterns may be in quotes ('data/*.jsonl.zst'), and - is standard input. It writes files of "
     "tokens\n"
     "and their index; killed or interrupted, the same command continues it. train-tokenizer "
     "learns a\n"
     "byte-level BPE from such texts; prepare takes its file as --tokenizer.",
     0},
    {"eval", "CKPT", "loss, accuracy and perplexity of a checkpoint's model on a data set, here",
     F(DATA) | F(LABELS) | F(MESH) | F(BATCH) | F(SET) | F(JSON), 1, 1, verb_eval,
     "CKPT is a step's folder, or a job's, or the name of a `weft run` here: then the newest, or "
     "with\n"
     "@STEP that one. The whole set is scored; the loss is the mean of -ln of the share that the "
     "model\n"
     "gave each token, or each label, and does not depend on batch and mesh. Bits per byte are "
     "known\n"
     "of tokens that are bytes, and of those that `weft data prepare` made.",
     0},
    {"generate", "CKPT", "continue texts with a checkpoint's model, here",
     F(PROMPT) | F(PROMPTS) | F(TOKENS) | F(SAMPLES) | F(TEMPERATURE) | F(TOP_K) | F(TOP_P) |
         F(MIN_P) | F(PENALTY) | F(SEED) | F(STOP) | F(STOP_IDS) | F(CONTEXT) | F(SLIDE) |
         F(CHUNK) | F(NO_CACHE) | F(TOKENIZER) | F(MESH) | F(BATCH) | F(SET) | F(JSON),
     1, 1, verb_generate,
     "CKPT is a step's folder, or a job's, or the name of a `weft run` here: then the newest, or "
     "with\n"
     "@STEP that one. Without a prompt standard input is one; on a terminal each line that is "
     "entered\n"
     "continues the text while the context has room (--slide: always), and an empty line or "
     "Ctrl-D\n"
     "ends. Text is that of the tokenizer beside "
     "the\n"
     "checkpoints, else bytes or token ids as the training had it. A text is the same whatever is\n"
     "generated beside it and on any mesh: its draws hang on the seed, its place among the texts "
     "and\n"
     "the token's place in it.",
     0},
    {"doctor", "", "is this host fit to work: libraries, devices, limits, storage, coordinator",
     REMOTE | F(DIR), 0, 0, verb_doctor, NULL, 0},
    {"completion", "bash|zsh", "the shell's completion: eval \"$(weft completion bash)\"", 0, 1, 1,
     run_completion, NULL, 0},
};
enum { VERBS = sizeof verbs / sizeof *verbs, NAME_COLUMNS = 12, ARGS_COLUMNS = 14 };

// The shell completes what the table holds.
static int run_completion(const struct verb *v, const struct args *a)
{
    return print_completion(v, a, verbs, VERBS);
}

static const struct verb *find_verb(const char *name)
{
    for (int i = 0; i < VERBS; i++)
        if (strcmp(name, verbs[i].name) == 0)
            return &verbs[i];
    return NULL;
}

static const char exits[] =
    "Exit: 0 ok, 1 the job failed, was cancelled or is held, or a check\nfound something, 2 usage "
    "or "
    "bad job file, 3 the coordinator is not reached, 4 it refused or\ndoes not know the job, 130 "
    "interrupted\n";

static void print_help(FILE *to)
{
    plain_printf(to, "weft %s: distributed training as a service\n\n", WEFT_VERSION);
    for (int i = 0; i < VERBS; i++) {
        int space = ARGS_COLUMNS - text_columns(verbs[i].args);
        plain_printf(to, "  weft %-*s%s", NAME_COLUMNS, verbs[i].name, verbs[i].args);
        if (space < 0)
            plain_printf(to, "\n  %*s", (int)sizeof "weft" + NAME_COLUMNS + ARGS_COLUMNS, "");
        plain_printf(to, "%*s %s\n", space < 0 ? 0 : space, "", verbs[i].doc);
    }
    plain_printf(to, "\nweft help VERB says more. %s", exits);
}

static void print_verb_help(const struct verb *v)
{
    plain_printf(stdout, "weft %s: %s\n", v->name, v->doc);
    print_usage(v, stdout);
    for (int i = 0; i < FLAGS; i++) {
        const struct flag_row *r = &flag_rows[i];
        if (v->flags & FLAG_BIT(i))
            plain_printf(stdout, "  %2s%c %-14s %-10s %s\n", r->brief, *r->brief ? ',' : ' ',
                         r->name, r->value, r->doc);
    }
    if (v->more)
        plain_printf(stdout, "%s\n", v->more);
}

static int refuse_verb(const char *word)
{
    const char *names[VERBS], *near;
    if (*word == '-') {
        plain_error("weft: '%s' stands where the verb should: its flags follow it", word);
        plain_error("  to do: `weft help` lists the verbs, `weft help VERB` its flags");
        return CLIENT_USAGE;
    }
    for (int i = 0; i < VERBS; i++)
        names[i] = verbs[i].name;
    near = suggest(word, names, VERBS);
    plain_error("weft: no verb '%s'%s%s%s", word, near ? "; did you mean " : "", near ? near : "",
                near ? "?" : "");
    plain_error("  to do: `weft help` lists the verbs");
    return CLIENT_USAGE;
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static bool asks_help(const char *word)
{
    return is_help(word) || strcmp(word, "help") == 0;
}

static int run_verb(const struct verb *v, int argc, char **argv)
{
    struct args a;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i])) {
            print_verb_help(v);
            return CLIENT_OK;
        }
    int rc = flags_parse(&a, v, argc, argv);
    if (!rc)
        rc = v->run(v, &a);
    bool lost = ferror(stdout) != 0;
    if ((fflush(stdout) == 0 && !lost) || rc == CLIENT_INTERRUPTED)
        return rc;
    plain_error("weft: cannot write: %s",
                lost ? "standard output took not all of it" : strerror(errno));
    return CLIENT_FAILED;
}

static void end_by_signal(int signal)
{
    enum { ENDED_BY = 128 };
    _exit(ENDED_BY + signal);
}

// Process 1 of a container gets no signal that it has not asked for. What ends any other process must end
// it too, until a verb reads its signals itself.
static void ask_for_signals(void)
{
    const struct sigaction end = {.sa_handler = end_by_signal};
    if (getpid() != 1)
        return;
    (void)sigaction(SIGTERM, &end, NULL);
    (void)sigaction(SIGINT, &end, NULL);
}

int main(int argc, char **argv)
{
    ask_for_signals();
    const char *word = argc < 2 ? NULL : argv[1];
    if (!word) {
        print_help(stderr);
        return CLIENT_USAGE;
    }
    if (asks_help(word)) {
        bool man = argc > 2 && strcmp(argv[argc - 1], "--man") == 0;
        const char *of = argc > 2 + man && !asks_help(argv[2]) ? argv[2] : NULL;
        const struct verb *v = of ? find_verb(of) : NULL;
        if (of && !v)
            return refuse_verb(of);
        if (man)
            v ? print_verb_manual(v) : print_manual(verbs, VERBS, exits);
        else
            v ? print_verb_help(v) : print_help(stdout);
        return CLIENT_OK;
    }
    if (argc == 3 && strcmp(word, "--planner") == 0) // by the coordinator of `weft run` alone
        return planner_process_main(strtoll(argv[2], NULL, 10));
    if (argc == 2 && strcmp(word, "--member") == 0) // by `weft up` alone
        return up_member(find_verb("up"));
    if (strcmp(word, "--version") == 0) {
        plain_printf(stdout, "weft %s\n", WEFT_VERSION);
        return CLIENT_OK;
    }
    const struct verb *v = find_verb(word);
    return v ? run_verb(v, argc - 2, argv + 2) : refuse_verb(word);
}
