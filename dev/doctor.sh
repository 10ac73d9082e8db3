#!/bin/sh
# Says what of the software that gpt2.c can use is on this machine: what was found, what it is for, how to get it.
# Exit status 1 only when something is missing without which nothing can be built.
# shellcheck shell=dash disable=SC2031,SC2162
cd "$(dirname "$0")/.." || exit 1
. dev/find_libraries.sh

# What a command of the table prints was found. $scratch/notes: what else there is to say.
compilers() { # LANGUAGE FLAG COMPILER...: those that build a program with this flag
    language=$1 flag=$2
    shift 2
    for compiler; do ! builds "$language" "$empty" "$compiler" "$flag" || printf '%s ' "$compiler"; done
}
library() { # NAME HEADER FILE HOME
    find_library "$@" && readlink -f "$library"
    [ -z "$reasons" ] || echo "not taken:$reasons" >"$scratch/notes"
}
gpu() { # one that runs the trainer; else a note of what nvidia-smi says
    nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader >"$scratch/notes" 2>&1
    ! grep ', [0-9.]*, ' "$scratch/notes" | grep -v ', [1-7]\.[0-9], ' || : >"$scratch/notes"
}

find_nvcc
list_places
lacks=" "
while IFS='|' read name needed_by command purpose get; do # without -r: \ joins lines
    : >"$scratch/notes"
    found=$(eval "$command")
    printf '%-9s %-8s %s\n%18s %s: %s\n' "$name" "$([ -n "$found" ] && echo found || echo missing)" "$found" "" \
        "$needed_by" "$purpose"
    sed 's/^/                   /' "$scratch/notes"
    [ -n "$found" ] || printf '%18s %s\n' "" "$get"
    [ -n "$found" ] || lacks="$lacks$needed_by:$name "
done <<'END'
compiler|train_gpt2|compilers c -O0 gcc clang cc|gcc or clang builds everything|apt-get install gcc libc6-dev
OpenMP|optional|[ -z "$(print_openmp)" ] \|\| echo $cc|all cores instead of one|for clang: libomp-dev, libomp (brew)
nvcc|train_gpt2cu|echo "$nvcc"|CUDA 12 or later; CUDA_HOME=/folder|https://developer.nvidia.com/cuda-downloads
cuBLASLt|train_gpt2cu|library cuBLASLt cublasLt.h libcublasLt.so.$major ""|matrix multiplies|comes with the CUDA toolkit
NCCL|optional|library NCCL nccl.h libnccl.so.2 "${NCCL_HOME:-}"|many GPUs; NCCL_HOME|https://developer.nvidia.com/nccl
cuDNN|optional|library cuDNN cudnn.h libcudnn.so.9 "${CUDNN_HOME:-}"|9, attention in bf16; CUDNN_HOME|\
cudnn9-cuda-12 (or 13), https://developer.nvidia.com/cudnn
NVRTC|optional|library NVRTC "" libnvrtc.so.$major ""|cuDNN has no attention without it|comes with the CUDA toolkit
MPI|optional|print_mpi \| sed -n "s/^MPI_LIBS+=-L//p"|starts ranks; MPI_HOME=/folder|openmpi-bin, libopenmpi-dev
GPU|train_gpt2cu|gpu|to run it: compute capability 8.0 (Ampere) or later, and its driver|https://www.nvidia.com/drivers
Linux|train_gpt2emu|uname -sm \| grep -E "^Linux (x86_64\|aarch64)"|the emulator of dev/emu|another machine
g++/clang|train_gpt2emu|compilers c++ -std=c++17 g++ clang++|C++17 for the emulator|apt-get install g++
END
echo
for program in train_gpt2 train_gpt2cu train_gpt2emu; do
    missing=""
    for word in $lacks; do case $word in "$program:"*) missing="$missing ${word#*:}" ;; esac; done
    [ -z "$missing" ] || missing="needs what is missing above:$missing"
    echo "$program: ${missing:-builds and runs here: make $program}"
done
case $lacks in *" train_gpt2:"*) exit 1 ;; esac
