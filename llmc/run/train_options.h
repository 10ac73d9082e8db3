// The options of the trainers: one table, expanded into the struct TrainOptions, the command line, --help, and the
// record that logs and training states keep of them. The short aliases are llm.c's flags, with their meaning.
//
// To add an option, add a row; options->field then holds its value.
#ifndef LLMC_TRAIN_OPTIONS_H
#define LLMC_TRAIN_OPTIONS_H

#include "llmc/run/args.h"
#include "llmc/model/gpu_peak.h"

// Does another value give other weights after the same number of steps? A resumed run compares those that do. Those of
// which only roundings depend, and which the kind of GPU may settle, may change: it says so.
// SHAPES_AT_2: the value 2 gives other weights, 0 and 1 give the same.
enum { FREE = 0, SHAPES = 1, ROUNDS = 2, SHAPES_AT_2 = 3 };

#define TRAIN_MAX_TOTAL_BATCH 2147483647 // tokens
#define TRAIN_MAX_BATCH 65536            // sequences
#define TRAIN_HELLASWAG_DATA "dev/data/hellaswag/hellaswag_val.bin"
#define TRAIN_MMLU_DATA "dev/data/mmlu/mmlu_val.bin"
#define TRAIN_GPU_ONLY "is an option of the GPU trainer (train_gpt2cu)"
#define TRAIN_CPU_ONLY "is an option of the CPU trainer (train_gpt2)"

