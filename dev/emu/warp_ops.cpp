// Implements what the lanes of a warp do together (shuffles, votes, ldmatrix, mma), cp.async, and atomics.
#include "access.h"
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"

#include <math.h>
#include <string.h>
#include <algorithm>
#include <numeric>

namespace emu {

// ---- Shuffles and votes ----

struct ShuffleLane {
    uint64_t bits, result;
    int source; // the lane to read; -1: it is outside of the segment, and the lane keeps its own value
};

static int source_lane(Shuffle kind, int lane, int operand, int width) {
    int first = lane & ~(width - 1), source = 0; // a width is a power of two
    switch (kind) {
    case SHUFFLE_INDEX: return first + (operand & (width - 1));
    case SHUFFLE_UP: source = lane - operand; return source < first ? -1 : source;
    case SHUFFLE_DOWN: source = lane + operand; return source >= first + width ? -1 : source;
    case SHUFFLE_XOR: source = lane ^ operand; return source >= first + width ? -1 : source;
    }
    return -1;
}

static void do_shuffle(void **deposits, unsigned mask) {
    for (unsigned left = mask; left; left &= left - 1) {
        ShuffleLane *lane = static_cast<ShuffleLane *>(deposits[__builtin_ctz(left)]);
        const ShuffleLane *from = lane->source < 0 ? lane : static_cast<ShuffleLane *>(deposits[lane->source]);
        lane->result = from->bits;
    }
}

uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t bits, int operand, int width, const char *file, int line) {
    static const char *const names[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"};
    const char *name = names[kind];
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
        report({file, line}, format("%s with width %d, expected 1, 2, 4, 8, 16 or 32", name, width));
    }
    int me = now.thread ? now.thread->lane : 0;
    ShuffleLane lane = {bits, 0, source_lane(kind, me, operand, width)};
    if (lane.source >= 0 && !(mask >> lane.source & 1)) {
        report({file, line},
               format("%s with mask 0x%08x reads lane %d, which the mask does not name", name, mask, lane.source));
    }
    gather(name, mask, &lane, do_shuffle, {file, line});
    return lane.result;
}

struct VoteLane {
    uint64_t value;
    unsigned result;
};

static void do_ballot(void **deposits, unsigned mask) {
    unsigned ballot = 0;
    for (unsigned left = mask; left; left &= left - 1) {
        int lane = __builtin_ctz(left);
        ballot |= static_cast<unsigned>(static_cast<VoteLane *>(deposits[lane])->value) << lane;
    }
    for (unsigned left = mask; left; left &= left - 1) {
        static_cast<VoteLane *>(deposits[__builtin_ctz(left)])->result = ballot;
    }
}

unsigned vote(Vote kind, unsigned mask, int predicate, const char *file, int line) {
    static const char *const names[] = {"__ballot_sync", "__any_sync", "__all_sync"};
    VoteLane lane = {predicate != 0, 0};
    gather(names[kind], mask, &lane, do_ballot, {file, line});
    if (kind == VOTE_BALLOT) { return lane.result; }
    return kind == VOTE_ANY ? lane.result != 0 : lane.result == mask;
}

static unsigned combined(Reduction kind, unsigned a, unsigned b) {
    switch (kind) {
    case REDUCE_ADD: return a + b;
    case REDUCE_MIN: return b < a ? b : a;
    case REDUCE_MAX: return a < b ? b : a;
    case REDUCE_AND: return a & b;
    case REDUCE_OR: return a | b;
    case REDUCE_XOR: return a ^ b;
    }
    return a;
}

template <Reduction KIND> static void do_reduce(void **deposits, unsigned mask) {
    auto value = [=](unsigned left) {
        return static_cast<unsigned>(static_cast<VoteLane *>(deposits[__builtin_ctz(left)])->value);
    };
    unsigned result = value(mask);
    for (unsigned left = mask & (mask - 1); left; left &= left - 1) { result = combined(KIND, result, value(left)); }
    for (unsigned left = mask; left; left &= left - 1) {
        static_cast<VoteLane *>(deposits[__builtin_ctz(left)])->result = result;
    }
}

