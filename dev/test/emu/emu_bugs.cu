// One planted bug for each mistake that the emulator reports. BUG(name) runs with the mistake and without, each time in
// a process of its own, `emu_bugs NAME 1` and `emu_bugs NAME 0`: the bug must end with status 1 and exactly the report
// before it (see emu_reports.h), and the code without it must end with status 0 and say nothing.
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cudnn.h>
#include <assert.h>
#include <cooperative_groups.h>
#include <emu.h>
#include <emu_ptx.h>
#include <mma.h>
#include <thread>

#include "dev/test/emu/emu_reports.h"
#include "dev/test/test_main.h"

#define FULL 0xffffffffu
using namespace nvcuda;
namespace cg = cooperative_groups;

static void test_bug(Test *t);

struct Bug {
    void (*function)(bool bug);
    TestCase test;
    Bug(const char *name, void (*f)(bool), int line)
        : function(f), test{name, __FILE__, line, test_bug, this, nullptr} {
        test_add(&test);
    }
};
#define BUG(name)                                                                                                      \
    static void bug_##name(bool bug);                                                                                  \
    static Bug name##_bug(#name, bug_##name, __LINE__);                                                                \
    static void bug_##name(bool bug)

// In device memory, all zero.
template <class T = float> static T *zeros(size_t n) {
    T *data;
    cudaMalloc(&data, n * sizeof(T));
    cudaMemset(data, 0, n * sizeof(T));
    return data;
}

template <class T = float> static T *unwritten(size_t n) {
    T *data;
    cudaMalloc(&data, n * sizeof(T));
    return data;
}

// ---- Races ----

//! emu: race in shared memory: write of 4 bytes in kernel shared_race[0,0] at @W
//!   thread (63,0,0) of block (0,0,0) read it at @R, and no __syncthreads is in between
//!   byte 0 of the shared variable tile of 256 bytes
__global__ void shared_race(float *out, bool bug) {
    __shared__ float tile[64];
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    tile[threadIdx.x] = threadIdx.x; // @W
    if (!bug) { __syncthreads(); }
    out[threadIdx.x] = tile[63 - threadIdx.x]; // @R
}
BUG(shared_race) { shared_race<<<1, 64>>>(zeros(64), bug); } // @L

//! emu: race in shared memory: write of 4 bytes in kernel shared_overwrite[0,32] at @W
//!   thread (63,0,0) of block (0,0,0) read it at @R, and no __syncwarp or __syncthreads is in between
//!   byte 0 of the shared variable total of 4 bytes
__global__ void shared_overwrite(float *out, bool bug) {
    __shared__ float total;
    if (threadIdx.x == 0) { total = 1.0f; }
    __syncthreads();
    out[threadIdx.x] = total; // @R
    if (!bug) { __syncthreads(); }
    if (threadIdx.x == 32) { total = 2.0f; } // @W
}
BUG(shared_overwrite) { shared_overwrite<<<1, 64>>>(zeros(64), bug); } // @L

//! emu: race in shared memory: read of 4 bytes in kernel warp_race[0,31] at @R
//!   thread (30,0,0) of block (0,0,0) wrote it at @W, and no __syncwarp or __syncthreads is in between
//!   byte 120 of the 128 bytes of dynamic shared memory
__global__ void warp_race(int *out, bool bug) {
    extern __shared__ int slots[];
    int lane = threadIdx.x;
    slots[lane] = lane;                       // @W
    int sum = __shfl_xor_sync(FULL, lane, 1); // brings the lanes together, but orders no memory
    if (!bug) { __syncwarp(); }
    out[lane] = sum + slots[lane ^ 1]; // @R
}
BUG(warp_race) { warp_race<<<1, 32, 32 * sizeof(int)>>>(zeros<int>(32), bug); } // @L

//! emu: race in device memory: write of 4 bytes in kernel block_race[1,0] at @W
//!   thread (0,0,0) of block (0,0,0) wrote it at @W, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 8 bytes at %x
__global__ void block_race(float *out, bool bug) { out[bug ? 0 : blockIdx.x] = 1.0f; } // @W
BUG(block_race) {
    float *out = zeros(2);
    block_race<<<2, 1>>>(out, bug); // @L
    block_race<<<2, 1>>>(out, false);
}

//! emu: race in device memory: write of 4 bytes in kernel block_overwrite[0,0] at @W
//!   thread (0,0,0) of block (2,0,0) read it at @R, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 12 bytes at %x
__global__ void block_overwrite(float *data, bool bug) {
    float sum = 0.0f;
    for (int i = 0; i < 3; i++) { sum += data[i]; } // @R
    if (blockIdx.x == 0 && bug) { data[0] = sum; }  // @W
}
BUG(block_overwrite) {
    float *data = zeros(3);
    emu::set_schedule("reversed");
    block_overwrite<<<3, 1>>>(data, bug); // @L
    emu::set_schedule("forward");
    block_overwrite<<<1, 1>>>(data, true);
}

//! emu: race in device memory: read of 4 bytes in kernel thread_race[0,1] at @R
//!   thread (0,0,0) of block (0,0,0) wrote it at @W, and no __syncwarp or __syncthreads is in between
//!   0 bytes into the allocation of 256 bytes at %x
__global__ void thread_race(float *data, bool bug) {
    data[threadIdx.x] = 1.0f; // @W
    if (!bug) { __syncthreads(); }
    float left = threadIdx.x > 0 ? data[threadIdx.x - 1] : 0.0f; // @R
    __syncthreads();
    data[threadIdx.x] = left;
}
BUG(thread_race) { thread_race<<<1, 64>>>(zeros(64), bug); } // @L

//! emu: race in device memory: atomic access of 4 bytes in kernel atomic_race[1,0] at @W
//!   thread (0,0,0) of block (0,0,0) read it at @R, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void atomic_race(int *counter, int *out, bool bug) {
    int count = atomicAdd(counter, 1); // @W
    if (bug) { count = *counter; }     // @R
    out[blockIdx.x] = count;
}
BUG(atomic_race) { atomic_race<<<2, 1>>>(zeros<int>(1), zeros<int>(2), bug); } // @L

// The last block to arrive adds up what the blocks have written. FENCE says where the __threadfence is.
enum Fence { NO_FENCE, BEFORE_WRITE, BEFORE_ATOMIC, BEFORE_BARRIER };

