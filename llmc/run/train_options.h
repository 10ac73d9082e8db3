// The options of the trainers: one table, expanded into the struct TrainOptions, the command line, --help, and the
// record that logs and training states keep of the options. The short aliases are llm.c's flags, with their meaning.
//
// To add an option, add a row. options->field then holds its value.
#ifndef LLMC_TRAIN_OPTIONS_H
#define LLMC_TRAIN_OPTIONS_H

#include "llmc/base/launcher.h"
#include "llmc/model/params.h"
#include "llmc/run/args.h"
#include "llmc/run/foreign_options.h"
#include "llmc/run/schedulers.h"

// Tells whether another value of an option gives other weights after an equal number of steps.
//   FREE    no
//   LOCAL   no, and it belongs to one start on one machine: --resume does not take it from the saved run
//   SHAPES  yes: a resumed run compares it
//   ROUNDS  it rounds otherwise: a resumed run only reports a change
enum { FREE, LOCAL, SHAPES, ROUNDS };

#define TRAIN_MAX_TOTAL_BATCH 2147483647 // tokens
#define TRAIN_MAX_BATCH 65535            // sequences: what cuDNN takes
#define MANY 1000000000                  // steps, sequences: more than any run has
#define TRAIN_CPU_ONLY "is an option of the CPU trainer; this one is built for bf16, or by make PRECISION=FP32 for fp32"
#define TRAIN_GPU_ONLY "is an option of the GPU trainer (whose name ends in cu; without a GPU: in emu)"

