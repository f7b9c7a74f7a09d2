// SPDX-License-Identifier: Apache-2.0
// Manifests for Kubernetes: an Indexed Job, a JobSet (v1alpha2) or a TrainJob of Kubeflow with its runtime,
// over one and the same pod. A pod is a node; index 0 leads. The job file travels in a ConfigMap, resolved
// and with paths beneath the claim; all else that pods write is the claim and an emptyDir.
//
//   job        ConfigMap · Service (headless)           · Job
//   jobset     ConfigMap · JobSet (makes the Service)   ╰─ one replicated job, "node"
//   trainjob   ConfigMap · TrainingRuntime · TrainJob   ╰─ the same
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/root.h"
#include "common/base/utf8.h"
#include "common/ckpt/source.h"
#include "coordinator/cli/render/cluster_facts.h"

enum { CONFIG_MAX = 900000 }; // bytes of a job in a ConfigMap, which has 1 MiB
#define MOUNT_JOB    "/etc/weft"
#define MOUNT_SECRET "/run/secrets/weft"
#define SINK         "/usr/share/weft/sinks/kubeflow_sink.py" // in the image of deploy/kubernetes

// ---- text --------------------------------------------------------------------------------------

// In double quotes, of ASCII alone: what a reader of YAML cannot take for anything else.
static void print_quoted(const char *text, struct buf *out)
{
    buf_putc(out, '"');
    for (size_t n; *text; text += n) {
        n = utf8_length(text, strlen(text));
        POST(n); // the verb has looked at it
        uint32_t c = utf8_decode(text, n);
        if (c == '"' || c == '\\')
            buf_printf(out, "\\%c", (int)c);
        else if (c == '\n')
            buf_puts(out, "\\n");
        else if (c >= ' ' && c <= '~')
            buf_putc(out, (char)c);
        else
            buf_printf(out, c > 0xffff ? "\\U%08x" : "\\u%04x", c);
    }
    buf_putc(out, '"');
}

// A word of a command, in which the kubelet takes $(NAME) for a variable and $$ for $.
static void print_argument(const char *text, struct buf *out)
{
    struct buf word = {0};
    for (; *text; text++) {
        if (*text == '$')
            buf_putc(&word, '$');
        buf_putc(&word, *text);
    }
    print_quoted(buf_str(&word), out);
    buf_clear(&word);
}

static void print_indented(const char *text, int columns, struct buf *out)
{
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        buf_printf(out, "%*s%.*s\n", n ? columns : 0, "", (int)n, text);
    }
}

// As lines where the text is of plain ones, so that people can read it.
static void print_block(const char *text, int columns, struct buf *out)
{
    bool plain = *text > ' ' && text[strlen(text) - 1] == '\n';
    for (const char *s = text; *s; s++)
        plain &= *s == '\n' || (*s >= ' ' && *s <= '~');
    if (!plain) {
        print_quoted(text, out);
        buf_putc(out, '\n');
        return;
    }
    buf_puts(out, "|\n");
    print_indented(text, columns, out);
}

// ---- the job as pods read it --------------------------------------------------------------------

static int place(const struct render_facts *f, struct arena *a, const char *key, const char **path,
                 struct err *e)
{
    const char *below;
    if (!*path)
        return 0;
    if (root_relative(f->o->mount, *path, &below, NULL))
        return err_set(e, ERR_INVALID,
                       "%s is %s, and pods have no files but those of the claim at %s: give a path "
                       "beneath it, or a relative one, which begins there",
                       key, *path, f->o->mount);
    while (below[0] == '.' && below[1] == '/')
        below += 2;
    *path = arena_printf(a, "%s/%s", f->o->mount, below);
    return 0;
}