template <Fence FENCE> __global__ void last_block(float *out, float *parts, unsigned *count) {
    __shared__ bool last;
    if (FENCE == BEFORE_WRITE) { __threadfence(); }
    parts[blockIdx.x * blockDim.x + threadIdx.x] = 1.0f; // @P
    if (FENCE == BEFORE_BARRIER) { __threadfence(); }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (FENCE == BEFORE_ATOMIC) { __threadfence(); }
        last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) { return; }
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; b++) { sum += parts[b * blockDim.x + threadIdx.x]; } // @S
    out[threadIdx.x] = sum;
    parts[threadIdx.x] = sum;
}

//! emu: race in device memory: read of 4 bytes in kernel last_block<NO_FENCE>[2,31] at @S
//!   thread (31,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   124 bytes into the allocation of 768 bytes at %x
BUG(last_block_without_fence) {
    float *parts = zeros(192);
    unsigned *count = zeros<unsigned>(1);
    if (bug) { last_block<NO_FENCE><<<3, 64>>>(zeros(64), parts, count); } // @L
    last_block<BEFORE_ATOMIC><<<3, 64>>>(zeros(64), parts, count);
}

//! emu: race in device memory: read of 4 bytes in kernel last_block<BEFORE_WRITE>[2,31] at @S
//!   thread (31,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   124 bytes into the allocation of 768 bytes at %x
BUG(last_block_with_early_fence) {
    float *parts = zeros(192);
    unsigned *count = zeros<unsigned>(1);
    if (bug) { last_block<BEFORE_WRITE><<<3, 64>>>(zeros(64), parts, count); } // @L
    last_block<BEFORE_BARRIER><<<3, 64>>>(zeros(64), parts, count);
}

// One thread's fence does not cover what its neighbours write, unless a barrier is in between.
//! emu: race in device memory: read of 4 bytes in kernel fence_of_one[1,1] at @S
//!   thread (1,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   4 bytes into the allocation of 8 bytes at %x
__global__ void fence_of_one(int *out, int *parts, int *count, bool bug) {
    __shared__ bool last;
    if (blockIdx.x == 0) { parts[threadIdx.x] = 1; } // @P
    if (!bug) { __syncthreads(); }
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(count, 1) == 1;
    }
    __syncthreads();
    if (last) { out[threadIdx.x] = parts[threadIdx.x]; } // @S
}
BUG(fence_of_one) { fence_of_one<<<2, 2>>>(zeros<int>(2), zeros<int>(2), zeros<int>(1), bug); } // @L

// Only threads that meet the acquiring thread at a barrier know what it has acquired.
//! emu: race in device memory: read of 4 bytes in kernel acquired_by_one[1,1] at @S
//!   thread (0,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void acquired_by_one(int *out, int *part, int *count, bool bug) {
    if (blockIdx.x == 0 && threadIdx.x == 0) { *part = 1; } // @P
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(count, 1);
    }
    if (!bug) { __syncwarp(3); }
    if (blockIdx.x == 1 && threadIdx.x == 1) { *out = *part; } // @S
}
BUG(acquired_by_one) { acquired_by_one<<<2, 2>>>(zeros<int>(1), zeros<int>(1), zeros<int>(1), bug); } // @L

// A lock: the fence publishes the sum at the lock's address.
//! emu: race in device memory: read of 4 bytes in kernel locked_sum[1,0] at @S
//!   thread (0,0,0) of block (0,0,0) wrote it at @S, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void locked_sum(int *sum, int *lock, bool bug) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    *sum += 1; // @S
    if (!bug) { __threadfence(); }
    atomicExch(lock, 0);
}
BUG(locked_sum) { locked_sum<<<8, 1>>>(zeros<int>(1), zeros<int>(1), bug); } // @L

//! emu: race in device memory: write of 2 bytes in kernel half_race[1,0] at @W
//!   thread (31,0,0) of block (0,0,0) wrote it at @W, and nothing orders the blocks of a launch
//!   62 bytes into the allocation of 128 bytes at %x
__global__ void half_race(__nv_bfloat16 *out, int overlap) {                 // neighbours in a word are two places
    out[blockIdx.x * (32 - overlap) + threadIdx.x] = __float2bfloat16(1.0f); // @W
}
BUG(half_race) { half_race<<<2, 32>>>(zeros<__nv_bfloat16>(64), bug ? 1 : 0); } // @L

// A fence covers only what was written before it.
//! emu: race in device memory: read of 4 bytes in kernel early_fence[1,0] at @S
//!   thread (0,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void early_fence(int *out, int *part, int *count, bool bug) {
    if (bug) { __threadfence(); }
    if (blockIdx.x == 0) { *part = 1; } // @P
    if (!bug) { __threadfence(); }
    if (atomicAdd(count, 1) == 1) { *out = *part; } // @S
}
BUG(early_fence) { early_fence<<<2, 1>>>(zeros<int>(1), zeros<int>(1), zeros<int>(1), bug); } // @L

// The emulator keeps the first reader of a byte, and marks that there were others, in its warp or in another one. The
// last reader, who writes here, must not take the first one's place.
__global__ void last_reader_writes(float *out, bool bug) {
    __shared__ float total;
    if (threadIdx.x == 0) { total = 1.0f; }
    __syncthreads();
    out[threadIdx.x] = total; // @R
    if (!bug) { __syncthreads(); }
    if (threadIdx.x == 0) { total = 2.0f; } // @W
}
//! emu: race in shared memory: write of 4 bytes in kernel last_reader_writes[0,0] at @W
//!   thread (63,0,0) of block (0,0,0) read it at @R, and no __syncthreads is in between
//!   byte 0 of the shared variable total of 4 bytes
BUG(readers_in_other_warps) { last_reader_writes<<<1, 64>>>(zeros(64), bug); } // @L
//! emu: race in shared memory: write of 4 bytes in kernel last_reader_writes[0,0] at @W
//!   thread (31,0,0) of block (0,0,0) read it at @R, and no __syncwarp or __syncthreads is in between
//!   byte 0 of the shared variable total of 4 bytes
BUG(readers_in_other_lanes) { last_reader_writes<<<1, 32>>>(zeros(32), bug); } // @L

