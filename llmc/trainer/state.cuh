// Parameters and optimizer state of a trainer between the GPU and files: load, save, check, hash. A rank reads and
// writes its part of every bucket. Each piece of a tensor passes through pinned memory in fp32.
#ifndef LLMC_TRAINER_STATE_CUH
#define LLMC_TRAINER_STATE_CUH

#include "llmc/files/checkpoint.h"
#include "llmc/files/model_file.h"
#include "llmc/ranks/agree.h"
#include "llmc/trainer/update.cuh"

// Return an array of a checkpoint in fp32 and in the precision of training. The parameters may be both, and then the
// fp32 master weights count. Moments are one of them.
static inline Buckets<float> state_array(const Trainer *t, int array) {
    const Optimizer *o = &t->optimizer;
    return array == CHECKPOINT_PARAMS ? o->master : array == CHECKPOINT_ADAM_M ? o->m : o->v;
}
static inline Buckets<floatX> narrow_array(const Trainer *t, int array) {
    const Optimizer *o = &t->optimizer;
    return array == CHECKPOINT_PARAMS ? t->model.params : array == CHECKPOINT_ADAM_M ? o->m16 : o->v16;
}

// Tells whether an array has a piece: v leaves out the matrices that Muon updates.
static inline bool has_piece(const Trainer *t, int array, const ZeroPiece &piece) {
    return piece_element(&t->shards, state_array(t, array), piece) != NULL ||
           piece_element(&t->shards, narrow_array(t, array), piece) != NULL;
}

// ---- Loading ----

// Fills elements [first, first + n) of a fresh run's parameters, in the order of the parameter table: a model's file
// has them, or the initialisation draws them from the seed.
static inline bool init_params(TrainRun *run, int64_t first, int64_t n, float *out, Error *error) {
    if (run->model_file != NULL) { return model_file_read_range(run->model_file, first, n, out, error); }
    param_init_range(out, &run->config, (uint64_t)run->options->seed, first, n);
    return true;
}

// Copies a piece of an array from the staging memory to the GPU. A resumed run rounds its bf16 weights as its last
// update rounded them.
static inline void upload_piece(Trainer *t, const TrainRun *run, int array, const ZeroPiece &piece) {
    Shards *s = &t->shards;
    float *to = piece_element(s, state_array(t, array), piece);
    floatX *rounded = piece_element(s, narrow_array(t, array), piece);
    bool at_random = array == CHECKPOINT_PARAMS && run->updates > 0;
    int64_t n = piece.strips * piece.count, width = piece.strips > 1 ? piece.count : 0;
    if (to == NULL) { to = t->gpu.cublas_workspace; } // it is rounded only
    cuda_check(cudaMemcpyAsync(to, t->transfer.staging, (size_t)n * sizeof(float), cudaMemcpyDefault, s->stream));
    if (rounded != NULL) {
        params_from_master(rounded, to, n, piece.index, rounding_key((uint64_t)run->options->seed, run->updates),
                           at_random, s->stream, UPDATE_BLOCK, width, piece.stride);
    }
    wait_for_stream(s); // the staging memory is then free again
}

// Reads elements of a tensor from a checkpoint. The sums of all ranks must have each element once.
static inline bool read_elements(const Shards *s, CheckpointReader *reader, int array, const ZeroPiece &piece,
                                 int64_t in_file, float *to, Error *error) {
    CheckpointSums before = reader->sums;
    bool ok = checkpoint_read(reader, array, in_file, to, piece.count, error);
    if (!counts_tensor(s, piece.tensor)) { reader->sums = before; }
    return ok;
}

// Reads the state for run_load. A fresh run has no reader (NULL), and its optimizer state stays zero, as padding does.
inline bool trainer_read_state(Trainer *t, TrainRun *run, CheckpointReader *reader, Error *error) {
    bool moments = reader != NULL && !reader->skips_moments && t->model.shape.kind == RUN_TRAINS, ok = true;
    for (int array = 0; array < CHECKPOINT_ARRAYS; array++) {
        clear_buckets(&t->shards, state_array(t, array)), clear_buckets(&t->shards, narrow_array(t, array));
    }
    cuda_check(cudaMemsetAsync(t->stats.result, 0, sizeof(StepResult), t->gpu.stream));
    cuda_check(cudaMemsetAsync(t->stats.loss_sum, 0, sizeof(double), t->gpu.stream)); // this rank may count no losses
    for (int array = 0; ok && array < (moments ? CHECKPOINT_ARRAYS : 1); array++) {
        ok = visit_own_pieces(&t->shards, [&](const ZeroPiece &piece) {
            bool read = true;
            if (!has_piece(t, array, piece)) { return true; }
            comm_progress(t->shards.ranks, "loading");
            for (int64_t i = 0; read && i < piece.strips; i++) {
                int64_t in_file = piece.in_file + i * piece.stride;
                float *to = t->transfer.staging + i * piece.count;
                read = reader == NULL ? init_params(run, in_file, piece.count, to, error)
                                      : read_elements(&t->shards, reader, array, piece, in_file, to, error);
            }
            if (read) { upload_piece(t, run, array, piece); }
            return read;
        });
    }
    return ok;
}

// Gives ranks that keep an array whole the parts of all ranks. Every rank has loaded its part.
static inline void share_bucket(Trainer *t, int bucket) {
    Shards *s = &t->shards;
    auto share = [&](auto array) {
        if (array.data == NULL || array.parts) { return; }
        if (array.rest && zero_kind(&s->layout, bucket) == ZERO_BLOCK) {
            gather_rest(s, array, bucket);
        } else {
            gather_bucket(s, whole_bucket(s, array, bucket), bucket, NULL);
        }
    };
    for (int array = 0; array < CHECKPOINT_ARRAYS; array++) {
        share(state_array(t, array)), share(narrow_array(t, array));
    }
}