unsigned reduce(Reduction kind, unsigned mask, unsigned value, const char *file, int line) {
    static const char *const names[] = {"__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                        "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync"};
    static const Work works[] = {do_reduce<REDUCE_ADD>, do_reduce<REDUCE_MIN>, do_reduce<REDUCE_MAX>,
                                 do_reduce<REDUCE_AND>, do_reduce<REDUCE_OR>,  do_reduce<REDUCE_XOR>};
    VoteLane lane = {value, 0};
    gather(names[kind], mask, &lane, works[kind], {file, line});
    return lane.result;
}

static void do_match(void **deposits, unsigned mask) {
    for (unsigned left = mask; left; left &= left - 1) {
        VoteLane *lane = static_cast<VoteLane *>(deposits[__builtin_ctz(left)]);
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            int other = __builtin_ctz(rest);
            bool equal = static_cast<VoteLane *>(deposits[other])->value == lane->value;
            lane->result |= equal ? 1u << other : 0;
        }
    }
}

unsigned match(unsigned mask, uint64_t value, const char *file, int line) {
    VoteLane lane = {value, 0};
    gather("__match_any_sync", mask, &lane, do_match, {file, line});
    return lane.result;
}

// ---- ldmatrix ----

struct MatrixLane {
    const void *row;
    uint32_t *r;
    Source at;
};

static uint16_t element(const MatrixLane *const *lanes, int matrix, int row, int column) {
    uint16_t value;
    memcpy(&value, static_cast<const char *>(lanes[8 * matrix + row]->row) + 2 * column, sizeof(value));
    return value;
}

template <int N, bool TRANSPOSED> static void do_ldmatrix(void **deposits, unsigned) {
    MatrixLane **lanes = reinterpret_cast<MatrixLane **>(deposits);
    for (int l = 0; l < WARP_LANES; l++) {
        int a = l / 4, b = 2 * (l % 4);
        for (int i = 0; i < N; i++) {
            uint32_t low = TRANSPOSED ? element(lanes, i, b, a) : element(lanes, i, a, b);
            uint32_t high = TRANSPOSED ? element(lanes, i, b + 1, a) : element(lanes, i, a, b + 1);
            lanes[l]->r[i] = high << 16 | low;
        }
    }
}

void load_matrices(uint32_t *r, int matrices, bool transposed, const void *row, const char *file, int line) {
    static const char *const names[] = {"ldmatrix.x1",       "ldmatrix.x1.trans", "ldmatrix.x2",
                                        "ldmatrix.x2.trans", "ldmatrix.x4",       "ldmatrix.x4.trans"};
    static const Work works[] = {do_ldmatrix<1, false>, do_ldmatrix<1, true>,  do_ldmatrix<2, false>,
                                 do_ldmatrix<2, true>,  do_ldmatrix<4, false>, do_ldmatrix<4, true>};
    const int kind = matrices / 2 * 2 + transposed;
    const Source at = {file, line};
    if (now.thread && now.thread->lane < 8 * matrices) { // the addresses of the remaining lanes are not used
        check_shared_address(names[kind], row, at);
        check_access_at(row, 16, 16, READ, at, EMU_CALLER);
    }
    MatrixLane lane = {row, r, at};
    gather(names[kind], ~0u, &lane, works[kind], at);
}

void check_shared_address(const char *name, const void *pointer, Source at) {
    if (in_shared_arena(pointer)) { return; }
    report(at, format("%s with an address outside of shared memory: %p", name, pointer));
}

static void only_meet(void **, unsigned) {}

void wmma_meet(const char *name, const void *matrix, size_t row_bytes, const char *file, int line) {
    if (reinterpret_cast<uintptr_t>(matrix) % 32 || row_bytes % 16) {
        report({file, line}, format("misaligned %s: %p must be a multiple of 32, and %zu bytes a row of 16", name,
                                    matrix, row_bytes));
    }
    gather(name, ~0u, nullptr, only_meet, {file, line});
}

// ---- mma: gather the fragments into matrices, multiply, and hand the result out ----

struct MmaLane {
    float *d;
    const uint32_t *a, *b;
    const float *c;
};

static float tf32_to_float(uint32_t bits) { return bit_cast<float>(bits & 0xffffe000u); } // hardware ignores the rest