// A reader's fence does not cover what other threads of its block read, unless they have met.
enum Meeting { NOBODY, WARP, BLOCK };
//! emu: race in device memory: write of 4 bytes in kernel fence_of_reader[1,0] at @W
//!   thread (0,0,0) of block (0,0,0) read it at @R, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void fence_of_reader(int *out, int *data, int *count, Meeting meeting) {
    if (blockIdx.x == 0) { out[threadIdx.x] = *data; } // @R
    if (meeting == WARP) { __syncwarp(); }
    if (meeting == BLOCK) { __syncthreads(); }
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(count, 1) == 1 && blockIdx.x == 1) { *data = 1; } // @W
    }
}
BUG(fence_without_lanes) {
    fence_of_reader<<<2, 32>>>(zeros<int>(32), zeros<int>(1), zeros<int>(1), bug ? NOBODY : WARP); // @L
}
//! emu: race in device memory: write of 4 bytes in kernel fence_of_reader[1,0] at @W
//!   thread (0,0,0) of block (0,0,0) read it at @R, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
BUG(fence_without_warps) {
    fence_of_reader<<<2, 64>>>(zeros<int>(64), zeros<int>(1), zeros<int>(1), bug ? WARP : BLOCK); // @L
}

//! emu: race in shared memory: write of 1 byte in kernel byte_race[0,2] at @W
//!   thread (1,0,0) of block (0,0,0) wrote it at @X, and no __syncwarp or __syncthreads is in between
//!   byte 1 of the shared variable bytes of 64 bytes
__global__ void byte_race(unsigned char *out, bool bug) {
    __shared__ unsigned char bytes[64];
    int i = threadIdx.x;
    bytes[bug && i == 2 ? 1 : i] = 3; // @W
    bytes[i] ^= 1;                    // @X
    __syncthreads();
    out[i] = bytes[i ^ 1];
}
BUG(byte_race) { byte_race<<<1, 64>>>(zeros<unsigned char>(64), bug); } // @L

// ---- Uninitialised memory, bounds ----

//! emu: uninitialised memory: read of 4 bytes in device memory in kernel uninitialised_device[0,3] at @UNI
//!   12 bytes into the allocation of 32 bytes at %x
__global__ void uninitialised_device(float *out, const float *in) { out[threadIdx.x] = 2.0f * in[threadIdx.x]; } // @UNI
BUG(uninitialised_device) {
    float *in = unwritten(8);
    cudaMemset(in, 0, (bug ? 3 : 8) * sizeof(float));
    uninitialised_device<<<1, 8>>>(unwritten(8), in); // @L
}

//! emu: uninitialised memory: read of 16 bytes in device memory in kernel uninitialised_vector[0,0] at @R
//!   12 bytes into the allocation of 16 bytes at %x
__global__ void uninitialised_vector(float4 *out, const float4 *in) {
    float4 v = __ldcs(&in[threadIdx.x]); // @R
    __stcs(&out[threadIdx.x], v);
}
BUG(uninitialised_vector) {
    float4 *in = unwritten<float4>(1);
    cudaMemset(in, 0, bug ? 12 : 16);
    uninitialised_vector<<<1, 1>>>(unwritten<float4>(1), in); // @L
}

//! emu: uninitialised memory: read of 4 bytes in shared memory in kernel uninitialised_shared[1,63] at @R
//!   byte 252 of the shared variable tile of 256 bytes
__global__ void uninitialised_shared(float *out, bool bug) {
    __shared__ float tile[64];
    if (!bug || blockIdx.x == 0 || threadIdx.x < 32) {
        tile[threadIdx.x] = 0.0f;
    } // the last block's values do not count
    __syncthreads();
    out[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x]; // @R
}
BUG(uninitialised_shared) { uninitialised_shared<<<2, 64>>>(unwritten(128), bug); } // @L

//! emu: uninitialised memory: read of 16 bytes by cudaMemcpy in device memory, at @C
//!   8 bytes into the allocation of 16 bytes at %x
BUG(uninitialised_copy) {
    float *a = unwritten(4), *b = unwritten(4), host[4];
    cudaMemset(a, 0, bug ? 8 : 16);
    cudaMemcpy(b, a, 16, cudaMemcpyDeviceToDevice);  // uninitialised bytes may be copied
    cudaMemcpy(host, b, 16, cudaMemcpyDeviceToHost); // @C
}

//! emu: out of bounds: write of 4 bytes in device memory in kernel out_of_bounds[0,10] at @OOB
//!   0 bytes after the end of the allocation of 40 bytes at %x
__global__ void out_of_bounds(float *out, int n) {
    if (int(threadIdx.x) < n) { out[threadIdx.x] = 0.0f; } // @OOB
}
BUG(out_of_bounds) { out_of_bounds<<<1, 32>>>(unwritten(10), bug ? 11 : 10); } // @L

//! emu: out of bounds: read of 4 bytes in device memory in kernel before_the_begin[0,0] at @R
//!   4 bytes before the allocation of 40 bytes at %x
__global__ void before_the_begin(float *out, const float *in, int back) {
    out[threadIdx.x] = in[int(threadIdx.x) - back]; // @R
}
BUG(before_the_begin) { before_the_begin<<<1, 10>>>(unwritten(10), zeros(10), bug); } // @L

//! emu: out of bounds: write of 4 bytes in shared memory in kernel shared_out_of_bounds[0,31] at @W
//!   byte 128 of the block's shared memory: 128 bytes are dynamic, bytes 260 to 263 are other
__global__ void shared_out_of_bounds(float *out, int n) {
    __shared__ float other;
    extern __shared__ float dynamic[];
    if (threadIdx.x == 0) { other = 0.0f; }
    dynamic[threadIdx.x + n] = 0.0f; // @W
    out[threadIdx.x] = dynamic[threadIdx.x + n];
}
BUG(shared_out_of_bounds) { shared_out_of_bounds<<<1, 32, 128>>>(unwritten(32), bug ? 1 : 0); } // @L

//! emu: out of bounds: write of 4 bytes in device memory in kernel out_of_bounds[0,0] at @OOB
//!   0 bytes into the freed allocation of 40 bytes at %x
BUG(used_after_free) {
    float *out = unwritten(10);
    if (bug) { cudaFree(out); }
    unwritten(10);
    out_of_bounds<<<1, 32>>>(out, 10); // @L
    if (!bug) { cudaFree(out); }
}

//! emu: cudaFree of %x, which is not a live allocation, at @F
//!   0 bytes into the freed allocation of 40 bytes at %x
BUG(freed_twice) {
    float *a = unwritten(10), *b = unwritten(10);
    cudaFree(a);
    cudaFree(bug ? a : b); // @F
}