static inline void share_state(Trainer *t) {
    Shards *s = &t->shards;
    if (shares_buckets(s)) {
        communicate_after_compute(s);
        for (int b = 0; b < s->layout.num_buckets; b++) { share_bucket(t, b); }
        compute_after_communicate(s);
    }
    forget_fetched(s);
    quantize_all_weights(&t->model, &t->gpu);
    wait_for_stream(s);
}

// ---- Saving ----

// Calls visit(values, in_file, n) for what this rank's part of an array has, once for each element among all ranks.
// phase: for the watch.
template <class Visit> static inline bool download_state(Trainer *t, int array, const char *phase, Visit visit) {
    Shards *s = &t->shards;
    return visit_own_pieces(s, [&](const ZeroPiece &piece) {
        float *staging = t->transfer.staging;
        const float *from = piece_element(s, state_array(t, array), piece);
        int64_t n = piece.strips * piece.count;
        bool ok = true;
        if (!counts_tensor(s, piece.tensor) || !has_piece(t, array, piece)) { return true; }
        comm_progress(s->ranks, "%s", phase);
        if (from != NULL) {
            download(s, staging, from, n);
        } else {
            download(s, staging, piece_element(s, narrow_array(t, array), piece), n);
        }
        for (int64_t i = 0; ok && i < piece.strips; i++) {
            ok = visit(staging + i * piece.count, piece.in_file + i * piece.stride, piece.count);
        }
        return ok;
    });
}

// Writes this rank's part of the arrays that a save has.
inline bool trainer_write_state(Trainer *t, CheckpointWriter *writer, Error *error) {
    bool ok = true;
    for (int array = 0; ok && array < writer->num_arrays; array++) {
        ok = download_state(t, array, "saving", [&](const float *from, int64_t in_file, int64_t n) {
            return checkpoint_write(writer, array, in_file, from, n, error);
        });
    }
    return ok;
}

// Computes the SUM64 of the fp32 parameters in the order of files. It does not depend on the number of ranks.
static inline bool hash_params(Trainer *t, uint64_t *hash, Error *error) {
    *hash = 0;
    download_state(t, CHECKPOINT_PARAMS, "the end", [&](const float *from, int64_t in_file, int64_t n) {
        *hash += sum64(in_file, from, n);
        return true;
    });
    return comm_sum_u64(t->shards.ranks, hash, 1, error);
}

// Compares this rank's checksum with that of its leader, the first rank that should have equal bits.
static inline bool compare_checksum(Trainer *t, const TrainRun *run, int leader, Error *error) {
    cuda_check(cudaMemcpyAsync(t->transfer.host_checksum, t->transfer.checksum, sizeof(uint64_t),
                               cudaMemcpyDeviceToHost, t->gpu.stream));
    wait_for_stream(&t->shards);
    return comm_check_replicas(t->shards.ranks, *t->transfer.host_checksum, leader, run->step, error);
}

// Compares what this rank holds of some tensors, of parameters and state, with its leader.
template <class Wanted>
static inline bool compare_tensors(Trainer *t, const TrainRun *run, int leader, Error *error, Wanted wanted) {
    cuda_check(cudaMemsetAsync(t->transfer.checksum, 0, sizeof(uint64_t), t->gpu.stream));
    auto add = [&](auto array, const ZeroPiece &piece) {
        const auto *data = piece_element(&t->shards, array, piece);
        int64_t bytes = piece.strips * piece.count * (int64_t)sizeof(*data);
        if (data != NULL) { add_checksum(t->transfer.checksum, data, bytes, t->gpu.stream); }
    };
    visit_own_pieces(&t->shards, [&](const ZeroPiece &piece) {
        if (!wanted(piece.tensor)) { return true; }
        for (int array = 0; array < CHECKPOINT_ARRAYS; array++) {
            add(state_array(t, array), piece), add(narrow_array(t, array), piece);
        }
        return true;
    });
    return compare_checksum(t, run, leader, error);
}

// Checks that what several ranks hold has equal bits on them: arrays that are whole on the ranks that share buckets,
// tensors that tensor parallelism does not split, and the token embedding on the first and the last stage of a
// pipeline. A memory or network fault shows here. Waits for all parameters. Call it before parameters are saved or
// hashed.
inline bool trainer_check_state(Trainer *t, TrainRun *run, Error *error) {
    bool replicas = shares_buckets(&t->shards) && !t->model.params.parts;
    await_parameters(&t->model, &t->gpu, &t->shards);
    sum_weights(t);
    auto add = [&](auto array) {
        int64_t bytes = buckets_length(&t->shards, array) * (int64_t)sizeof(*array.data);
        if (replicas && bytes > 0 && !array.parts) {
            add_checksum(t->transfer.checksum, array.data, bytes, t->gpu.stream);
        }
    };
    const Optimizer *o = &t->optimizer;
    add(o->master), add(o->m), add(o->v), add(o->m16), add(o->v16);
    if (replicas && !compare_checksum(t, run, t->shards.data.leader, error)) { return false; }
    const Shards *shards = &t->shards;
    if (shards->tensor.size > 1 &&
        !compare_tensors(t, run, shards->tensor.leader, error, [](int i) { return !param_is_split(i); })) {
        return false;
    }
    if (shards->pipe.size == 1 || !part_is_tied(&shards->layout.part)) { return true; }
    bool has = shards->ends.size > 1;
    return compare_tensors(t, run, has ? shards->ends.leader : shards->all.rank, error,
                           [has](int i) { return has && i == PARAM_wte; });
}

#endif // LLMC_TRAINER_STATE_CUH
