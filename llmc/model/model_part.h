// The part of a model that one rank holds. Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM") splits the layers
// over tp ranks: each has NH/tp heads, F/tp channels of the MLP and Vp/tp tokens. A pipeline gives each of its stages
// some of the layers. So a rank's part is itself a model with smaller dimensions, `local`, and sizes, plans and kernels
// follow from them. Only files, the initialisation and the rounding of weights ask where an element lies in the whole
// model.
//
// A pipeline cuts the layers into stages * chunks pieces, and chunk c of stage s is piece c * stages + s (schedule.h).
// A stage numbers its layers from 0, chunk by chunk. The embedding belongs to the first piece, the head to the last. A
// tied head shares the embedding's weights, and then the last stage has a copy of them.
#ifndef LLMC_MODEL_PART_H
#define LLMC_MODEL_PART_H

#include "llmc/model/params.h"

// Which part: of how many ranks on each axis, and this rank's place there.
typedef struct {
    int tp, tp_rank;
    int stages, stage, chunks;
} PartPlace;

typedef struct {
    ModelConfig whole, local;
    PartPlace at;
} ModelPart;

// ---- Layers ----

static inline int part_num_pieces(const PartPlace *at) { return at->stages * at->chunks; }

// Returns the first layer of a piece, as the whole model counts. Pieces may be uneven, by one layer at most.
static inline int part_first_of_piece(const ModelPart *p, int piece) {
    return (int)((int64_t)piece * p->whole.num_layers / part_num_pieces(&p->at));
}
static inline int part_first_of_chunk(const ModelPart *p, int chunk) {
    return part_first_of_piece(p, chunk * p->at.stages + p->at.stage);
}
static inline int part_chunk_layers(const ModelPart *p, int chunk) {
    return part_first_of_piece(p, chunk * p->at.stages + p->at.stage + 1) - part_first_of_chunk(p, chunk);
}

// Returns the first layer of a chunk, as this stage counts; for chunk = chunks, how many layers the stage has.
static inline int part_chunk_begin(const ModelPart *p, int chunk) {
    int begin = 0;
    for (int c = 0; c < chunk; c++) { begin += part_chunk_layers(p, c); }
    return begin;
}

// Returns the most layers of a chunk.
static inline int part_most_layers(const ModelPart *p) {
    int most = 0;
    for (int c = 0; c < p->at.chunks; c++) { most = (int)max_i64(most, part_chunk_layers(p, c)); }
    return most;
}

// Returns what number a layer of this stage has in the whole model.
static inline int part_whole_layer(const ModelPart *p, int layer) {
    int chunk = 0;
    while (layer >= part_chunk_begin(p, chunk + 1)) { chunk++; }
    return part_first_of_chunk(p, chunk) + layer - part_chunk_begin(p, chunk);
}

static inline bool part_begins(const ModelPart *p) { return p->at.stage == 0; }
static inline bool part_ends(const ModelPart *p) { return p->at.stage == p->at.stages - 1; }

// Tells whether the head's weights are the embedding's: no tensor of the model's own is the head.
static inline bool part_is_tied(const ModelPart *p) {
    int64_t head = 0;
    for (int i = 0; i < NUM_PARAM_TENSORS; i++) {
        if (param_specs[i].rows == DIM_HEAD) { head += param_size(&p->whole, i); }
    }
    return head == 0;
}

// Tells whether this stage has a copy of the first stage's token embedding, for a tied head.
static inline bool part_has_copy(const ModelPart *p) { return part_ends(p) && !part_begins(p) && part_is_tied(p); }

static inline bool part_shares_embedding(const ModelPart *p) {
    return p->at.stages > 1 && (part_begins(p) || part_ends(p)) && part_is_tied(p);
}

// ---- Tensors ----

// Describes a rank's part. The tp ranks divide the KV heads, the width of the MLP and the padded vocabulary, and each
// piece has a layer. The last ranks of a tensor group may have padding for tokens only: local.vocab_size is then 0.
static inline ModelPart model_part(const ModelConfig *whole, PartPlace at) {
    ModelPart part = {*whole, *whole, at};
    ModelConfig *local = &part.local;
    local->num_heads /= at.tp, local->num_kv_heads /= at.tp, local->mlp_width /= at.tp;
    local->padded_vocab_size /= at.tp;
    int64_t first = (int64_t)at.tp_rank * local->padded_vocab_size;
    local->vocab_size = (int)max_i64(0, min_i64(whole->vocab_size - first, local->padded_vocab_size));
    local->num_layers = part_chunk_begin(&part, at.chunks);
    return part;
}

// The part that is everything.
static inline ModelPart model_whole(const ModelConfig *whole) {
    PartPlace at = {1, 0, 1, 0, 1};
    return model_part(whole, at);
}

// Returns the elements of one layer of tensor i, of the whole model and of the part.
static inline int64_t whole_size(const ModelPart *p, int i) {
    return param_rows(&p->whole, i) * param_cols(&p->whole, i);
}
static inline int64_t part_size(const ModelPart *p, int i) {
    ParamPlace place = param_specs[i].place;
    bool here = place == PER_LAYER || (place == AT_START ? part_begins(p) : part_ends(p));
    here = here || (i == PARAM_wte && part_has_copy(p));
    return here ? param_rows(&p->local, i) * param_cols(&p->local, i) : 0;
}

// Tells whether ranks of tensor parallelism hold different parts of tensor i. All of them hold all of other tensors.
static inline bool param_is_split(int i) { return param_specs[i].split != SPLIT_WHOLE; }

// Says where one layer of a tensor lies in the whole tensor: in strips of `width` elements, `stride` apart, from
// element `first` on. Element e of the rank's part is element first + e / width * stride + e % width of the tensor.
typedef struct {
    int64_t width, stride, first;
} ParamStrips;

static inline ParamStrips param_strips(const ModelPart *part, int i) {
    ParamSplit split = part->at.tp == 1 ? SPLIT_WHOLE : param_specs[i].split;
    int64_t rows = param_rows(&part->local, i), size = rows * param_cols(&part->local, i);
    int64_t strips = split == SPLIT_COLS ? rows : split == SPLIT_THIRDS ? 3 : 1;
    int64_t width = size / strips, ranks = split == SPLIT_WHOLE ? 1 : part->at.tp;
    ParamStrips s = {width, width * ranks, split == SPLIT_WHOLE ? 0 : part->at.tp_rank * width};
    return s;
}

#endif // LLMC_MODEL_PART_H