//! emu: out of bounds: write of 44 bytes by cudaMemcpyAsync in device memory, at @C
//!   0 bytes into the allocation of 40 bytes at %x
BUG(copy_out_of_bounds) {
    float host[11] = {};
    cudaMemcpyAsync(unwritten(10), host, bug ? 44 : 40, cudaMemcpyHostToDevice); // @C
}

// ---- Host and device ----

//! emu: kernel dereferences host memory: read of 4 bytes in kernel uninitialised_device[0,0] at @UNI
//!   address %x is no device, pinned or shared memory
BUG(kernel_uses_host_memory) {
    std::vector<float> host(8, 1.0f);
    float *pinned;
    cudaMallocHost(&pinned, 8 * sizeof(float));
    memcpy(pinned, host.data(), 8 * sizeof(float));
    uninitialised_device<<<1, 8>>>(zeros(8), bug ? host.data() : pinned); // @L
}

//! emu: kernel dereferences host memory: write of 4 bytes in kernel kernel_uses_host_global[0,0] at @W
//!   address %x is no device, pinned or shared memory
int host_global;
__device__ int device_global;
__global__ void kernel_uses_host_global(bool bug) {
    if (bug) { host_global = 1; } // @W
    device_global = 1;
}
BUG(kernel_uses_host_global) { kernel_uses_host_global<<<1, 1>>>(bug); } // @L

//! emu: read of 4 bytes in a local variable of another thread in kernel other_stack[0,31] at @R
__global__ void other_stack(float *out, bool bug) {
    __shared__ const volatile float *pointer;
    volatile float local = threadIdx.x;
    if (threadIdx.x == 0) { pointer = &local; }
    __syncthreads();
    out[threadIdx.x] = bug ? *pointer : local; // @R
    __syncthreads();
}
BUG(other_stack) { other_stack<<<1, 32>>>(zeros(32), bug); } // @L

//! emu: host code dereferences device memory: read of 4 bytes, at @R
//!   4 bytes into the allocation of 40 bytes at %x
BUG(host_uses_device_memory) {
    float *data = zeros(10), host[10];
    cudaMemcpy(host, data, 40, cudaMemcpyDeviceToHost);
    volatile float value = (bug ? data : host)[1]; // @R
    (void)value;
}

//! emu: host code dereferences device memory, at @R
//!   0 bytes into the allocation of 40 bytes at %x
BUG(host_library_uses_device_memory) {
    char *data = zeros<char>(40), host[40] = {};
    volatile size_t n = strnlen(bug ? data : host, 40); // @R
    (void)n;
}

//! emu: cudaMemcpy from host to device memory with a kind that says otherwise (2), at @C
BUG(wrong_direction) {
    float host[10] = {};
    cudaMemcpy(zeros(10), host, 40, bug ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice); // @C
}

//! emu: call of the host function cudaMalloc inside a kernel in kernel host_call_in_kernel[0,0] at @M
__global__ void host_call_in_kernel(bool bug) {
    void *memory;
    if (bug) { cudaMalloc(&memory, 4); } // @M
}
BUG(host_call_in_kernel) { host_call_in_kernel<<<1, 1>>>(bug); } // @L

//! emu: launch of kernel host_call_in_kernel inside a kernel in kernel launch_in_kernel[0,0] at @I
__global__ void launch_in_kernel(bool bug) {
    if (bug) { host_call_in_kernel<<<1, 1>>>(false); } // @I
}
BUG(launch_in_kernel) { launch_in_kernel<<<1, 1>>>(bug); } // @L

// ---- Alignment ----

//! emu: misaligned access to %x as 'const struct float4', expected a multiple of 16 in kernel misaligned_vector[0,0] at
//! @R
__global__ void misaligned_vector(float4 *out, const float *in) {
    out[threadIdx.x] = *reinterpret_cast<const float4 *>(in + 4 * threadIdx.x); // @R
}
BUG(misaligned_vector) { misaligned_vector<<<1, 2>>>(unwritten<float4>(2), zeros(12) + (bug ? 2 : 4)); } // @L

//! emu: misaligned access to %x as 'struct float2', expected a multiple of 8 in kernel
//! misaligned_shared<false>[0,0] at @W
template <bool ALIGNED> __global__ void misaligned_shared(float *out) {
    __shared__ alignas(ALIGNED ? 8 : 4) float tile[2];
    reinterpret_cast<float2 *>(tile)->y = 1.0f; // @W
    out[0] = tile[1];
}
BUG(misaligned_shared) {
    if (bug) {
        misaligned_shared<false><<<1, 1>>>(zeros(1)); // @L
    } else {
        misaligned_shared<true><<<1, 1>>>(zeros(1));
    }
}

//! emu: misaligned write of 16 bytes at %x, expected a multiple of 16 in kernel misaligned_hint[0,0] at @W
__global__ void misaligned_hint(float *out) {
    __stcs(reinterpret_cast<float4 *>(out + 4 * threadIdx.x), make_float4(0.0f, 0.0f, 0.0f, 0.0f)); // @W
}
BUG(misaligned_hint) { misaligned_hint<<<1, 2>>>(zeros(12) + (bug ? 3 : 4)); } // @L

// ---- Barriers and collectives ----

//! emu: __syncthreads in divergent code: threads of the block are at different barriers in kernel
//! divergent_barrier[0,32] at @B
//!   thread (0,0,0) waits at @A in __syncthreads
__global__ void divergent_barrier(bool bug) {
    if (bug && threadIdx.x < 32) {
        __syncthreads(); // @A
    } else {
        __syncthreads(); // @B
    }
}
BUG(divergent_barrier) { divergent_barrier<<<1, 64>>>(bug); } // @L

//! emu: __syncthreads after a thread of the block has exited in kernel exit_before_barrier[0,1] at @B
//!   thread (0,0,0) has exited
//!   every thread of a block must reach the same __syncthreads
__global__ void exit_before_barrier(unsigned first) {
    if (threadIdx.x < first) { return; }
    __syncthreads(); // @B
}
BUG(exit_before_barrier) { exit_before_barrier<<<1, 64>>>(bug ? 1 : 0); } // @L

//! emu: thread exited while others wait at a barrier of the block in kernel exit_after_barrier[0,40] at @B
//!   thread (0,0,0) waits at @B in __syncthreads
//!   every thread of a block must reach the same __syncthreads
__global__ void exit_after_barrier(unsigned last) {
    if (threadIdx.x >= last) { return; }
    __syncthreads(); // @B
}
BUG(exit_after_barrier) { exit_after_barrier<<<1, 64>>>(bug ? 40 : 64); } // @L

