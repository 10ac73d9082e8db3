// What a run calls of the trainer that computes: plain functions, which the trainer's main file defines.
//
// The trainers differ in a batch of an evaluation: the GPU works on it while the host queues the next one. And in the
// logits of a sample: the CPU keeps keys and values, the GPU computes the whole window, which needs no other kernels.
#ifndef LLMC_TRAINER_H
#define LLMC_TRAINER_H

#include "llmc/run/signals.h"

typedef struct Trainer Trainer;                   // a trainer's own, passed to its functions
typedef struct TrainRun TrainRun;                 // llmc/run/train_run.h
typedef struct CheckpointReader CheckpointReader; // llmc/files/checkpoint.h
typedef struct CheckpointWriter CheckpointWriter;

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
    int rounds_ahead; // evaluation rounds that are queued and not done when trainer_evaluate_batch returns
    StopRequest *stop;
    void (*on_signal)(int number); // passes the signal on to `stop`
} TrainerFacts;

extern const TrainerFacts trainer_facts;

// All ranks call each of these functions at once.

// Reads the parameters and moments that this rank owns from a checkpoint. reader NULL: fills a fresh run's parameters.
bool trainer_read_state(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error);
bool trainer_check_state(Trainer *t, TrainRun *run, Error *error); // before it is saved: all ranks hold equal bits
bool trainer_write_state(Trainer *t, CheckpointWriter *writer, Error *error);

bool trainer_validate_batch(Trainer *t, TrainRun *run, Round round, Error *error);
double trainer_validation_loss(Trainer *t, TrainRun *run, Round last); // the mean over all sequences
void trainer_evaluate_batch(Trainer *t, TrainRun *run, int which, Round round);
const double *trainer_evaluation_means(Trainer *t, TrainRun *run, int which, Round last); // of each sequence's losses

float *trainer_begin_sample(Trainer *t); // an empty sample; returns scratch memory of the sampler (V)
void trainer_append_token(Trainer *t, int token);
const float *trainer_next_logits(Trainer *t); // (V): of the token after the sample

#endif // LLMC_TRAINER_H