float float_of_half(uint16_t bits) { return Half::value(bits); }
uint16_t half_of_float(float x) { return Half::round(x, NEAREST_EVEN); }

// K products are added to c in the order of k.
template <int K> static void multiply(MmaLane **lanes, const float (&A)[16][K], const float (&B)[K][8]) {
    float D[16][8];
    for (int l = 0; l < WARP_LANES; l++) {
        for (int i = 0; i < 4; i++) { D[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2] = lanes[l]->c[i]; }
    }
    for (int m = 0; m < 16; m++) {
        for (int k = 0; k < K; k++) {
            for (int n = 0; n < 8; n++) { D[m][n] += A[m][k] * B[k][n]; }
        }
    }
    for (int l = 0; l < WARP_LANES; l++) {
        for (int i = 0; i < 4; i++) { lanes[l]->d[i] = D[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2]; }
    }
}

template <float convert(uint16_t)> static void do_mma_16_bit(void **deposits, unsigned) {
    MmaLane **lanes = reinterpret_cast<MmaLane **>(deposits);
    float A[16][16], B[16][8];
    for (int l = 0; l < WARP_LANES; l++) {
        int group = l / 4, pair = 2 * (l % 4);
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 4; i++) {
                uint16_t bits = static_cast<uint16_t>(lanes[l]->a[i] >> (16 * half));
                A[group + 8 * (i % 2)][pair + 8 * (i / 2) + half] = convert(bits);
            }
            for (int i = 0; i < 2; i++) {
                uint16_t bits = static_cast<uint16_t>(lanes[l]->b[i] >> (16 * half));
                B[pair + 8 * i + half][group] = convert(bits);
            }
        }
    }
    multiply<16>(lanes, A, B);
}

static void do_mma_tf32(void **deposits, unsigned) {
    MmaLane **lanes = reinterpret_cast<MmaLane **>(deposits);
    float A[16][8], B[8][8];
    for (int l = 0; l < WARP_LANES; l++) {
        int group = l / 4, k = l % 4;
        for (int i = 0; i < 4; i++) { A[group + 8 * (i % 2)][k + 4 * (i / 2)] = tf32_to_float(lanes[l]->a[i]); }
        for (int i = 0; i < 2; i++) { B[k + 4 * i][group] = tf32_to_float(lanes[l]->b[i]); }
    }
    multiply<8>(lanes, A, B);
}

void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                       const char *file, int line) {
    MmaLane lane = {d, a, b, c};
    gather("mma.m16n8k16.bf16", ~0u, &lane, do_mma_16_bit<Bf16::value>, {file, line});
}
void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                      const char *file, int line) {
    MmaLane lane = {d, a, b, c};
    gather("mma.m16n8k16.f16", ~0u, &lane, do_mma_16_bit<float_of_half>, {file, line});
}
void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4],
                      const char *file, int line) {
    MmaLane lane = {d, a, b, c};
    gather("mma.m16n8k8.tf32", ~0u, &lane, do_mma_tf32, {file, line});
}

static_assert(ptx::SHARED_BEGIN == SHARED, "what the lower 32 bits of an address leave out");

// ---- cp.async ----

void cp_async(void *shared, const void *global, int bytes, int src_bytes, const char *file, int line) {
    Source at = {file, line};
    size_t size = static_cast<size_t>(bytes);
    if (!in_kernel()) { report(at, "cp.async called by host code"); }
    check_shared_address("cp.async", shared, at);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || src_bytes < 0 || src_bytes > bytes) {
        report(at, format("cp.async of %d of %d bytes, expected 4, 8 or 16", src_bytes, bytes));
    }
    if (reinterpret_cast<uintptr_t>(shared) % size || reinterpret_cast<uintptr_t>(global) % size) {
        report(at,
               format("misaligned cp.async: addresses %p and %p are not both multiples of %d", shared, global, bytes));
    }
    check_access_at(shared, size, size, WRITE, at, EMU_CALLER);
    if (src_bytes > 0) { check_access_at(global, static_cast<size_t>(src_bytes), size, READ, at, EMU_CALLER); }
    meter_async_copy(static_cast<size_t>(src_bytes));
    memset(shared, 0xff, size); // the data has not arrived yet
    set_initialised(shared, size, false);
    now.block->copies_async = true;
    now.thread->copies.push_back({shared, global, bytes, src_bytes, at, EMU_CALLER});
}