//! emu: __shfl_sync with mask 0xffffffff names lane 0, which has exited in kernel shuffle_after_exit[0,1] at @SAE
__global__ void shuffle_after_exit(int *out, unsigned first, unsigned mask) {
    if (threadIdx.x < first) { return; }
    out[threadIdx.x] = __shfl_sync(mask, int(threadIdx.x), 5); // @SAE
}
BUG(shuffle_after_exit) { shuffle_after_exit<<<1, 32>>>(zeros<int>(32), 1, bug ? FULL : FULL - 1); } // @L

//! emu: __shfl_sync with mask 0xffffffff names lane 20, which has exited in kernel shuffle_after_exit[0,0] at @SAE
//!   this warp has only 20 lanes
BUG(partial_warp) { shuffle_after_exit<<<1, 20>>>(zeros<int>(32), 0, bug ? FULL : 0xfffffu); } // @L

//! emu: __ballot_sync with mask 0x0000ffff, which does not name the calling lane 16 in kernel mask_without_caller[0,16]
//! at @S
__global__ void mask_without_caller(unsigned *out, unsigned lanes) {
    if (threadIdx.x < lanes) {
        out[threadIdx.x] = __ballot_sync(0xffff, 1); // @S
    }
}
BUG(mask_without_caller) { mask_without_caller<<<1, 32>>>(zeros<unsigned>(32), bug ? 17 : 16); } // @L

//! emu: __shfl_sync with mask 0x0000ffff reads lane 20, which the mask does not name in kernel
//! shuffle_from_outside[0,0] at @S
__global__ void shuffle_from_outside(int *out, int lane) {
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_sync(0xffff, int(threadIdx.x), lane); // @S
    }
}
BUG(shuffle_from_outside) { shuffle_from_outside<<<1, 32>>>(zeros<int>(32), bug ? 20 : 10); } // @L

//! emu: __shfl_sync with mask 0xffffffff: lanes of the warp are at different collectives in kernel
//! divergent_shuffle[0,1] at @B
//!   thread (0,0,0) waits at @A in __shfl_sync with mask 0xffffffff
__global__ void divergent_shuffle(int *out, bool bug) {
    int x = threadIdx.x;
    if (bug && x % 2 == 0) {
        x = __shfl_sync(FULL, x, 0); // @A
    } else {
        x = __shfl_sync(FULL, x, 1); // @B
    }
    out[threadIdx.x] = x;
}
BUG(divergent_shuffle) { divergent_shuffle<<<1, 32>>>(zeros<int>(32), bug); } // @L

//! emu: deadlock: every thread waits in kernel deadlock[0,31] at @B
//!   the threads of the block:
//!   threads 0 to 30: __syncwarp at @A
//!   threads 31 to 31: __syncthreads at @B
__global__ void deadlock(bool bug) {
    if (!bug || threadIdx.x < 31) {
        __syncwarp(); // @A
    }
    __syncthreads(); // @B
}
BUG(deadlock) { deadlock<<<1, 32>>>(bug); } // @L

//! emu: stack overflow in kernel stack_overflow[0,0] at an unknown line
__device__ __noinline__ int recurse(int depth, volatile int *out) {
    volatile int frame[64];
    frame[depth % 64] = depth;
    return depth == 0 ? 0 : frame[depth % 64] + recurse(depth - 1, out) + out[0];
}
__global__ void stack_overflow(int *out, int depth) { out[0] = recurse(depth, out); }
BUG(stack_overflow) { stack_overflow<<<1, 1>>>(zeros<int>(1), bug ? 100000 : 50); } // @L

// ---- Launches ----

__global__ void nothing() {}

//! emu: block (512,3,1) has 1536 threads, at most 1024 (1024 x 1024 x 64) are possible in the launch of kernel nothing,
//! at @L
BUG(too_many_threads) { nothing<<<1, dim3(512, bug ? 3 : 2)>>>(); } // @L

//! emu: empty grid (0,1,1) or block (32,1,1) in the launch of kernel nothing, at @L
BUG(empty_grid) { nothing<<<bug ? 0 : 1, 32>>>(); } // @L

//! emu: grid (1,65536,1) is too large, at most (2147483647,65535,65535) in the launch of kernel nothing, at @L
BUG(too_large_grid) { nothing<<<dim3(1, bug ? 65536 : 65535), 1>>>(); } // @L

//! emu: 65536 bytes of dynamic shared memory, 49152 are allowed in the launch of kernel warp_race, at @L
//!   more than 48 KiB (up to 227 KiB) needs cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
//!   bytes)
BUG(too_much_dynamic_memory) {
    if (!bug) { cudaFuncSetAttribute(warp_race, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536); }
    warp_race<<<1, 32, 65536>>>(zeros<int>(32), false); // @L
}