// THE option table. PICK(cpu, gpu) chooses between the trainers: what suits a laptop is not what suits a GPU.
//  field, long name, aliases, type, default, minimum, maximum, value or choices, shapes the run, refused because,
//  group, help
#define TRAIN_OPTIONS(X, PICK)                                                                                         \
    X(train_data, "train-data", "i", TEXT, "", 1, ARGS_MAX_PATH, "FILES", SHAPES, NULL, "Data",                        \
      "what to learn: a plain text file, or token shards (.bin; a pattern in quotes names several)")                   \
    X(val_data, "val-data", "j", TEXT, "", 1, ARGS_MAX_PATH, "FILES", FREE, NULL, "Data",                              \
      "the same for validation; without it, the last part of a training text is kept for validation")                  \
    X(tokenizer, "tokenizer", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", SHAPES, NULL, "Data",                            \
      "byte, vocab.bpe (GPT-2's merges) or gpt2_tokenizer.bin; without it, the one in --init's folder, else bytes")    \
    X(shuffle, "shuffle", "", FLAG, "0", 0, 1, "", SHAPES, NULL, "Data",                                               \
      "visit shards, and windows in them, in a random order, another one each epoch")                                  \
    X(overfit, "overfit", "a", FLAG, "0", 0, 1, "", SHAPES, NULL, "Data",                                              \
      "train on the first batch again and again, a test that must reach a loss near 0")                                \
    X(init, "init", "e", TEXT, PICK("d6", "d12"), 1, ARGS_MAX_PATH, "MODEL", SHAPES, NULL, "Model",                    \
      "a size for a new model (d6, d12 ... d84, gpt3:c768 ...; d12 is GPT-2 124M), or a model to go on with: a .bin "  \
      "or .safetensors file, the folder of a run, or a folder of Hugging Face's, with its tokenizer")                  \
    X(layers, "layers", "", INT, "0", 0, 1000, "L", SHAPES, NULL, "Model", "layers of a new model; 0: as --init says") \
    X(heads, "heads", "", INT, "0", 0, 1024, "NH", SHAPES, NULL, "Model",                                              \
      "attention heads of a new model; 0: as --init says")                                                             \
    X(channels, "channels", "", INT, "0", 0, 65536, "C", SHAPES, NULL, "Model",                                        \
      "channels of a new model; 0: as --init says")                                                                    \
    X(context, "context", "", INT, "0", 0, 1048576, "T", SHAPES, NULL, "Model",                                        \
      "positions a new model knows; 0: as --init says")                                                                \
    X(vocab, "vocab", "", INT, "0", 0, 65536, "V", SHAPES, NULL, "Model",                                              \
      "vocabulary of a new model; 0: the tokenizer's")                                                                 \
    X(batch_size, "batch-size", "b", INT, "4", 1, TRAIN_MAX_BATCH, "B", FREE, NULL, "Batch",                           \
      "sequences in a micro-batch, what is in memory at once")                                                         \
    X(seq_len, "seq-len", "t", INT, "0", 0, 1048576, "T", SHAPES, NULL, "Batch",                                       \
      "tokens in a sequence, at most the model's context; 0: " PICK("64", "1024") ", or the context if that is less "  \
                                                                                  "or the run only samples")           \
    X(total_batch, "total-batch", "d", INT, "0", 0, TRAIN_MAX_TOTAL_BATCH, "TOKENS", SHAPES, NULL, "Batch",            \
      "tokens in a step, a multiple of B x T: micro-batches are added up to it; 0: one micro-batch")                   \
    X(steps, "steps", "x", INT, "-1", -1, 1000000000, "N", SHAPES, NULL, "Batch",                                      \
      "steps of the whole run; -1: once through the data; 0: only evaluate, sample and export")                        \
    X(lr, "lr", "l", REAL, "3e-4", 0, 100, "RATE", SHAPES, NULL, "Optimizer", "learning rate, the highest")            \
    X(schedule, "schedule", "k", CHOICE, "cosine", 0, 0, "cosine|linear|constant|wsd", SHAPES, NULL, "Optimizer",      \
      "how the rate falls; wsd: constant, then down over the last fifth")                                              \
    X(warmup, "warmup", "u", INT, "0", 0, 1000000000, "N", SHAPES, NULL, "Optimizer",                                  \
      "steps over which the rate rises from 0 at the start")                                                           \
    X(final_lr_frac, "final-lr-frac", "q", REAL, "1", 0, 1, "F", SHAPES, NULL, "Optimizer",                            \
      "the last rate as a fraction of the highest; 1: the rate does not fall")                                         \
    X(weight_decay, "weight-decay", "c", REAL, "0", 0, 100, "W", SHAPES, NULL, "Optimizer",                            \
      "AdamW's decay of matrices and embeddings")                                                                      \
    X(beta1, "beta1", "", REAL, "0.9", 0, 0.999999, "F", SHAPES, NULL, "Optimizer", "AdamW's memory of the gradient")  \
    X(beta2, "beta2", "", REAL, "0.95", 0, 0.999999, "F", SHAPES, NULL, "Optimizer", "AdamW's memory of its square")   \
    X(adam_eps, "adam-eps", "", REAL, "1e-8", 1e-20, 1, "F", SHAPES, NULL, "Optimizer", "AdamW's epsilon")             \
    X(grad_clip, "grad-clip", "", REAL, "1", 0, 1e9, "NORM", SHAPES, NULL, "Optimizer",                                \
      "longer gradients are shortened to this norm; 0: never")                                                         \
    X(skip_loss_z, "skip-loss-z", "sl", REAL, "0", 0, 1e9, "Z", SHAPES, NULL, "Optimizer",                             \
      "skip an update whose loss is more than Z standard deviations above the last 128; 0: never")                     \
    X(skip_grad_z, "skip-grad-z", "sg", REAL, "0", 0, 1e9, "Z", SHAPES, NULL, "Optimizer",                             \
      "the same for the norm of the gradient; 0: never")                                                               \
    X(val_every, "val-every", "v", INT, PICK("100", "20"), 0, 1000000000, "N", FREE, NULL, "Evaluation",               \
      "validate every N steps, and at the start and the end; 0: never")                                                \
    X(val_batches, "val-batches", "m", INT, "20", 0, 1000000000, "N", FREE, NULL, "Evaluation",                        \
      "batches in a validation; 0: all")                                                                               \
    X(hellaswag, "hellaswag", "h", FLAG, "0", 0, 1, "0|1", FREE, NULL, "Evaluation",                                   \
      "measure the accuracy on HellaSwag with each validation, or as --eval-every says")                               \
    X(hellaswag_data, "hellaswag-data", "", TEXT, TRAIN_HELLASWAG_DATA, 1, ARGS_MAX_PATH, "FILE", FREE, NULL,          \
      "Evaluation", "its questions; python3 dev/data/hellaswag.py fetches them")                                       \
    X(mmlu, "mmlu", "", FLAG, "0", 0, 1, "0|1", FREE, NULL, "Evaluation", "the same on MMLU")                          \
    X(mmlu_data, "mmlu-data", "", TEXT, TRAIN_MMLU_DATA, 1, ARGS_MAX_PATH, "FILE", FREE, NULL, "Evaluation",           \
      "its questions; python3 dev/data/mmlu.py fetches them")                                                          \
    X(eval_every, "eval-every", "", INT, "-1", -1, 1000000000, "N", FREE, NULL, "Evaluation",                          \
      "measure these every N steps, and at the start and the end; -1: with each validation")                           \
    X(eval_examples, "eval-examples", "", INT, "0", 0, 65536, "N", FREE, NULL, "Evaluation",                           \
      "use the first N questions of each; 0: all")                                                                     \
    X(sample_every, "sample-every", "s", INT, PICK("100", "20"), 0, 1000000000, "N", FREE, NULL, "Evaluation",         \
      "write a sample every N steps, and at the end; 0: never")                                                        \
    X(sample_tokens, "sample-tokens", "g", INT, "64", 1, 1048576, "N", FREE, NULL, "Evaluation", "tokens of a sample") \
    X(prompt, "prompt", "", TEXT, "", 0, 65536, "TEXT", FREE, NULL, "Evaluation", "the sample goes on from this text") \
    X(temperature, "temperature", "", REAL, "1", 0, 100, "F", FREE, NULL, "Evaluation",                                \
      "below 1: likelier tokens, above 1: wilder ones; 0: always the likeliest")                                       \
    X(top_k, "top-k", "", INT, "0", 0, 1048576, "K", FREE, NULL, "Evaluation",                                         \
      "sample among the K likeliest tokens; 0: all")                                                                   \
    X(top_p, "top-p", "", REAL, "1", 0, 1, "P", FREE, NULL, "Evaluation",                                              \
      "sample among the likeliest tokens that make up probability P; 1: all")                                          \
    X(no_kv_cache, "no-kv-cache", "", FLAG, "0", 0, 1, "", FREE, PICK(NULL, TRAIN_CPU_ONLY), "Evaluation",             \
      "sample without the key/value cache: slower, the same tokens")                                                   \
    X(out_dir, "out-dir", "o", TEXT, "", 1, ARGS_MAX_PATH, "DIR", FREE, NULL, "Output",                                \
      "the folder for checkpoints, main.log, speed.log, loss.svg and run.json; without it, nothing is written")        \
    X(checkpoint_every, "checkpoint-every", "n", INT, "0", 0, 1000000000, "N", FREE, NULL, "Output",                   \
      "save every N steps, and at the end; 0: only at the end")                                                        \
    X(keep, "keep", "nk", INT, "0", 0, 1000000000, "N", FREE, NULL, "Output",                                          \
      "keep the last N checkpoints, remove older ones; 0: keep all")                                                   \
    X(keep_major, "keep-major", "nm", INT, "0", 0, 1000000000, "N", FREE, NULL, "Output",                              \
      "but never remove those of every N-th step; 0: no exception")                                                    \
    X(resume, "resume", "y", FLAG, "0", 0, 1, "", FREE, NULL, "Output",                                                \
      "go on from the last good checkpoint in --out-dir, bit for bit")                                                 \
    X(allow_changes, "allow-changes", "", FLAG, "0", 0, 1, "", FREE, NULL, "Output",                                   \
      "resume although options that shape the run are not what they were")                                             \
    X(overwrite, "overwrite", "", FLAG, "0", 0, 1, "", FREE, NULL, "Output",                                           \
      "start afresh in a folder that holds an older run, whose checkpoints are removed")                               \
    X(export_dir, "export", "", TEXT, "", 1, ARGS_MAX_PATH, "DIR", FREE, NULL, "Output",                               \
      "at the end, write the model and its tokenizer into a new folder (or over an earlier export), from where "       \
      "Hugging Face transformers and --init load them")                                                                \
    X(seed, "seed", "", INT, "42", 0, 4294967295.0, "N", SHAPES, NULL, "Machine",                                      \
      "of the initial weights, the order of the data and the samples")                                                 \
    X(threads, "threads", "", INT, "0", 0, 1024, "N", FREE, NULL, "Machine",                                           \
      "CPU threads, the result does not depend on them; 0: one per core")                                              \
    X(recompute, "recompute", "r", INT, PICK("0", "-1"), PICK(0, -1), 3, "LEVEL", FREE, NULL, "Machine",               \
      "less memory for more time, the same result: recompute in the backward pass 1: GELU, 2: LayerNorm too, "         \
      "3: whole blocks" PICK("", "; -1: the lowest level that fits the GPU"))                                          \
    X(plan, "plan", "", FLAG, "0", 0, 1, "", FREE, NULL, "Machine",                                                    \
      "print the memory that the run would take, buffer by buffer" PICK(                                               \
          "", ", and its time, kernel by kernel") ", and exit")                                                        \
    X(gpu, "gpu", "", TEXT, "", 1, 64, "NAME", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Machine",                            \
      "for --plan: the GPU whose times are predicted and whose memory --auto fills, one of" GPU_OPTION_NAMES "; "      \
      "without it, h100")                                                                                              \
    X(auto_plan, "auto", "", FLAG, "0", 0, 1, "", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Machine",                         \
      "choose --batch-size and --recompute, or the one not given: the fastest, by prediction, that fits the GPU")      \
    X(gpu_memory, "gpu-memory", "", REAL, "0", 0, 1e6, "GIB", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Machine",             \
      "choose --recompute, and what --auto chooses, for no more than this; 0: what is free (--plan: all of --gpu's)")  \
    X(gpu_log_every, "gpu-log-every", "lg", INT, "0", 0, 1000000000, "N", FREE, PICK(TRAIN_GPU_ONLY, NULL), "GPU",     \
      "print the state of the GPU every N steps; 0: never")                                                            \
    X(tf32, "tf32", "f", FLAG, "1", 0, 1, "", FREE, PICK(TRAIN_GPU_ONLY, NULL), "GPU",                                 \
      "let fp32 matrix multiplies use TF32 tensor cores")                                                              \
    X(master_weights, "master-weights", "w", FLAG, "1", 0, 1, "", SHAPES, PICK(TRAIN_GPU_ONLY, NULL), "GPU",           \
      "keep an fp32 copy of the weights for the optimizer")                                                            \
    X(gelu_fusion, "gelu-fusion", "ge", INT, PICK("0", "-1"), -1, 2, "LEVEL", ROUNDS, PICK(TRAIN_GPU_ONLY, NULL),      \
      "GPU",                                                                                                           \
      "GELU inside the matrix multiply, 1: forward, 2: backward too; --recompute 1 or 2 then repeats that "            \
      "multiply; -1: 2 on Hopper if the model fits without recomputation, else 0")                                     \
    X(fp8, "fp8", "", FLAG, "0", 0, 1, "", SHAPES, PICK(TRAIN_GPU_ONLY, NULL), "GPU",                                  \
      "multiply in the blocks' linear layers in 8 bits, forward and backward; needs compute capability 8.9 or later")  \
    X(attention, "attention", "", CHOICE, "auto", 0, 0, "auto|cudnn|own", ROUNDS, PICK(TRAIN_GPU_ONLY, NULL), "GPU",   \
      "by cuDNN or by our own kernels, which round differently; auto: the faster, timed at the start and kept as the " \
      "choices of --matmul-tune; with --matmul-tune 0: by cuDNN where it can be")                                      \
    X(deterministic, "deterministic", "", FLAG, "1", 0, 1, "", ROUNDS, PICK(TRAIN_GPU_ONLY, NULL), "GPU",              \
      "0: cuDNN's attention may add gradients up by atomics, in less time: no two runs then have the same bits")       \
    X(matmul_tune, "matmul-tune", "", INT, "1", 0, 2, "[LEVEL]", SHAPES_AT_2, PICK(TRAIN_GPU_ONLY, NULL), "GPU",       \
      "at the start, time the algorithms for each matrix multiply and take the fastest, 1: with the bits of "          \
      "cuBLASLt's own choice, 2: with any bits, recorded in --out-dir for --resume; 0: take its choice")               \
    X(matmul_tune_file, "matmul-tune-file", "", TEXT, "", 1, ARGS_MAX_PATH, "FILE", FREE, PICK(TRAIN_GPU_ONLY, NULL),  \
      "GPU", "keep what is found there for later starts; without it, in ~/.cache/gpt2.c, a file for each kind of GPU") \
    X(cuda_graph, "cuda-graph", "", FLAG, "1", 0, 1, "", FREE, PICK(TRAIN_GPU_ONLY, NULL), "GPU",                      \
      "launch a step as CUDA graphs, the same result in less time; with several GPUs: no difference")                  \
    X(head_rows, "head-rows", "", INT, "0", 0, 16777216, "N", ROUNDS, PICK(TRAIN_GPU_ONLY, NULL), "GPU",               \
      "rows of logits that exist at a time: fewer take less memory; only the order of a sum depends on it; 0: 16384 "  \
      "if the model then fits a GPU of this kind without recomputation, else 8192")                                    \
    X(head_overlap, "head-overlap", "", FLAG, "0", 0, 1, "", FREE, PICK(TRAIN_GPU_ONLY, NULL), "GPU",                  \
      "the loss of some rows beside the matrix multiply of the next, with room for twice as many logits")              \
    X(zero_stage, "zero-stage", "z", INT, "0", 0, 3, "STAGE", FREE, PICK(TRAIN_GPU_ONLY, NULL), "GPU",                 \
      "shard over the GPUs: 1: optimizer state, 2: gradients too, 3: parameters too; one GPU: no difference")          \
    X(num_processes, "num-processes", "pn np", INT, "0", 0, 65536, "N", FREE, PICK(TRAIN_GPU_ONLY, NULL),              \
      "Several GPUs", "processes of the run, one per GPU; 0: as many as mpirun or srun started; with --plan: any N")   \
    X(process_rank, "process-rank", "pr", INT, "0", 0, 65535, "N", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Several GPUs",   \
      "which of them this is, for --nccl-init tcp and fs")                                                             \
    X(gpus_per_node, "gpus-per-node", "pg", INT, "0", 0, 1024, "N", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Several GPUs",  \
      "GPU number = rank modulo N; 0: the processes of each host, told by its name, take its GPUs in order")           \
    X(nccl_init, "nccl-init", "pi pm", CHOICE, "mpi", 0, 0, "mpi|tcp|fs", FREE, PICK(TRAIN_GPU_ONLY, NULL),            \
      "Several GPUs", "how processes find each other; mpi: mpirun or srun starts them, fs: by a file in a folder")     \
    X(server_ip, "server-ip", "ps", TEXT, "", 1, 255, "ADDRESS[:PORT]", FREE, PICK(TRAIN_GPU_ONLY, NULL),              \
      "Several GPUs", "of process 0, for --nccl-init tcp")                                                             \
    X(nccl_fs_path, "nccl-fs-path", "pf pp", TEXT, "", 1, ARGS_MAX_PATH, "DIR", FREE, PICK(TRAIN_GPU_ONLY, NULL),      \
      "Several GPUs", "a folder all processes see, for --nccl-init fs")                                                \
    X(start_timeout, "start-timeout", "", REAL, "300", 1, 1e6, "SECONDS", FREE, PICK(TRAIN_GPU_ONLY, NULL),            \
      "Several GPUs", "how long processes wait for each other at the start")                                           \
    X(watchdog, "watchdog", "", REAL, "45", 0, 1e6, "SECONDS", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Several GPUs",       \
      "end the run when a process makes no progress for so long (30 times that to load and save); 0: never")           \
    X(link_speed, "link-speed", "", REAL, "0", 0, 1e6, "GB/S", FREE, PICK(TRAIN_GPU_ONLY, NULL), "Several GPUs",       \
      "for --plan: what a GPU sends in a second; 0: 0.8 of its link in a machine of 8 GPUs, 50 between machines")

#define TRAIN_OPTION_FIELD(field, name, aliases, type, ...) ARG_FIELD_##type field;
#define TRAIN_PICK_CPU(cpu, gpu) cpu
#define TRAIN_PICK_GPU(cpu, gpu) gpu

// int64_t for INT, double for REAL, const char * for TEXT ("": not given) and CHOICE, bool for FLAG.
typedef struct {
    TRAIN_OPTIONS(TRAIN_OPTION_FIELD, TRAIN_PICK_CPU)
    bool given[ARGS_MAX_SPECS]; // by row of the table: it stood on the command line
} TrainOptions;

// The rows of the table by name: options->given[TRAIN_ROW_batch_size].
#define TRAIN_OPTION_ROW(field, ...) TRAIN_ROW_##field,
enum { TRAIN_OPTIONS(TRAIN_OPTION_ROW, TRAIN_PICK_CPU) };

#define TRAIN_OPTION_SPEC(field, name, aliases, type, fallback, min, max, value, shapes, refusal, group, help)         \
    {name, aliases, ARG_##type, offsetof(TrainOptions, field), fallback, min, max, value, refusal, group, help},
#define TRAIN_OPTION_SHAPES(field, name, aliases, type, fallback, min, max, value, shapes, refusal, group, help) shapes,

static const ArgSpec train_specs_cpu[] = {TRAIN_OPTIONS(TRAIN_OPTION_SPEC, TRAIN_PICK_CPU)};
static const ArgSpec train_specs_gpu[] = {TRAIN_OPTIONS(TRAIN_OPTION_SPEC, TRAIN_PICK_GPU)};
static const int train_shapes_run[] = {TRAIN_OPTIONS(TRAIN_OPTION_SHAPES, TRAIN_PICK_CPU)};

// ---- The record of a run: its options as (name, text) pairs ----

static inline int train_options_count(void) { return (int)(sizeof(train_shapes_run) / sizeof(train_shapes_run[0])); }

// The long name of option i, without dashes.
static inline const char *train_options_name(int i) { return train_specs_cpu[i].name; }

// True if another value of option i gives other weights after the same number of steps.
static inline bool train_options_shapes_run(int i) {
    return train_shapes_run[i] == SHAPES || train_shapes_run[i] == SHAPES_AT_2;
}

// True if another value of option i gives other roundings.
static inline bool train_options_rounds(int i) { return train_shapes_run[i] == ROUNDS; }

// True if each process of a run has a value of its own.
static inline bool train_options_is_of_rank(int i) { return strcmp(train_specs_cpu[i].name, "process-rank") == 0; }

// True if two values of option i, as texts, give the same weights. then: "" if it was not recorded.
static inline bool train_options_alike(int i, const char *then, const char *now) {
    bool at_2 = train_shapes_run[i] == SHAPES_AT_2;
    return at_2 ? (strcmp(then, "2") == 0) == (strcmp(now, "2") == 0) : strcmp(then, now) == 0;
}

// Writes the value of option i; equal values give equal texts ("3e-4" and "0.0003" are both "0.0003"). A text of up to
// ARGS_MAX_PATH bytes (the prompt: 65536) is cut to size - 1.
static inline void train_options_text(const TrainOptions *options, int i, char *text, size_t size) {
    args_value_text(&train_specs_cpu[i], options, text, size);
}

// ---- Checks that need no more than the options ----

// Settles total_batch, when seq_len and the number of ranks are known: 0 becomes one micro-batch of every rank, B * T *
// num_ranks tokens; anything else must be a multiple of that.
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
    int64_t below = total / micro * micro, above = below + micro;
    char nearest[64];
    if (below > 0 && above <= TRAIN_MAX_TOTAL_BATCH) {
        snprintf(nearest, sizeof(nearest), "%lld or %lld", (long long)below, (long long)above);
    } else {
        snprintf(nearest, sizeof(nearest), "%lld", (long long)(below > 0 ? below : above));
    }
    return fail(error, "--total-batch (-d): %lld tokens is not a multiple of B x T%s = %lld; the nearest is %s",
                (long long)total, ranks, (long long)micro, nearest);
}

// The micro-batches that --auto chooses from, in sequences, descending: those that divide `sequences`, what a rank has
// in a step. Begin with batch_size 0; 0 is the end.
static inline int64_t train_options_next_batch(int64_t sequences, int64_t batch_size) {
    int64_t next = batch_size == 0 ? min_i64(sequences, TRAIN_MAX_BATCH) : batch_size - 1;
    while (next > 0 && sequences % next != 0) { next--; }
    return next;
}

// Checks the sequence length against the positions the model knows, once the model is known.
static inline bool train_options_check_context(const TrainOptions *options, int max_seq_len, Error *error) {
    if (options->seq_len <= max_seq_len) { return true; }
    return fail(error, "--seq-len (-t): %lld tokens, but the model knows %d positions; give at most that many",
                (long long)options->seq_len, max_seq_len);
}

// The GPU that --plan predicts the times of; NULL: --gpu names none.
static inline const GpuPeak *train_options_gpu(const TrainOptions *o) {
    return gpu_peak_of_option(o->gpu[0] != '\0' ? o->gpu : "h100");
}

// Refuses combinations of options that contradict each other, or of which one would do nothing.
static inline bool train_options_check(const TrainOptions *o, Error *error) {
    bool tcp = strcmp(o->nccl_init, "tcp") == 0, folder = strcmp(o->nccl_init, "fs") == 0;
    bool evaluates = o->hellaswag || o->mmlu;
    const GpuPeak *gpu = train_options_gpu(o);
    const struct {
        bool bad;
        const char *message;
    } checks[] = {
        {o->train_data[0] == '\0' && o->steps != 0 && !o->plan,
         "--train-data (-i): missing; give a text file or token shards to train on, or --steps 0 to only sample"},
        {o->resume && o->out_dir[0] == '\0',
         "--resume (-y): needs --out-dir (-o), the folder of the run to go on with"},
        {o->overwrite && o->out_dir[0] == '\0', "--overwrite: needs --out-dir (-o), the folder to start afresh in"},
        {o->resume && o->overwrite, "--resume (-y): contradicts --overwrite; give one of the two"},
        {o->allow_changes && !o->resume, "--allow-changes: does nothing without --resume (-y)"},
        {o->checkpoint_every > 0 && o->out_dir[0] == '\0',
         "--checkpoint-every (-n): needs --out-dir (-o), the folder to save in"},
        {o->keep > 0 && o->out_dir[0] == '\0', "--keep (-nk): needs --out-dir (-o), the folder to save in"},
        {o->keep_major > 0 && o->keep == 0,
         "--keep-major (-nm): does nothing without --keep (-nk), which removes checkpoints"},
        {o->steps == 0 && o->out_dir[0] != '\0',
         "--out-dir (-o): a run of 0 steps has nothing to save; give --export to write the model for Hugging Face"},
        {o->prompt[0] != '\0' && o->sample_every == 0, "--prompt: does nothing with --sample-every 0 (-s)"},
        {evaluates && o->eval_every == 0,
         "--eval-every: 0 contradicts --hellaswag (-h) and --mmlu; give every how many steps, or leave them out"},
        {evaluates && o->eval_every < 0 && o->val_every == 0 && o->steps != 0,
         "--hellaswag (-h), --mmlu: come with each validation, which --val-every 0 (-v) excludes; give --eval-every"},
        {!evaluates && o->eval_every != -1, "--eval-every: does nothing without --hellaswag (-h) or --mmlu"},
        {!evaluates && o->eval_examples > 0, "--eval-examples: does nothing without --hellaswag (-h) or --mmlu"},
        {!o->hellaswag && strcmp(o->hellaswag_data, TRAIN_HELLASWAG_DATA) != 0,
         "--hellaswag-data: does nothing without --hellaswag (-h)"},
        {!o->mmlu && strcmp(o->mmlu_data, TRAIN_MMLU_DATA) != 0, "--mmlu-data: does nothing without --mmlu"},
        {tcp && o->server_ip[0] == '\0',
         "--nccl-init tcp: needs --server-ip (-ps), the address of the machine of process 0"},
        {folder && o->nccl_fs_path[0] == '\0',
         "--nccl-init fs: needs --nccl-fs-path (-pf), a folder that all processes see"},
        {(tcp || folder) && o->num_processes == 0,
         "--nccl-init tcp and fs: need --num-processes (-pn) and --process-rank (-pr)"},
        {o->num_processes > 0 && o->process_rank >= o->num_processes,
         "--process-rank (-pr): is counted from 0, it must be less than --num-processes (-pn)"},
        {!tcp && !folder && o->process_rank > 0,
         "--process-rank (-pr): does nothing without --nccl-init tcp or fs; mpirun and srun number the processes"},
        {!tcp && o->server_ip[0] != '\0', "--server-ip (-ps): does nothing without --nccl-init tcp"},
        {!folder && o->nccl_fs_path[0] != '\0', "--nccl-fs-path (-pf): does nothing without --nccl-init fs"},
        {o->fp8 && o->gelu_fusion > 0,
         "--gelu-fusion (-ge): does nothing with --fp8, whose matrix multiplies have no GELU in them"},
        {o->matmul_tune == 0 && o->matmul_tune_file[0] != '\0',
         "--matmul-tune-file: does nothing with --matmul-tune 0"},
        {o->steps == 0 && o->matmul_tune_file[0] != '\0',
         "--matmul-tune-file: does nothing with --steps 0 (-x); the multiplies of training are timed"},
        {o->auto_plan && o->given[TRAIN_ROW_batch_size] && o->recompute >= 0,
         "--auto: chooses --batch-size (-b) and --recompute (-r), and both are given; leave out one of the three"},
        {o->auto_plan && !o->given[TRAIN_ROW_batch_size] && o->total_batch == 0,
         "--auto: chooses micro-batches of --total-batch (-d), the tokens in a step; give it, or --batch-size (-b)"},
        {o->auto_plan && o->steps == 0, "--auto: is for training; with --steps 0 give --batch-size (-b)"},
        {o->steps == 0 && strcmp(o->attention, "cudnn") == 0,
         "--attention cudnn: is for training; with --steps 0 our own kernels do it, leave it out"},
        {!o->deterministic && o->steps == 0,
         "--deterministic 0: is for the backward pass; with --steps 0 there is none, leave it out"},
        {!o->deterministic && strcmp(o->attention, "own") == 0,
         "--deterministic 0: does nothing with --attention own, whose bits are always the same; leave one of them out"},
        {!o->auto_plan && !o->plan && o->recompute >= 0 && o->gpu_memory > 0.0,
         "--gpu-memory: does nothing with --recompute (-r) and without --auto or --plan"},
        {o->steps == 0 && o->gpu_memory > 0.0, "--gpu-memory: does nothing with --steps 0 (-x)"},
        {!o->plan && o->link_speed > 0.0, "--link-speed: does nothing without --plan"},
        {!o->plan && o->gpu[0] != '\0', "--gpu: does nothing without --plan; a run asks its own GPU"},
        {gpu == NULL, "--gpu: no GPU of this name is known; expected one of" GPU_OPTION_NAMES},
        {o->fp8 && gpu != NULL && gpu->teraflops[GPU_FP8] == 0.0,
         "--gpu: this one has no 8-bit matrix multiplies, which --fp8 needs; name a later one or leave --fp8 out"},
    };
    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
        if (checks[i].bad) { return fail(error, "%s", checks[i].message); }
    }
    return true;
}

