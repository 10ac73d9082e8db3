// Parameters and optimizer state of a trainer: load, save, check, hash.
#ifndef LLMC_TRAINER_STATE_CUH
#define LLMC_TRAINER_STATE_CUH

#include "llmc/files/checkpoint.h"
#include "llmc/files/model_file.h"
#include "llmc/ranks/agree.h"
#include "llmc/ranks/gpu_state.cuh"
#include "llmc/trainer/update.cuh"

// Collects parameters and optimizer state for llmc/ranks/gpu_state.cuh.
static inline ModelState state_of(Trainer *t) {
    ModelState state = {&t->shards,     t->model.params,     t->optimizer.master,    t->optimizer.m,
                        t->optimizer.v, t->transfer.staging, t->gpu.cublas_workspace};
    return state;
}

// Fills elements [first, first + n) of a fresh run's parameters, in the order of the parameter table: a model's file
// has them, or GPT-2's initialisation draws them from the seed.
static inline bool init_params(TrainRun *run, int64_t first, int64_t n, float *out, Error *error) {
    if (run->model_file != NULL) { return model_file_read_range(run->model_file, first, n, out, error); }
    param_init_range(out, &run->config, (uint64_t)run->options->seed, first, n);
    return true;
}

// Reads the state for run_load. A fresh run has no reader (NULL), and its optimizer state stays zero. A resumed run
// rounds its bf16 weights as its last update rounded them.
inline bool trainer_read_state(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error) {
    ModelState state = state_of(t);
    uint64_t key = rounding_key((uint64_t)run->options->seed, run->updates);
    bool rounds =
        t->optimizer.master.data != NULL && run->updates > 0; // without master weights the parameters are exact
    bool moments = reader != NULL && !reader->skips_moments && t->model.shape.kind == RUN_TRAINS;
    int arrays = moments ? CHECKPOINT_ARRAYS : 1;
    bool ok = true;
    state_clear(&state);
    cuda_check(cudaMemsetAsync(t->stats.result, 0, sizeof(StepResult), t->gpu.stream));
    for (int array = 0; ok && array < arrays; array++) {
        auto read = [&](float *to, int64_t in_file, int64_t n) {
            return reader == NULL ? init_params(run, in_file, n, to, error)
                                  : checkpoint_read(reader, array, in_file, to, n, error);
        };
        auto make_params = [&](floatX *params, const float *fp32, int64_t n, int64_t index) {
            params_from_master(params, fp32, n, index, key, rounds, t->gpu.stream);
        };
        ok = state_upload(&state, array, read, make_params);
    }
    return ok;
}

// Gives every rank the parameters that it needs, after each rank has loaded its part.
static inline void share_state(Trainer *t, TrainRun *run) {
    (void)run;
    ModelState state = state_of(t);
    state_share(&state);
    quantize_all_weights(&t->model, &t->gpu);
    wait_for_stream(&t->shards);
}

// Writes this rank's part of all arrays for run_save.
inline bool trainer_write_state(Trainer *t, CheckpointWriter *writer, Error *error) {
    ModelState state = state_of(t);
    bool ok = true;
    for (int array = 0; ok && array < CHECKPOINT_ARRAYS; array++) {
        ok = state_download(&state, array, "saving", [&](const float *from, int64_t in_file, int64_t n) {
            return checkpoint_write(writer, array, in_file, from, n, error);
        });
    }
    return ok;
}

// Computes the SUM64 of the fp32 parameters in the order of files. It does not depend on the number of ranks.
static inline bool hash_params(Trainer *t, uint64_t *hash, Error *error) {
    ModelState state = state_of(t);
    *hash = 0;
    state_download(&state, CHECKPOINT_PARAMS, "the end", [&](const float *from, int64_t in_file, int64_t n) {
        *hash += sum64(in_file, from, n);
        return true;
    });
    return comm_sum_u64(t->shards.ranks, hash, 1, error);
}

// Checks that arrays which every rank holds whole have equal bits on all ranks. A memory or network fault shows here.
// Waits for all parameters. Call it before parameters are saved or hashed.
inline bool trainer_check_state(Trainer *t, TrainRun *run, Error *error) {
    if (!has_peers(&t->shards) || t->model.params.parts) { return true; }
    const Buckets<float> state[] = {t->optimizer.master, t->optimizer.m, t->optimizer.v};
    await_parameters(&t->model, &t->gpu, &t->shards);
    sum_weights(t);
    for (const Buckets<float> &array : state) {
        if (array.data == NULL || array.parts) { continue; }
        add_checksum(t->transfer.checksum, array.data, buckets_length(&t->shards, array) * (int64_t)sizeof(float),
                     t->gpu.stream);
    }
    cuda_check(cudaMemcpyAsync(t->transfer.host_checksum, t->transfer.checksum, sizeof(uint64_t),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    return comm_check_replicas(t->shards.ranks, *t->transfer.host_checksum, run->step, error);
}

#endif // LLMC_TRAINER_STATE_CUH