//! emu: too much shared memory: 51200 bytes with the variable tile, 49152 are allowed in kernel
//! too_much_static_memory[0,0] at @T
__global__ void too_much_static_memory(float *out) {
    __shared__ float tile[10240]; // @T
    tile[threadIdx.x] = 0.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
BUG(too_much_static_memory) { too_much_static_memory<<<1, 32, bug ? 10240 : 1024>>>(zeros(32)); } // @L

// ---- cp.async, ldmatrix ----

//! emu: uninitialised memory: read of 4 bytes in shared memory in kernel copy_not_awaited<true>[0,0] at @R
//!   byte 0 of the shared variable tile of 512 bytes
template <bool BUG> __global__ void copy_not_awaited(float *out, const float *in) {
    __shared__ alignas(16) float tile[128];
    tile[threadIdx.x * 4] = 1.0f;
    emu::cp_async_16(&tile[threadIdx.x * 4], &in[threadIdx.x * 4]);
    emu::cp_async_commit();
    emu::cp_async_wait<BUG ? 1 : 0>();
    out[threadIdx.x] = tile[threadIdx.x * 4]; // @R
}
BUG(copy_not_awaited) {
    if (bug) {
        copy_not_awaited<true><<<1, 32>>>(zeros(32), zeros(128)); // @L
    } else {
        copy_not_awaited<false><<<1, 32>>>(zeros(32), zeros(128));
    }
}

//! emu: race in shared memory: read of 4 bytes in kernel copy_into_use[0,0] at @R
//!   thread (32,0,0) of block (0,0,0) wrote it at @W, and no __syncthreads is in between
//!   byte 512 of the shared variable tile of 1024 bytes
__global__ void copy_into_use(float *out, const float *in, bool bug) {
    __shared__ alignas(16) float tile[256];
    int i = threadIdx.x * 4;
    for (int k = 0; k < 4; k++) { tile[i + k] = 0.0f; }
    __syncthreads();
    out[threadIdx.x] = tile[(i + 128) % 256]; // @R
    if (!bug) { __syncthreads(); }
    emu::cp_async_16(&tile[i], &in[i]); // @W
    emu::cp_async_wait_all();
}
BUG(copy_into_use) { copy_into_use<<<1, 64>>>(zeros(64), zeros(256), bug); } // @L

//! emu: misaligned cp.async: addresses %x and %x are not both multiples of 16 in kernel misaligned_copy[0,0] at @C
__global__ void misaligned_copy(const float *in) {
    __shared__ alignas(16) float tile[4];
    emu::cp_async_16(tile, in); // @C
    emu::cp_async_wait_all();
}
BUG(misaligned_copy) { misaligned_copy<<<1, 1>>>(zeros(8) + (bug ? 2 : 4)); } // @L

//! emu: ldmatrix.x1 with an address outside of shared memory: %x in kernel matrix_not_shared[0,0] at @M
__global__ void matrix_not_shared(uint16_t *in, bool bug) {
    __shared__ alignas(16) uint16_t tile[64];
    tile[threadIdx.x] = tile[threadIdx.x + 32] = 0;
    __syncwarp();
    uint32_t r[1];
    emu::ldmatrix(r, (bug ? in : tile) + threadIdx.x % 8 * 8); // @M
    in[threadIdx.x] = uint16_t(r[0]);
}
BUG(matrix_not_shared) { matrix_not_shared<<<1, 32>>>(zeros<uint16_t>(64), bug); } // @L

// ---- The blocks of a grid meet, inline PTX ----

//! emu: grid.sync() that a block of the grid does not reach in the launch of kernel leaves_the_grid, at @L
__global__ void leaves_the_grid(bool bug) {
    if (bug && blockIdx.x == 1) { return; }
    cg::this_grid().sync();
}
BUG(leaves_the_grid) {
    void *arguments[] = {&bug};
    cudaLaunchCooperativeKernel((void *)leaves_the_grid, 2, 32, arguments); // @L
}

// An atomic acquires what was published at its address before it, and nothing later. Block 0 publishes twice at one
// address. Block 1 acquires the first time, and waits at another address for the second.
//! emu: race in device memory: read of 4 bytes in kernel acquired_too_early[1,0] at @S
//!   thread (0,0,0) of block (0,0,0) wrote it at @P, and nothing orders the blocks of a launch
//!   0 bytes into the allocation of 4 bytes at %x
__global__ void acquired_too_early(int *out, int *part, int *published, int *acquired, int *told, bool bug) {
    if (blockIdx.x == 0) {
        __threadfence();
        atomicAdd(published, 1);
        while (atomicAdd(acquired, 0) == 0) {}
        *part = 1; // @P
        __threadfence();
        atomicAdd(published, 1);
    } else if (blockIdx.x == 1) {
        while (atomicAdd(published, 0) == 0) {}
        atomicAdd(acquired, 1);
        while (atomicAdd(told, 0) == 0) {}
        if (!bug) { atomicAdd(published, 0); }
        *out = *part; // @S
    } else {
        while (atomicAdd(published, 0) < 2) {}
        atomicAdd(told, 1);
    }
}
BUG(acquired_too_early) {
    int *numbers[5];
    for (int *&number : numbers) { number = zeros<int>(1); }
    void *arguments[] = {&numbers[0], &numbers[1], &numbers[2], &numbers[3], &numbers[4], &bug};
    cudaLaunchCooperativeKernel((void *)acquired_too_early, 3, 1, arguments); // @L
}

//! emu: grid.sync() in a kernel that cudaLaunchCooperativeKernel has not launched in kernel plain_launch[0,0] at @S
__global__ void plain_launch(bool bug) {
    if (bug) { cg::this_grid().sync(); } // @S
}
BUG(plain_launch) { plain_launch<<<1, 1>>>(bug); } // @L

//! emu: out of bounds: read of 8 bytes in device memory in kernel reads_by_ptx[0,0] at @P
//!   0 bytes after the end of the allocation of 8 bytes at %x
__global__ void reads_by_ptx(const float *in, float *out) {
    float a, b;
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "l"(in)); // @P
    asm volatile("st.global.f32 [%0], %1;" ::"l"(out), "f"(a + b));
}
BUG(reads_by_ptx) { reads_by_ptx<<<1, 1>>>(zeros(2) + (bug ? 2 : 0), zeros(1)); } // @L

// ---- Streams ----

__global__ void fill(float *data, float value) { data[threadIdx.x] = value; }                     // @F
__global__ void twice(float *out, const float *in) { out[threadIdx.x] = 2.0f * in[threadIdx.x]; } // @T

//! emu: assertion "i < n" failed in kernel asserts[0,7] at @A
__global__ void asserts(unsigned n) {
    unsigned i = threadIdx.x;
    assert(i < n); // @A
}
BUG(asserts) { asserts<<<1, 8>>>(bug ? 7 : 8); } // @L

//! emu: misaligned load_matrix_sync: %x must be a multiple of 32, and 32 bytes a row of 16 in kernel
//! misaligned_tile[0,0] at @A
__global__ void misaligned_tile(const __half *in) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
    wmma::load_matrix_sync(a, in, 16); // @A
}
BUG(misaligned_tile) { misaligned_tile<<<1, 32>>>(zeros<__half>(512) + (bug ? 8 : 16)); } // @L

// ---- Managed memory, cuBLAS, cuDNN ----

//! emu: unsynchronised use across streams: read of 4 bytes in managed memory, at @R
//!   kernel fill in stream 0, called at @K, wrote it (at @F), and nothing orders it before this host code
//!   0 bytes into the allocation of 32 bytes at %x
BUG(managed_before_wait) {
    float *data;
    cudaMallocManaged(&data, 8 * sizeof(float));
    fill<<<1, 8>>>(data, 1.0f); // @K
    if (!bug) { cudaDeviceSynchronize(); }
    if (data[0] != 1.0f) { exit(2); } // @R
    cudaFree(data);
}