// Reads the command line of a trainer and makes every check that needs no file. --help and --version print and set
// *outcome: the program then ends with status 0. Texts point into argv, which must stay.
static inline bool train_options_parse(TrainOptions *options, int argc, char **argv, bool gpu_trainer,
                                       ArgsOutcome *outcome, Error *error) {
    const char *name = gpu_trainer ? "train_gpt2cu" : "train_gpt2";
    char usage[64];
    snprintf(usage, sizeof(usage), "%s --train-data FILES [options]", name);
    ArgsProgram program;
    program.name = name;
    program.usage = usage;
    program.summary = gpu_trainer ? "Trains a GPT-2 model on GPUs, in mixed precision."
                                  : "Trains a GPT-2 model on the CPU, in fp32. The defaults of --init, --seq-len, "
                                    "--val-every and --sample-every are small ones, made for a laptop.";
    program.examples =
        gpu_trainer ? "Examples\n"
                      "  train_gpt2cu -i 'shards/*_train_*.bin' -e d12 -d 524288 --auto -o run\n"
                      "  train_gpt2cu -i 'shards/*_train_*.bin' -j 'shards/*_val_*.bin' -e d12 -b 64 -t 1024 -o run\n"
                      "  train_gpt2cu -i 'shards/*_train_*.bin' -e d48 -b 16 -d 524288 --recompute 1 --plan\n"
                      "  train_gpt2cu --init run --steps 0 --sample-tokens 200\n"
                    : "Examples\n"
                      "  train_gpt2 --train-data book.txt --out-dir run --steps 1000\n"
                      "  train_gpt2 -i 'shards/*_train_*.bin' -j 'shards/*_val_*.bin' -e d12 -b 4 -t 1024 -o run\n"
                      "  train_gpt2 --init run --steps 0 --prompt 'Once upon a time' --sample-tokens 200\n";
    program.specs = gpu_trainer ? train_specs_gpu : train_specs_cpu;
    program.num_specs = train_options_count();
    program.takes_positionals = false;
    program.given = options->given;
    if (!args_parse(&program, options, argc, argv, NULL, outcome, error)) { return false; }
    if (*outcome != ARGS_RUN) { return true; }
    return train_options_check(options, error);
}

#endif // LLMC_TRAIN_OPTIONS_H