static int print_job(const struct render_facts *f, struct arena *a, struct buf *out, struct err *e)
{
    struct job job = *f->job;
    struct job_data *d = &job.data;
    const struct {
        const char *key, **path;
    } paths[] = {
        {"data.train.tokens", &d->train.tokens}, {"data.train.images", &d->train.images},
        {"data.train.labels", &d->train.labels}, {"data.eval.tokens", &d->eval.tokens},
        {"data.eval.images", &d->eval.images},   {"data.eval.labels", &d->eval.labels},
        {"checkpoint.dir", &job.checkpoint.dir},
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (place(f, a, paths[i].key, paths[i].path, e))
            return ERR_INVALID;
    if (d->tokenizer && strcmp(d->tokenizer, "bytes") != 0 && strcmp(d->tokenizer, "ids") != 0 &&
        place(f, a, "data.tokenizer", &d->tokenizer, e))
        return ERR_INVALID;
    if (job.checkpoint.from) {
        const char *from;
        int64_t step;
        source_split(job.checkpoint.from, a, &from, &step);
        if (!source_is_path(from))
            return err_set(e, ERR_INVALID,
                           "checkpoint.from is %s, the name of a job, which pods do not know: give "
                           "the path of its folder",
                           from);
        if (place(f, a, "checkpoint.from", &job.checkpoint.from, e)) // with its step
            return ERR_INVALID;
    }
    if (f->o->kind == RENDER_TRAINJOB) {
        int n = job.metrics.sinks.n;
        const char **sinks = arena_array(a, const char *, n + 1);
        bool named = false;
        for (int i = 0; i < n; i++)
            named |= strcmp(((const char *const *)job.metrics.sinks.items)[i], "kubeflow") == 0;
        if (n)
            memcpy(sinks, job.metrics.sinks.items, sizeof *sinks * (size_t)n);
        sinks[n] = "kubeflow";
        job.metrics.sinks = (struct schema_list){n + !named, sinks};
    }
    job_print(&job, out);
    if (out->len > CONFIG_MAX)
        return err_set(e, ERR_INVALID, "the job's text is %zu bytes, and a ConfigMap takes %d",
                       out->len, CONFIG_MAX);
    return 0;
}

// ---- the pod -----------------------------------------------------------------------------------

// Nobody's root: what a namespace with the restricted policy asks of its pods.
static void print_security(const char *user, struct buf *out)
{
    buf_printf(out,
               "  automountServiceAccountToken: false\n"
               "  enableServiceLinks: false\n"
               "  securityContext:\n"
               "    runAsNonRoot: true\n"
               "    runAsUser: %s\n"
               "    runAsGroup: %s\n"
               "    fsGroup: %s\n"
               "    fsGroupChangePolicy: OnRootMismatch\n"
               "    seccompProfile: {type: RuntimeDefault}\n",
               user, user, user);
}

// `leader`: the name by which pods find that of index 0.
static void print_container(const struct render_facts *f, const char *name, const char *leader,
                            struct buf *out)
{
    buf_printf(out, "  - name: %s\n    image: ", name);
    print_quoted(f->o->image, out);
    buf_printf(out, "\n    command: [weft, run, --grace, %ds", f->grace_s);
    for (int i = 0; i < f->o->nflags; i++) {
        buf_printf(out, ", %s, ", f->o->flags[i].flag);
        print_argument(f->o->flags[i].value, out);
    }
    if (f->o->kind == RENDER_TRAINJOB)
        buf_puts(out, ", --sink, \"kubeflow=" SINK "\"");
    buf_printf(out,
               ", " MOUNT_JOB "/job.yaml]\n"
               "    env:\n"
               "    - {name: WORLD_SIZE, value: \"%d\"}\n"
               "    - {name: MASTER_ADDR, value: \"%s\"}\n"
               "    - {name: MASTER_PORT, value: \"%d\"}\n"
               "    - {name: HOME, value: /tmp}\n"
               "    - {name: TMPDIR, value: /tmp}\n",
               f->nodes, leader, RENDER_PORT);
    if (f->o->secret)
        buf_puts(out, "    - {name: WEFT_SECRET_FILE, value: " MOUNT_SECRET "/secret}\n");
    buf_printf(
        out,
        "    ports:\n"
        "    - {name: weft, containerPort: %d}\n"
        "    readinessProbe: # its file is there while the leader has this pod\n"
        "      exec: {command: [sh, -c, \"test -e /tmp/weft-*/*/.weft/*/worker/attached\"]}\n"
        "    resources:\n"
        "      requests: {cpu: \"%d\", memory: %" PRIu64 "Mi}\n"
        "      limits: {cpu: \"%d\"",
        RENDER_PORT, f->cores, f->memory_mib, f->cores);
    if (f->job->resources.kind == JOB_CUDA)
        buf_printf(out, ", nvidia.com/gpu: \"%d\"", f->per_node);
    buf_puts(out, "}\n"
                  "    securityContext:\n"
                  "      allowPrivilegeEscalation: false\n"
                  "      readOnlyRootFilesystem: true\n"
                  "      capabilities: {drop: [ALL]}\n");
}

static void print_volumes(const struct render_options *o, const char *name, struct buf *out)
{
    buf_puts(out, "    volumeMounts:\n"
                  "    - {name: job, mountPath: " MOUNT_JOB ", readOnly: true}\n"
                  "    - {name: claim, mountPath: ");
    print_quoted(o->mount, out);
    buf_puts(out, "}\n"
                  "    - {name: scratch, mountPath: /tmp}\n"
                  "    - {name: shm, mountPath: /dev/shm}\n");
    if (o->secret)
        buf_puts(out, "    - {name: secret, mountPath: " MOUNT_SECRET ", readOnly: true}\n");
    buf_printf(out,
               "  volumes:\n"
               "  - {name: job, configMap: {name: \"%s\"}}\n"
               "  - {name: claim, persistentVolumeClaim: {claimName: \"%s\"}}\n"
               "  - {name: scratch, emptyDir: {}}\n"
               "  - {name: shm, emptyDir: {medium: Memory}}\n",
               name, o->claim);
    if (o->secret)
        buf_printf(out, "  - {name: secret, secret: {secretName: \"%s\", defaultMode: 288}}\n",
                   o->secret); // 0440
}

static void print_pod(const struct render_facts *f, const char *container, const char *leader,
                      struct buf *out)
{
    buf_printf(out,
               "metadata:\n"
               "  labels: {app.kubernetes.io/name: weft, app.kubernetes.io/instance: \"%s\"}\n"
               "spec:\n"
               "  restartPolicy: Never\n"
               "  terminationGracePeriodSeconds: %d\n",
               f->name, f->stop_s);
    if (f->o->kind == RENDER_JOB)
        buf_printf(out, "  subdomain: \"%s\"\n", f->name);
    print_security(f->o->user ? f->o->user : RENDER_USER, out);
    if (f->nodes > 1)
        buf_printf(out,
                   "  affinity:\n"
                   "    podAffinity:\n"
                   "      preferredDuringSchedulingIgnoredDuringExecution:\n"
                   "      - weight: 100\n"
                   "        podAffinityTerm:\n"
                   "          topologyKey: topology.kubernetes.io/zone\n"
                   "          labelSelector: {matchLabels: {app.kubernetes.io/instance: \"%s\"}}\n",
                   f->name);
    buf_puts(out, "  containers:\n");
    print_container(f, container, leader, out);
    print_volumes(f->o, f->name, out);
}

// ---- the jobs ----------------------------------------------------------------------------------

// What ends it, what counts and what does not. The first rule that matches acts.
static void print_job_spec(const struct render_facts *f, const char *container, const char *leader,
                           struct buf *out)
{
    struct buf pod = {0};
    print_pod(f, container, leader, &pod);
    buf_printf(out,
               "completionMode: Indexed\n"
               "completions: %d\n"
               "parallelism: %d\n"
               "backoffLimit: %" PRId64 "\n"
               "podReplacementPolicy: Failed\n"
               "podFailurePolicy:\n"
               "  rules:\n"
               "  - action: FailJob\n"
               "    onExitCodes: {containerName: %s, operator: In, values: [2, 65, 66, 76, 78]}\n"
               "  - action: Ignore\n"
               "    onExitCodes: {containerName: %s, operator: In, values: [75]}\n"
               "  - action: Ignore\n"
               "    onPodConditions: [{type: DisruptionTarget, status: \"True\"}]\n"
               "template:\n",
               f->nodes, f->nodes, f->job->restart.budget, container, container);
    print_indented(buf_str(&pod), 2, out);
    buf_clear(&pod);
}

static void print_metadata(const struct render_facts *f, bool queued, struct buf *out)
{
    buf_printf(out,
               "metadata:\n"
               "  name: \"%s\"\n"
               "  labels:\n"
               "    app.kubernetes.io/name: weft\n"
               "    app.kubernetes.io/instance: \"%s\"\n",
               f->name, f->name);
    if (queued && f->o->queue)
        buf_printf(out, "    kueue.x-k8s.io/queue-name: \"%s\"\n", f->o->queue);
}

static const char *suspended(const struct render_facts *f)
{
    return f->o->queue ? "  suspend: true\n" : "";
}

static void print_indexed_job(const struct render_facts *f, struct buf *out)
{
    struct buf spec = {0};
    char leader[2 * RENDER_NAME_MAX + 4];
    buf_puts(out, "---\napiVersion: v1\nkind: Service\n");
    print_metadata(f, false, out);
    buf_printf(out,
               "spec:\n"
               "  clusterIP: None\n"
               "  publishNotReadyAddresses: true\n"
               "  selector: {app.kubernetes.io/instance: \"%s\"}\n"
               "  ports:\n"
               "  - {name: weft, port: %d}\n"
               "---\napiVersion: batch/v1\nkind: Job\n",
               f->name, RENDER_PORT);
    print_metadata(f, true, out);
    buf_printf(out, "spec:\n%s", suspended(f));
    snprintf(leader, sizeof leader, "%s-0.%s", f->name, f->name);
    print_job_spec(f, "weft", leader, &spec);
    print_indented(buf_str(&spec), 2, out);
    buf_clear(&spec);
}

// One replicated job, whose failure is the set's: its own policy has counted already.
static void print_set_spec(const struct render_facts *f, const char *container, const char *labels,
                           struct buf *out)
{
    struct buf spec = {0};
    char leader[2 * RENDER_NAME_MAX + 16];
    snprintf(leader, sizeof leader, "%s-node-0-0.%s", f->name, f->name);
    print_job_spec(f, container, leader, &spec);
    buf_printf(out,
               "network: {enableDNSHostnames: true, publishNotReadyAddresses: true}\n"
               "failurePolicy: {maxRestarts: 0}\n"
               "replicatedJobs:\n"
               "- name: node\n"
               "  replicas: 1\n"
               "  template:\n"
               "%s"
               "    spec:\n",
               labels);
    print_indented(buf_str(&spec), 6, out);
    buf_clear(&spec);
}

static void print_job_set(const struct render_facts *f, struct buf *out)
{
    struct buf spec = {0};
    buf_puts(out, "---\napiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\n");
    print_metadata(f, true, out);
    buf_printf(out, "spec:\n%s", suspended(f));
    print_set_spec(f, "weft", "", &spec);
    print_indented(buf_str(&spec), 2, out);
    buf_clear(&spec);
}

// Kubeflow takes the container called node, in the job that is its trainer step, for the trainer.
static void print_train_job(const struct render_facts *f, struct buf *out)
{
    struct buf spec = {0};
    buf_puts(out, "---\napiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\n");
    print_metadata(f, false, out);
    buf_printf(out,
               "    trainer.kubeflow.org/framework: weft\n"
               "spec:\n"
               "  mlPolicy: {numNodes: %d}\n"
               "  template:\n"
               "    spec:\n",
               f->nodes);
    print_set_spec(f, "node",
                   "    metadata:\n"
                   "      labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}\n",
                   &spec);
    print_indented(buf_str(&spec), 6, out);
    buf_clear(&spec);
    buf_puts(out, "---\napiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\n");
    print_metadata(f, true, out);
    buf_printf(
        out,
        "spec:\n%s"
        "  runtimeRef: {apiGroup: trainer.kubeflow.org, kind: TrainingRuntime, name: \"%s\"}\n"
        "  trainer: {numNodes: %d}\n",
        suspended(f), f->name, f->nodes);
}

int render_kubernetes(const struct render_facts *f, struct arena *a, struct buf *out, struct err *e)
{
    struct buf job = {0};
    int rc = print_job(f, a, &job, e);
    if (!rc) {
        render_head(f, "kubectl apply -f THIS-FILE", out);
        buf_puts(out, "apiVersion: v1\nkind: ConfigMap\n");
        print_metadata(f, false, out);
        buf_puts(out, "data:\n  job.yaml: ");
        print_block(buf_str(&job), 4, out);
        if (f->o->kind == RENDER_JOB)
            print_indexed_job(f, out);
        else if (f->o->kind == RENDER_JOBSET)
            print_job_set(f, out);
        else
            print_train_job(f, out);
    }
    buf_clear(&job);
    return rc;
}