//! emu: cudaFreeHost of memory of cudaMallocManaged: use cudaFree, at @H
BUG(managed_freed_wrongly) {
    float *data;
    cudaMallocManaged(&data, 4);
    if (bug) { cudaFreeHost(data); } // @H
    cudaFree(data);
}

static void multiply(cudaStream_t stream, float *C, const float *A, const float *B, int n) {
    float one = 1.0f, zero = 0.0f;
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, A, n, B, n, &zero, C, n); // @G
    cublasDestroy(handle);
}

//! emu: out of bounds: read of 64 bytes by cublasSgemm in device memory, at @G
//!   0 bytes into the allocation of 36 bytes at %x
BUG(cublas_out_of_bounds) { multiply(nullptr, zeros(16), zeros(bug ? 9 : 16), zeros(16), 4); }

//! emu: uninitialised memory: read of 64 bytes by cublasSgemm in device memory, at @G
//!   0 bytes into the allocation of 64 bytes at %x
BUG(cublas_uninitialised) { multiply(nullptr, unwritten(16), zeros(16), bug ? unwritten(16) : zeros(16), 4); }

//! emu: cublasSgemm: D overlaps A, at @G
BUG(cublas_overlap) {
    float *A = zeros(16);
    multiply(nullptr, bug ? A : zeros(16), A, zeros(16), 4);
}

//! emu: unsynchronised use across streams: write of 64 bytes by cudaMemset in device memory, at @M
//!   the call of cublasSgemm in stream 1, called at @G, read it, and nothing orders it before cudaMemset
//!   0 bytes into the allocation of 64 bytes at %x
BUG(cublas_across_streams) {
    float *A = zeros(16), *B = zeros(16), *C = zeros(16);
    cudaStream_t stream;
    cudaDeviceSynchronize();
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    multiply(stream, C, A, B, 4);
    if (!bug) { cudaStreamSynchronize(stream); }
    cudaMemset(A, 0, 16 * sizeof(float)); // @M
}

struct Setting {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
};
static void describe(cudnnBackendDescriptorType_t type, const std::vector<Setting> &settings) {
    cudnnBackendDescriptor_t made;
    cudnnBackendCreateDescriptor(type, &made);
    for (const Setting &s : settings) { cudnnBackendSetAttribute(made, s.name, s.type, s.count, s.values); }
    cudnnBackendFinalize(made); // @Q
    cudnnBackendDestroyDescriptor(made);
}

//! emu: cudnnBackendFinalize: attribute 1500 is missing, at @Q
BUG(cudnn_attribute_missing) {
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    if (bug) { describe(CUDNN_BACKEND_MATMUL_DESCRIPTOR, {}); }
    describe(CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type}});
}

//! emu: cudnnBackendFinalize: other arithmetic than fp32, at @Q
BUG(cudnn_other_arithmetic) {
    const cudnnDataType_t type = bug ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    describe(CUDNN_BACKEND_MATMUL_DESCRIPTOR, {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type}});
}

