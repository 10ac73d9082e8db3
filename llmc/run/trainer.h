// What a run asks of the trainer that computes, and of the ranks that it trains with: two tables of functions.
//
// Three things stay apart in the trainers, each for a reason:
// - Recomputation. The GPU fuses layers into kernels and recomputes these, the CPU calls the layers one by one. Both
//   take the levels from the table of activations (llmc/model/activations.h).
// - A batch of an evaluation. The GPU works on it while the host queues the next one, and its results lie in the
//   memory of the rank that had the batch. The CPU has the losses at once.
// - The logits of a sample. The CPU keeps keys and values, because each row of the window costs it time. The GPU
//   computes the whole window, which needs no further kernels and no cache.
#ifndef LLMC_TRAINER_H
#define LLMC_TRAINER_H

#include "llmc/model/memory_plan.h"
#include "llmc/run/signals.h"

typedef struct Trainer Trainer;                   // a trainer's own, passed to its functions
typedef struct Comm Comm;                         // the ranks' own, passed to their functions
typedef struct TrainRun TrainRun;                 // llmc/run/train_run.h
typedef struct RunMachine RunMachine;             // llmc/run/run_json.h
typedef struct CheckpointReader CheckpointReader; // llmc/files/checkpoint.h
typedef struct CheckpointWriter CheckpointWriter;
typedef struct PlanVariant PlanVariant; // llmc/run/gpu_choices.h
typedef struct PlannedRun PlannedRun;
typedef struct StepGpu StepGpu; // llmc/model/step_model.h

// A round of a validation or an evaluation: each rank takes one batch. A rank with no batch left in the last round
// repeats batch 0, because other ranks may need its parameters. The batches do not depend on the number of ranks.
typedef struct {
    int64_t batches, rounds; // of the whole validation or evaluation
    int64_t number, batch;   // this round, and this rank's batch
} Round;

// The facts of a trainer.
typedef struct {
    const char *program;
    const char *(*revision)(void); // of the source, from git
    const char *precision;         // of activations and matrix multiplies: "fp32" or "bf16"; NULL: as --precision says
    int default_seq_len;
    bool on_gpu;      // the program takes the options of a GPU run
    int rounds_ahead; // evaluation rounds that are queued and not done when evaluate_batch returns
    StopRequest *stop;
    void (*on_signal)(int number); // passes the signal on to `stop`
} TrainerFacts;

// A trainer's functions, in the order in which a run calls them. All ranks call each function at once. "or NULL" marks
// a function that a trainer may leave out.
typedef struct {
    TrainerFacts facts;

    bool (*join)(Trainer *t, TrainRun *run, Error *error); // finds the other ranks of the run; or NULL
    // Settles options that are open and plans all memory. Returns the plan of the machine that computes; NULL: failed
    const MemoryPlan *(*plan)(Trainer *t, TrainRun *run, Error *error);
    // Plans memory and time of a variant of the run, for the choices of a GPU run; or NULL
    PlannedRun (*plan_variant)(Trainer *t, const TrainRun *run, PlanVariant variant, const StepGpu *gpu,
                               Error *overflow);
    void (*print_config)(Trainer *t, TrainRun *run);       // more than run_print_config does; or NULL
    void (*print_plan)(Trainer *t, TrainRun *run);         // for --plan: more than run_print_plan does; or NULL
    bool (*open)(Trainer *t, TrainRun *run, Error *error); // opens the machine and allocates the plan
    // Reads the parameters and moments that this rank owns from a checkpoint. reader NULL: reads a fresh run's
    // parameters (run_read_params).
    bool (*read_state)(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error);
    void (*share_state)(Trainer *t, TrainRun *run);                                 // once it is read; or NULL
    bool (*describe)(Trainer *t, TrainRun *run, RunMachine *machine, Error *error); // for run.json; or NULL
    void (*print_machine)(Trainer *t, TrainRun *run);

    bool (*train_step)(Trainer *t, TrainRun *run, Error *error);
    bool (*settle_step)(Trainer *t, TrainRun *run, Error *error); // logs a step whose results come late; or NULL
    bool (*check_state)(Trainer *t, TrainRun *run, Error *error); // before it is saved; or NULL
    bool (*write_state)(Trainer *t, CheckpointWriter *writer, Error *error);

    bool (*validate_batch)(Trainer *t, TrainRun *run, Round round, Error *error);
    double (*validation_loss)(Trainer *t, TrainRun *run, Round last); // the mean over all sequences
    void (*evaluate_batch)(Trainer *t, TrainRun *run, int which, Round round);
    const double *(*evaluation_means)(Trainer *t, TrainRun *run, int which, Round last); // of each row's losses

    float *(*begin_sample)(Trainer *t); // an empty sample; returns scratch memory of the sampler (V)
    void (*append_token)(Trainer *t, int token);
    const float *(*next_logits)(Trainer *t); // (V): of the token after the sample

    bool (*finish)(Trainer *t, TrainRun *run, const float **params, uint64_t *hash, Error *error); // for run_finish
    void (*close)(Trainer *t); // frees everything that the run has opened
} TrainerOps;

// The ranks of a run, as far as a run deals with them. `join` fills in the functions (llmc/ranks). A single rank needs
// no functions.
typedef struct {
    int rank, num_ranks;
    Comm *comm; // passed to each function
    bool (*agree)(Comm *comm, bool ok, Error *error);
    bool (*broadcast)(Comm *comm, void *data, int64_t bytes, Error *error); // from rank 0
    bool (*sum)(Comm *comm, uint64_t *values, int count, Error *error);
    bool (*any)(Comm *comm, bool mine, bool *any, Error *error);
    bool (*alike)(Comm *comm, const char *facts, size_t bytes, Error *error); // facts: name NUL value NUL ...
    bool (*is_broken)(const Comm *comm);                                      // no exchange can succeed any more
    void (*all_know)(Comm *comm, const Error *error);                         // all ranks have this error
    void (*slow)(Comm *comm, bool slow);                                      // tells the watch that this may take long
    void (*resumable)(Comm *comm, bool resumable);                            // tells the watch of a checkpoint
    void (*on_failure)(Comm *comm, void (*note)(void *context, const char *words), void *context);
    void (*fail)(Comm *comm, const Error *error); // the other ranks end with this error
    void (*close)(Comm *comm);
    bool (*prints)(const Comm *comm); // this process prints an error that all ranks have
} RunRanks;

#endif // LLMC_TRAINER_H