// The option table: the fields of TrainOptions. PICK(cpu, gpu) chooses between the trainers: a laptop needs other
// values than a GPU.
//  field, long name, aliases, type, default, minimum, maximum, value or choices, shapes the run, needs (ArgSpec; GPU
//  and CPU: the trainer that has it), help
#define TRAIN_OPTIONS(X, PICK)                                                                                         \
    X(train_data, "train-data", "i", TEXT, "", 1, ARGS_MAX_PATH, "FILES", SHAPES, "",                                  \
      "a text file, or token shards (.bin); a pattern in quotes names several; -: a text from standard input")         \
    X(val_data, "val-data", "j", TEXT, "", 1, ARGS_MAX_PATH, "FILES", FREE, "", "validation data; else a text's end")  \
    X(val_fraction, "val-fraction", "", REAL, "0.1", 0, 0.9, "F", SHAPES, "!val-data",                                 \
      "of a text: its end, for validation; 0: none")                                                                   \
    X(tokenizer, "tokenizer", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", SHAPES, "",                                      \
      "byte, or a file such as gpt2_tokenizer.bin; without it, the one beside the model or the shards; of a text, "    \
      "byte")                                                                                                          \
    X(shuffle, "shuffle", "", FLAG, "0", 0, 1, "", SHAPES, "", "visit shards and their windows in a random order")     \
    X(overfit, "overfit", "a", FLAG, "0", 0, 1, "", SHAPES, "", "train on the first batch again and again")            \
    X(init, "init", "e", TEXT, PICK(MODEL_CPU_SIZE, MODEL_GPU_SIZE), 1, ARGS_MAX_PATH, "MODEL", SHAPES, "",            \
      "a new model's size, or a model's file; " MODEL_SIZE_EXAMPLES "; or a run's folder")                             \
    X(layers, "layers", "", INT, "0", 0, 1000, "L", SHAPES, "", "layers of a new model; 0: as --init says")            \
    X(heads, "heads", "", INT, "0", 0, 1024, "NH", SHAPES, "", "its attention heads; 0: as --init says")               \
    X(channels, "channels", "", INT, "0", 0, 65536, "C", SHAPES, "", "its channels; 0: as --init says")                \
    X(kv_heads, "kv-heads", "", INT, "0", 0, 1024, "KV", SHAPES, "", "its heads of keys and values, for train_llama3") \
    X(context, "context", "", INT, "0", 0, 1048576, "T", SHAPES, "", "positions it knows; 0: --seq-len")               \
    X(vocab, "vocab", "", INT, "0", 0, 1048576, "V", SHAPES, "", "its vocabulary; 0: the tokenizer's")                 \
    X(batch_size, "batch-size", "b", INT, "4", 1, TRAIN_MAX_BATCH, "B", FREE, "", "sequences in a micro-batch")        \
    X(seq_len, "seq-len", "t", INT, "0", 0, 1048576, "T", SHAPES, "",                                                  \
      "tokens in a sequence; 0: " PICK("64", "1024") ", or the model's context if that is less")                       \
    X(total_batch, "total-batch", "d", INT, "0", 0, TRAIN_MAX_TOTAL_BATCH, "TOKENS", SHAPES, "",                       \
      "tokens in a step; a multiple of B x T, to which micro-batches add up; 0: one micro-batch")                      \
    X(steps, "steps", "x", INT, "-1", -1, MANY, "N", SHAPES, "", "steps in all; -1: an epoch; 0: evaluate and sample") \
    X(lr, "lr", "l", REAL, "3e-4", 0, 100, "RATE", SHAPES, "", "the highest learning rate")                            \
    X(schedule, "schedule", "k", CHOICE, "cosine", 0, 0, "cosine|linear|constant|wsd", SHAPES, "",                     \
      "how the rate falls after the warm-up; wsd: only over the last fifth of the steps")                              \
    X(warmup, "warmup", "u", INT, "-1", -1, MANY, "N", SHAPES, "",                                                     \
      "steps over which the rate rises; -1: for a new model a tenth of all, at most 100, else 0")                      \
    X(final_lr_frac, "final-lr-frac", "q", REAL, "0.1", 0, 1, "F", SHAPES, "!schedule=constant",                       \
      "the last rate as a fraction of the highest; 1: it does not fall")                                               \
    X(weight_decay, "weight-decay", "c", REAL, "0", 0, 100, "W", SHAPES, "", "decay of matrices and embeddings")       \
    X(adam_eps, "adam-eps", "", REAL, "1e-8", 1e-20, 1, "F", SHAPES, "", "AdamW's epsilon")                            \
    X(optimizer, "optimizer", "", CHOICE, "adamw", 0, 0, "adamw|muon", SHAPES, "",                                     \
      "updates the matrices of the blocks; AdamW updates the rest")                                                    \
    X(muon_lr, "muon-lr", "", REAL, "0", 0, 100, "RATE", SHAPES, "optimizer=muon",                                     \
      "the highest rate of Muon, on the schedule of --lr; 0: 0.02, or --lr with --muon-scale rms")                     \
    X(muon_warmup, "muon-warmup", "", INT, "300", 0, MANY, "N", SHAPES, "optimizer=muon",                              \
      "steps over which Muon's momentum rises to 0.95")                                                                \
    X(muon_scale, "muon-scale", "", CHOICE, "original", 0, 0, "original|rms", SHAPES, "optimizer=muon",                \
      "the size of Muon's updates; original: as published first, rms: as large as AdamW's")                            \
    X(grad_clip, "grad-clip", "", REAL, "1", 0, 1e9, "NORM", SHAPES, "", "shorten gradients to this norm; 0: never")   \
    X(skip_loss_z, "skip-loss-z", "sl", REAL, "0", 0, 1e9, "Z", SHAPES, "",                                            \
      "skip an update whose loss is more than Z standard deviations above the last 128; 0: never")                     \
    X(skip_grad_z, "skip-grad-z", "sg", REAL, "0", 0, 1e9, "Z", SHAPES, "", "as --skip-loss-z, of gradient norms")     \
    X(val_every, "val-every", "v", INT, PICK("100", "250"), 0, MANY, "N", FREE, "",                                    \
      "validate every N steps; 0: never; the model of the lowest loss is kept")                                        \
    X(val_sequences, "val-sequences", "", INT, "80", 0, MANY, "N", FREE, "", "sequences in a validation; 0: all")      \
    X(val_batches, "val-batches", "m", INT, "-1", -1, MANY, "N", FREE, "", "the first N batches, as in llm.c; 0: all") \
    X(patience, "patience", "", INT, "0", 0, MANY, "N", FREE, "val-every steps",                                       \
      "end after N validations without a lower loss; 0: never")                                                        \
    X(hellaswag, "hellaswag", "h", FLAG, "0", 0, 1, "0|1", FREE, "val-every|steps=0", "validate on HellaSwag as well") \
    X(hellaswag_data, "hellaswag-data", "", TEXT, "dev/data/hellaswag/hellaswag_val.bin", 1, ARGS_MAX_PATH, "FILE",    \
      FREE, "hellaswag", "its questions; python3 dev/data/hellaswag.py fetches them")                                  \
    X(mmlu, "mmlu", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", FREE, "val-every|steps=0", "validate on MMLU's questions") \
    X(eval_examples, "eval-examples", "", INT, "0", 0, 65536, "N", FREE, "hellaswag|mmlu",                             \
      "use the first N questions of each; 0: all")                                                                     \
    X(sample_every, "sample-every", "s", INT, PICK("100", "20"), 0, MANY, "N", FREE, "",                               \
      "write a sample every N steps; 0: never")                                                                        \
    X(sample_tokens, "sample-tokens", "g", INT, "64", 1, 1048576, "N", FREE, "", "tokens of a sample")                 \
    X(num_samples, "num-samples", "", INT, "1", 1, 65536, "N", FREE, "sample-every", "samples at a time")              \
    X(prompt, "prompt", "", TEXT, "", 0, 65536, "TEXT", LOCAL, "sample-every !prompt-file", "how a sample begins")     \
    X(prompt_file, "prompt-file", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", LOCAL, "sample-every",                       \
      "the file that holds the prompt, without its last newline; -: standard input")                                   \
    X(temperature, "temperature", "", REAL, "1", 0, 100, "F", FREE, "", "below 1: likelier tokens; 0: the likeliest")  \
    X(top_p, "top-p", "", REAL, "1", 0, 1, "P", FREE, "", "sample the likeliest tokens of probability P; 1: all")      \
    X(out_dir, "out-dir", "o", TEXT, "", 1, ARGS_MAX_PATH, "DIR", LOCAL, "",                                           \
      "the folder for checkpoints and logs; with --steps 0, for evaluation.jsonl")                                     \
    X(json, "json", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", LOCAL, "steps=0",                                          \
      "append the results of the evaluation as a line of JSON; -: to standard output")                                 \
    X(log_every, "log-every", "", INT, "1", 1, MANY, "N", FREE, "steps", "show every N-th step; logs have all")        \
    X(checkpoint_every, "checkpoint-every", "n", INT, "0", 0, MANY, "N", FREE, "out-dir steps",                        \
      "save every N steps; 0: only at the end")                                                                        \
    X(keep, "keep", "nk", INT, "0", 0, MANY, "N", FREE, "out-dir steps", "keep only the last N checkpoints; 0: all")   \
    X(keep_major, "keep-major", "nm", INT, "0", 0, MANY, "N", FREE, "keep",                                            \
      "but never remove those of every N-th step; 0: no exception")                                                    \
    X(resume, "resume", "y", FLAG, "0", 0, 1, "", LOCAL, "out-dir steps !overwrite",                                   \
      "go on from the last checkpoint; without other options, as it began")                                            \
    X(allow_changes, "allow-changes", "", FLAG, "0", 0, 1, "", LOCAL, "resume", "resume though options differ")        \
    X(overwrite, "overwrite", "", FLAG, "0", 0, 1, "", LOCAL, "out-dir steps", "remove the older run that is there")   \
    X(seed, "seed", "", INT, "42", 0, 4294967295.0, "N", SHAPES, "",                                                   \
      "decides the initial weights, the order of the data and the samples")                                            \
    X(threads, "threads", "", INT, "0", 0, 1024, "N", LOCAL, "", "CPU threads; 0: one per core")                       \
    X(precision, "precision", "", CHOICE, "fp32", 0, 0, "fp32|bf16", FREE, "CPU",                                      \
      "of the factors in multiplies; sums are fp32")                                                                   \
    X(cpu_kernels, "cpu-kernels", "", CHOICE, "auto", 0, 0, "auto|amx|avx512bf16|avx512|avx2|bfmmla|portable", FREE,   \
      "CPU", "the instructions that multiply matrices; auto: the fastest that this processor has")                     \
    X(recompute, "recompute", "r", INT, PICK("0", "-1"), PICK(0, -1), 3, "LEVEL", FREE, "",                            \
      "less memory for more time; recomputes 1: " MODEL_RECOMPUTES ", 3: whole blocks" PICK("", "; -1: what fits"))    \
    X(plan, "plan", "", CHOICE, "0", 0, 0, "0|1|all", LOCAL, "", "print what a run takes, and exit; all: each buffer") \
    X(auto_plan, "auto", "", FLAG, "0", 0, 1, "", FREE, "GPU steps", "choose --batch-size, --recompute, --offload")    \
    X(gpu_memory, "gpu-memory", "", REAL, "0", 0, 1e6, "GIB", LOCAL, "GPU steps|plan auto|plan|recompute=-1",          \
      "what --recompute and --auto may fill; 0: all that is free (--plan: all of this GPU, else 79)")                  \
    X(tf32, "tf32", "f", FLAG, "1", 0, 1, "", FREE, "GPU", "let fp32 matrix multiplies use TF32 tensor cores")         \
    X(master_weights, "master-weights", "w", FLAG, "1", 0, 1, "", SHAPES, "GPU", "fp32 weights for the optimizer")     \
    X(moments, "moments", "", CHOICE, "fp32", 0, 0, "fp32|bf16", SHAPES, "GPU steps",                                  \
      "the optimizer's m and v; bf16: half the memory, rounded at random")                                             \
    X(gelu_fusion, "gelu-fusion", "ge", INT, "0", 0, MODEL_GELU_FUSION, "LEVEL", SHAPES, "GPU !fp8",                   \
      "GELU in the matrix multiply, 1: forward, 2: backward too; --recompute 1 or 2 then repeats it")                  \
    X(fp8, "fp8", "", FLAG, "0", 0, 1, "", SHAPES, "GPU", "8-bit linear layers; needs compute capability 8.9")         \
    X(attention, "attention", "", CHOICE, "auto", 0, 0, "auto|cudnn|own", FREE, "GPU cudnn:steps",                     \
      "by cuDNN or our own kernels, which round differently; auto: by cuDNN where it takes the shape")                 \
    X(deterministic, "deterministic", "", FLAG, "1", 0, 1, "", ROUNDS, "GPU 0:steps 0:!attention=own",                 \
      "0: cuDNN's attention may add up gradients by atomics, faster, but with other bits from run to run")             \
    X(head_rows, "head-rows", "", INT, "8192", 1, 16777216, "N", ROUNDS, "GPU", "rows of logits at a time")            \
    X(offload, "offload", "", TEXT, "", 1, 63, "LIST", FREE, "GPU",                                                    \
      "keep on the host: optimizer, master, gradients, residuals, parameters (commas between), or all")                \
    X(zero_stage, "zero-stage", "z", INT, "0", 0, 3, "STAGE", FREE, "GPU",                                             \
      "shard over the GPUs; 1: optimizer state, 2: gradients too, 3: parameters too; one GPU: no difference")          \
    X(tp, "tp", "", INT, "1", 1, 1024, "N", LOCAL, "GPU",                                                              \
      "tensor parallelism: N neighbouring GPUs share each layer; N divides the heads of keys and values")              \
    X(sp, "sp", "", FLAG, "1", 0, 1, "", LOCAL, "GPU !tp=1",                                                           \
      "sequence parallelism: each of these N holds 1/N of the rows between the multiplies; 0: all rows")               \
    X(cp, "cp", "", INT, "1", 1, 1024, "N", LOCAL, "GPU",                                                              \
      "context parallelism: N GPUs share each sequence, for those that fit no GPU; takes our own attention")           \
    X(pp, "pp", "", INT, "1", 1, 1024, "N", LOCAL, "GPU",                                                              \
      "pipeline parallelism: N stages share the layers, and hand micro-batches on; implies --zero-stage 1")            \
    X(pp_schedule, "pp-schedule", "", CHOICE, "1f1b", 0, 0, "1f1b|afab|interleaved", LOCAL, "GPU !pp=1",               \
      "a stage's order; afab: all forwards first, interleaved: several chunks of layers, less idle time")              \
    X(pp_chunks, "pp-chunks", "", INT, "2", 2, 64, "V", LOCAL, "GPU pp-schedule=interleaved", "chunks of a stage")     \
    X(num_processes, "num-processes", "pn np", INT, "0", 0, 65536, "N", LOCAL, "GPU",                                  \
      "processes of the run, one per GPU; 0: as many as mpirun or srun started; with --plan: any N")                   \
    X(process_rank, "process-rank", "pr", INT, "0", 0, 65535, "N", LOCAL, "GPU !nccl-init=mpi",                        \
      "the number of this process, from 0")                                                                            \
    X(gpus_per_node, "gpus-per-node", "pg", INT, "0", 0, 1024, "N", LOCAL, "GPU", "GPU = rank modulo N; 0: by host")   \
    X(nccl_init, "nccl-init", "pi pm", CHOICE, "mpi", 0, 0, "mpi|tcp|fs", LOCAL,                                       \
      "GPU tcp:server-ip tcp:num-processes fs:nccl-fs-path fs:num-processes", "by mpirun, by TCP, or by a folder")     \
    X(server_ip, "server-ip", "ps", TEXT, "", 1, 255, "ADDRESS[:PORT]", LOCAL, "GPU nccl-init=tcp", "of process 0")    \
    X(secret_file, "secret-file", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", LOCAL, "GPU nccl-init=tcp",                  \
      "64 hexadecimal digits, of mode 600, known to these processes; without it, GPT2C_SECRET in the environment")     \
    X(nccl_fs_path, "nccl-fs-path", "pf pp", TEXT, "", 1, ARGS_MAX_PATH, "DIR", LOCAL, "GPU nccl-init=fs",             \
      "a folder that all processes see")                                                                               \
    X(start_timeout, "start-timeout", "", REAL, "300", 1, 1e6, "SECONDS", LOCAL, "GPU",                                \
      "how long processes wait for each other at the start")                                                           \
    X(watchdog, "watchdog", "", REAL, "45", 0, 1e6, "SECONDS", LOCAL, "GPU", "end a run that hangs so long; 0: never")

// Headings of --help all, each after the option that it precedes.
static const char *const train_groups[] = {"train-data", "Data",       "init",         "Model",     "batch-size",
                                           "Batch",      "lr",         "Optimizer",    "val-every", "Evaluation",
                                           "out-dir",    "Output",     "seed",         "Machine",   "tf32",
                                           "GPU",        "zero-stage", "Several GPUs", NULL};

// The options that --help shows.
#define TRAIN_COMMON                                                                                                   \
    "train-data val-data init batch-size seq-len total-batch steps lr warmup weight-decay val-every sample-every "     \
    "prompt out-dir checkpoint-every resume threads precision plan auto zero-stage"

#define TRAIN_OPTION_FIELD(field, name, aliases, type, ...) ARG_FIELD_##type field;
#define TRAIN_PICK_CPU(cpu, gpu) cpu
#define TRAIN_PICK_GPU(cpu, gpu) gpu

// int64_t for INT, double for REAL, const char * for TEXT ("": not given) and CHOICE, bool for FLAG.
typedef struct {
    TRAIN_OPTIONS(TRAIN_OPTION_FIELD, TRAIN_PICK_CPU)
    bool given[ARGS_MAX_SPECS]; // by place in the table: by the command line, now or when the saved run began
} TrainOptions;

// The places of the options in the table: options->given[OPTION_batch_size].
#define TRAIN_OPTION_INDEX(field, ...) OPTION_##field,
enum { TRAIN_OPTIONS(TRAIN_OPTION_INDEX, TRAIN_PICK_CPU) NUM_TRAIN_OPTIONS };

#define TRAIN_OPTION_SPEC(field, name, aliases, type, fallback, min, max, value, shapes, needs, help)                  \
    {name, aliases, ARG_##type, offsetof(TrainOptions, field), fallback, min, max, value, needs, help},
#define TRAIN_OPTION_SHAPES(field, name, aliases, type, fallback, min, max, value, shapes, ...) shapes,

static const ArgSpec train_specs_cpu[] = {TRAIN_OPTIONS(TRAIN_OPTION_SPEC, TRAIN_PICK_CPU)};
static const ArgSpec train_specs_gpu[] = {TRAIN_OPTIONS(TRAIN_OPTION_SPEC, TRAIN_PICK_GPU)};
static const int train_shapes_run[] = {TRAIN_OPTIONS(TRAIN_OPTION_SHAPES, TRAIN_PICK_CPU)};

// ---- The record of a run: its options as (name, text) pairs ----

// Tells whether this trainer takes option i.
static inline bool train_options_takes(int i, bool gpu_trainer) {
    return !args_list_has(train_specs_cpu[i].needs, ' ', gpu_trainer ? "CPU" : "GPU", 3);
}

// Writes the value of option i as it is shown, cut to size - 1 bytes (paths have up to ARGS_MAX_PATH, the prompt up to
// 65536): a path with a newline forges no line of a record. Equal values give equal texts.
static inline void train_options_text(const TrainOptions *options, int i, char *text, size_t size) {
    char value[ARGS_MAX_TEXT], line[SAY_MAX_BYTES];
    args_value_text(&train_specs_cpu[i], options, value, sizeof(value));
    snprintf(text, size, "%.*s", (int)shown(line, value, 0, 0), line);
}

// Sets the sizes that options give a new model. Returns the place of the first such option, -1: none is given.
static inline int train_options_take_sizes(const TrainOptions *o, ModelConfig *config) {
    ModelConfig was = *config;
    const int64_t values[] = {o->layers, o->heads, o->channels, o->kv_heads, o->context, o->vocab}; // as in the table
    int *const sizes[] = {&config->num_layers,   &config->num_heads,   &config->channels,
                          &config->num_kv_heads, &config->max_seq_len, &config->vocab_size};
    int first = -1;
    for (int i = OPTION_vocab - OPTION_layers; i >= 0; i--) {
        if (values[i] == 0) { continue; }
        *sizes[i] = (int)values[i];
        first = OPTION_layers + i;
    }
    bool heads = config->num_heads != was.num_heads, channels = config->channels != was.channels;
    if (heads || channels) { config->head_size = 0; } // model_complete sets what is 0
    if (channels) { config->mlp_width = 0; }
    if (heads && o->kv_heads == 0) { config->num_kv_heads = 0; }
    model_complete(config);
    return first;
}

// ---- Checks that need only the options ----

// Settles total_batch, when seq_len and the number of ranks are known. 0 becomes one micro-batch of every rank, B * T *
// num_ranks tokens. Any other value must be a multiple of that.
static inline bool train_options_check_batch(TrainOptions *options, int num_ranks, Error *error) {
    int64_t micro = options->batch_size * options->seq_len * num_ranks, total = options->total_batch;
    char ranks[40] = "";
    if (num_ranks > 1) { snprintf(ranks, sizeof(ranks), " x %d ranks", num_ranks); }
    if (micro > TRAIN_MAX_TOTAL_BATCH) {
        return fail(error, "--batch-size (-b): %lld x %lld tokens%s are %lld in a micro-batch, at most %d are possible",
                    (long long)options->batch_size, (long long)options->seq_len, ranks, (long long)micro,
                    TRAIN_MAX_TOTAL_BATCH);
    }
    if (total == 0) { options->total_batch = total = micro; }
    if (total % micro == 0) { return true; }
    int64_t near = max_i64(total / micro, 1) * micro;
    return fail(error, "--total-batch (-d): %lld tokens is not a multiple of B x T%s = %lld; give %lld",
                (long long)total, ranks, (long long)micro, (long long)near);
}

// Gives a new model the context of its sequences, as no step trains a later position, unless --context says otherwise.
// Checks that the model knows as many positions as a sequence has.
static inline bool train_options_settle_context(const TrainOptions *o, bool is_new, ModelConfig *config, Error *error) {
    if (is_new && o->context == 0 && o->seq_len > 0) { config->max_seq_len = (int)o->seq_len; }
    return o->seq_len <= config->max_seq_len ||
           fail(error, "--seq-len (-t): %lld tokens, but the model knows %d positions; give at most that many",
                (long long)o->seq_len, config->max_seq_len);
}

// Returns the learning-rate schedule of a run of num_steps steps. peak: --lr or --muon-lr.
static inline Schedule train_options_schedule(const TrainOptions *o, double peak, int64_t num_steps) {
    Schedule s = {schedule_kind(o->schedule), (float)peak, o->warmup, num_steps, (float)o->final_lr_frac};
    return s;
}

// Tells whether --plan is given. The run is then only planned.
static inline bool train_options_plan(const TrainOptions *o) { return strcmp(o->plan, "0") != 0; }

// Tells whether the plan shows every buffer.
static inline bool train_options_plans_all(const TrainOptions *o) { return strcmp(o->plan, "all") == 0; }

static inline OptimizerKind train_options_optimizer(const TrainOptions *o) {
    return strcmp(o->optimizer, "muon") == 0 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
}

// Refuses options that contradict each other, or that do nothing in their combination, beyond what `needs` says. Gives
// equal runs equal records, whichever way was taken to say so. A schedule whose rate does not fall ends at the highest.
static inline bool train_options_settle(TrainOptions *o, Error *error) {
    const ModelSize *size = model_find_size(o->init);
    bool no_data = o->train_data[0] == '\0', no_batch = !o->given[OPTION_batch_size];
    const struct {
        bool bad;
        const char *why;
    } rules[] = {
        {no_data && o->steps != 0 && !o->resume && !train_options_plan(o),
         "--train-data (-i): missing; give a text file or token shards to train on, or --steps 0 to only sample"},
        {no_data && o->steps == 0 && !o->given[OPTION_init] && o->val_data[0] == '\0' && !train_options_plan(o),
         "--init (-e): missing; --steps 0 needs a model's file or the folder of a run"},
        {o->val_batches >= 0 && o->given[OPTION_val_sequences],
         "--val-batches (-m): contradicts --val-sequences; give one of the two"},
        {o->auto_plan && no_batch && o->val_batches >= 0,
         "--val-batches (-m): counts batches of --batch-size (-b), which --auto chooses; give --val-sequences instead"},
        {o->num_processes > 0 && o->process_rank >= o->num_processes,
         "--process-rank (-pr): is counted from 0, it must be less than --num-processes (-pn)"},
        {o->auto_plan && !no_batch && o->recompute >= 0,
         "--auto: chooses --batch-size (-b) and --recompute (-r), and both are given; leave out one of the three"},
        {o->auto_plan && no_batch && o->total_batch == 0,
         "--auto: chooses micro-batches of --total-batch (-d), the tokens in a step; give it, or --batch-size (-b)"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (rules[i].bad) { return fail(error, "%s", rules[i].why); }
    }
    if (size != NULL) { o->init = size->name; }
    if (o->val_batches >= 0) { o->val_sequences = o->val_batches * o->batch_size; }
    if (!schedule_falls(schedule_kind(o->schedule))) { o->final_lr_frac = 1.0; }
    if (train_options_optimizer(o) == OPTIMIZER_MUON && o->muon_lr == 0.0) {
        o->muon_lr = strcmp(o->muon_scale, "rms") == 0 ? o->lr : 0.02;
    }
    return true;
}

// The command lines of the CPU trainer and of the GPU trainer. Each program adds its name.
static const ArgsProgram train_programs[2] = {
    {NULL, "--train-data FILES [options]", "Trains a " MODEL_NAME " model on the CPU, with defaults for a laptop.",
     "--train-data book.txt --out-dir run --steps 1000", train_specs_cpu, NUM_TRAIN_OPTIONS, false, NULL, TRAIN_COMMON,
     train_groups, foreign_options, false, "GPU", TRAIN_GPU_ONLY},
    {NULL, "--train-data FILES [options]", "Trains a " MODEL_NAME " model on GPUs, in mixed precision.",
     "-i 'shards/*_train_*.bin' -e " MODEL_GPU_SIZE " -d 524288 --auto -o run", train_specs_gpu, NUM_TRAIN_OPTIONS,
     false, NULL, TRAIN_COMMON, train_groups, foreign_options, false, "CPU", TRAIN_CPU_ONLY}};

// Reads the command line of a trainer and makes every check that needs no file. --help and --version print and set
// *outcome, and the program then ends with status 0. Texts point into argv, which must stay. name: the program's.
static inline bool train_options_parse(TrainOptions *options, const char *name, int argc, char **argv, bool gpu_trainer,
                                       ArgsOutcome *outcome, Error *error) {
    ArgsProgram program = train_programs[gpu_trainer];
    program.name = name;
    program.given = options->given;
    program.silent = !launcher_shows();
    if (!args_parse(&program, options, argc, argv, NULL, outcome, error)) { return false; }
    return *outcome != ARGS_RUN || train_options_settle(options, error);
}

#endif // LLMC_TRAIN_OPTIONS_H