void cp_async_commit() {
    Thread *me = now.thread;
    now.block->copies_async = true;
    const size_t grouped = std::accumulate(me->copy_groups.begin(), me->copy_groups.end(), size_t(0));
    me->copy_groups.push_back(me->copies.size() - grouped);
}

static void arrive(const AsyncCopy &copy) {
    size_t all = static_cast<size_t>(copy.bytes), bytes = static_cast<size_t>(copy.src_bytes);
    check_arrival({reinterpret_cast<uintptr_t>(copy.shared), all, WRITE, copy.pc, &copy.at});
    memcpy(copy.shared, copy.global, bytes);
    memset(static_cast<char *>(copy.shared) + bytes, 0, all - bytes);
}

void cp_async_wait_groups(int pending_groups) {
    Thread *me = now.thread;
    if (pending_groups < 0) { cp_async_commit(); }
    size_t keep = pending_groups < 0 ? 0 : static_cast<size_t>(pending_groups), arrived = 0;
    while (me->copy_groups.size() > keep) {
        arrived += me->copy_groups.front();
        me->copy_groups.erase(me->copy_groups.begin());
    }
    for (size_t i = 0; i < arrived; i++) { arrive(me->copies[i]); }
    me->copies.erase(me->copies.begin(), me->copies.begin() + static_cast<ptrdiff_t>(arrived));
}

// ---- Atomics ----

template <class T, class Function> static T update(T *address, Function function, Source at, uintptr_t pc) {
    check_access_at(address, sizeof(T), sizeof(T), ATOMIC, at, pc);
    if (fences_used) { publish_at(address); }
    T old = *address, wanted;
    do {
        wanted = function(old);
    } while (!__atomic_compare_exchange(address, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (fences_used) { acquire_at(address); }
    return old;
}

template <class T> static T updated(Atomic kind, T old, T value, T expected) {
    switch (kind) {
    case ATOMIC_ADD: return static_cast<T>(old + value);
    case ATOMIC_EXCHANGE: return value;
    case ATOMIC_SWAP_IF: return old == expected ? value : old;
    case ATOMIC_MIN: return value < old ? value : old;
    case ATOMIC_MAX: return old < value ? value : old;
    case ATOMIC_INC: return old >= value ? 0 : static_cast<T>(old + 1);
    case ATOMIC_DEC: return old == 0 || old > value ? value : static_cast<T>(old - 1);
    default: break;
    }
    if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(kind == ATOMIC_AND ? old & value : kind == ATOMIC_OR ? old | value : old ^ value);
    }
    return old;
}
template <class T> T atomic(Atomic kind, T *address, T value, T expected, const char *file, int line) {
    auto function = [=](T old) { return updated(kind, old, value, expected); };
    return update(address, function, {file, line}, EMU_CALLER);
}
#define EMU_DEFINE_ATOMIC(T) template T atomic(Atomic, T *, T, T, const char *, int);
EMU_DEFINE_ATOMIC(unsigned short)
EMU_DEFINE_ATOMIC(int)
EMU_DEFINE_ATOMIC(unsigned)
EMU_DEFINE_ATOMIC(long long)
EMU_DEFINE_ATOMIC(unsigned long long)
EMU_DEFINE_ATOMIC(float)
EMU_DEFINE_ATOMIC(double)

uint16_t atomic_add_bits(uint16_t *address, uint16_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line) {
    return update(
        address, [=](uint16_t old) { return add(old, value); }, {file, line}, EMU_CALLER);
}
uint32_t atomic_add_bits(uint32_t *address, uint32_t value, uint16_t (*add)(uint16_t, uint16_t), const char *file,
                         int line) {
    auto both = [=](uint32_t old) {
        uint32_t low = add(static_cast<uint16_t>(old), static_cast<uint16_t>(value));
        uint32_t high = add(static_cast<uint16_t>(old >> 16), static_cast<uint16_t>(value >> 16));
        return high << 16 | low;
    };
    return update(address, both, {file, line}, EMU_CALLER);
}

} // namespace emu