//! emu: cudnnBackendFinalize: a stored tensor in another type than fp32 and bf16, at @Q
BUG(cudnn_stored_integers) {
    const cudnnDataType_t type = bug ? CUDNN_DATA_INT32 : CUDNN_DATA_FLOAT;
    const int64_t id = 1, ones[4] = {1, 1, 1, 1}, alignment = 4;
    describe(CUDNN_BACKEND_TENSOR_DESCRIPTOR, {{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
                                               {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
                                               {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, ones},
                                               {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, ones},
                                               {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment}});
}

// ---- Two streams ----

// With memory of 8 values that nobody has written.
struct TwoStreams {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *data = unwritten(8), *out = unwritten(8);
    TwoStreams() {
        cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    }
    void b_waits_for_a() {
        cudaEventRecord(event, a);
        cudaStreamWaitEvent(b, event);
    }
};

//! emu: unsynchronised use across streams: read of 4 bytes in device memory in kernel twice[0,0] at @T
//!   kernel fill in stream 1, called at @K, wrote it (at @F), and nothing orders it before this kernel
//!   0 bytes into the allocation of 32 bytes at %x
BUG(read_across_streams) {
    TwoStreams s;
    fill<<<1, 8, 0, s.a>>>(s.data, 1.0f); // @K
    if (!bug) { s.b_waits_for_a(); }
    twice<<<1, 8, 0, s.b>>>(s.out, s.data); // @L
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: write of 32 bytes by cudaMemsetAsync in device memory, at @M
//!   the call of cudaMallocAsync in stream 1, called at @K, wrote it, and nothing orders it before cudaMemsetAsync
//!   0 bytes into the allocation of 32 bytes at %x
BUG(used_before_allocated) {
    TwoStreams s;
    float *data;
    cudaMallocAsync(&data, 32, s.a); // @K
    if (!bug) { s.b_waits_for_a(); }
    cudaMemsetAsync(data, 0, 32, s.b); // @M
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: write of 32 bytes by cudaFreeAsync in device memory, at @M
//!   kernel twice in stream 2, called at @K, read it (at @T), and nothing orders it before cudaFreeAsync
//!   0 bytes into the allocation of 32 bytes at %x
BUG(freed_in_use) {
    TwoStreams s;
    float *data;
    cudaMallocAsync(&data, 32, s.a);
    fill<<<1, 8, 0, s.a>>>(data, 1.0f);
    s.b_waits_for_a();
    twice<<<1, 8, 0, s.b>>>(s.out, data); // @K
    cudaFreeAsync(data, bug ? s.a : s.b); // @M
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: write of 32 bytes by cudaMemsetAsync in device memory, at @M
//!   kernel twice in stream 1, called at @K, read it (at @T), and nothing orders it before cudaMemsetAsync
//!   0 bytes into the allocation of 32 bytes at %x
BUG(write_across_streams) {
    TwoStreams s;
    float *in = zeros(8), *out = unwritten(8);
    cudaDeviceSynchronize();
    twice<<<1, 8, 0, s.a>>>(out, in); // @K
    if (!bug) { cudaStreamSynchronize(s.a); }
    cudaMemsetAsync(in, 0, 32, s.b); // @M
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: write of 32 bytes by cudaMemsetAsync in device memory, at @M
//!   kernel twice in stream 2, called at @K, read it (at @T), and nothing orders it before cudaMemsetAsync
//!   0 bytes into the allocation of 32 bytes at %x
BUG(next_write_across_streams) { // the last write was ordered, the last read is not
    TwoStreams s;
    float *in = unwritten(8), *out = unwritten(8);
    cudaMemsetAsync(in, 0, 32, s.a);
    s.b_waits_for_a();
    twice<<<1, 8, 0, s.b>>>(out, in); // @K
    if (!bug) { cudaStreamSynchronize(s.b); }
    cudaMemsetAsync(in, 0, 32, s.a); // @M
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: read of 4 bytes in device memory in kernel twice[0,0] at @T
//!   kernel fill in stream 0, called at @K, wrote it (at @F), and nothing orders it before this kernel
//!   0 bytes into the allocation of 32 bytes at %x
BUG(default_stream) {
    cudaStream_t stream;
    if (bug) { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
    if (!bug) { cudaStreamCreate(&stream); } // synchronises with the default stream
    float *in = unwritten(8), *out = unwritten(8);
    fill<<<1, 8>>>(in, 1.0f);            // @K
    twice<<<1, 8, 0, stream>>>(out, in); // @L
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: read of 4 bytes in device memory in kernel twice[0,0] at @T
//!   the call of cudaMemcpy in stream 0, called at @K, wrote it, and nothing orders it before this kernel
//!   0 bytes into the allocation of 32 bytes at %x
BUG(pageable_copy_across_streams) {
    TwoStreams s;
    float *in = unwritten(8), *out = unwritten(8), host[8] = {0.0f};
    cudaMemcpy(in, host, sizeof(host), cudaMemcpyHostToDevice); // @K
    if (!bug) { cudaDeviceSynchronize(); }
    twice<<<1, 8, 0, s.b>>>(out, in); // @L
    cudaDeviceSynchronize();
}

//! emu: unsynchronised use across streams: read of 4 bytes in pinned host memory, at @R
//!   the call of cudaMemcpyAsync in stream 1, called at @C, wrote it, and nothing orders it before this host code
//!   0 bytes into the allocation of 32 bytes at %x
BUG(read_before_wait) {
    TwoStreams s;
    float *device = zeros(8), *pinned;
    cudaMallocHost(&pinned, 32);
    cudaDeviceSynchronize();
    cudaMemcpyAsync(pinned, device, 32, cudaMemcpyDeviceToHost, s.a); // @C
    cudaEventRecord(s.event, s.a);
    if (!bug) { cudaEventSynchronize(s.event); }
    volatile float loss = pinned[0]; // @R
    (void)loss;
}

//! emu: unsynchronised use across streams: write of 4 bytes in pinned host memory, at @W
//!   the call of cudaMemcpyAsync in stream 1, called at @C, read it, and nothing orders it before this host code
//!   12 bytes into the allocation of 32 bytes at %x
BUG(write_before_wait) {
    TwoStreams s;
    volatile float *pinned;
    float *device = unwritten(8);
    cudaMallocHost(&pinned, 32);
    for (int i = 0; i < 8; i++) { pinned[i] = 0.0f; }
    cudaMemcpyAsync(device, const_cast<float *>(pinned), 32, cudaMemcpyHostToDevice, s.a); // @C
    if (!bug) { cudaStreamSynchronize(s.a); }
    pinned[3] = 1.0f; // @W
}

//! emu: cudaFree of memory that is still in use, at @D
//!   kernel fill in stream 1, called at @K, wrote it, and nothing has waited for it
//!   0 bytes into the allocation of 32 bytes at %x
BUG(freed_out_of_order) {
    TwoStreams s;
    fill<<<1, 8, 0, s.a>>>(s.data, 1.0f); // @K
    if (!bug) { cudaStreamSynchronize(s.a); }
    cudaFree(s.data); // @D
}

//! emu: nothing with a stream that does not exist (destroyed, or never created), at @L
BUG(destroyed_stream) {
    TwoStreams s;
    if (bug) { cudaStreamDestroy(s.a); }
    nothing<<<1, 1, 0, s.a>>>(); // @L
    if (!bug) { cudaStreamDestroy(s.a); }
}

//! emu: cudaEventRecord with an event that does not exist (destroyed, or never created), at @E
BUG(destroyed_event) {
    TwoStreams s;
    if (bug) { cudaEventDestroy(s.event); }
    cudaEventRecord(s.event, s.a); // @E
}

// ---- Devices ----

//! emu: cudaMemcpy on device 0, and this process has used device 3, at @C
//!   an emulated process has one device; each thread begins with device 0, until it calls cudaSetDevice
BUG(thread_without_device) {
    cudaSetDevice(3);
    float *device = zeros(8), host[8];
    std::thread other([&] {
        if (!bug) { cudaSetDevice(3); }
        cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost); // @C
    });
    other.join();
}

//! emu: nothing on device 1, and this process has used device 0, at @L
//!   an emulated process has one device; each thread begins with device 0, until it calls cudaSetDevice
BUG(device_set_too_late) {
    cudaStream_t stream;
    if (!bug) { cudaSetDevice(1); }
    cudaStreamCreate(&stream);
    cudaSetDevice(1);
    nothing<<<1, 1, 0, stream>>>(); // @L
}

// ---- Running them ----

static std::map<std::string, std::string> expectations;

static void test_bug(Test *t) {
    const Bug *bug = static_cast<const Bug *>(t->data);
#ifdef __clang__
    if (bug->function == bug_misaligned_vector) { SKIP(t, "clang does not check the copy of a whole structure"); }
#endif
    Result broken = run_child({bug->test.name, "1"}), correct = run_child({bug->test.name, "0"});
    std::string got = comparable(broken.text), want = expectations[bug->test.name];
    CHECK(t, broken.status == 1, "status %d", broken.status);
    CHECK(t, got == want, "reports\n%s\n  expected\n%s", got.c_str(), want.c_str());
    CHECK(t, correct.status == 0 && correct.text.empty(), "without the bug: status %d, and a false report\n%s",
          correct.status, correct.text.c_str());
}

int main(int argc, char **argv) {
    for (const TestCase *test = tests; test != nullptr && argc == 3; test = test->next) {
        if (strcmp(test->name, argv[1]) != 0) { continue; }
        static_cast<const Bug *>(test->data)->function(strcmp(argv[2], "1") == 0);
        return 0;
    }
    setenv("EMU_THREADS", "1", 1); // one thread finds the mistake each time
    expectations = read_expectations(__FILE__);
    return test_main(argc, argv);
}
