#!/bin/sh
# Says what of the software that gpt2.c can use is on this machine: what was found, what it is for, how to get it.
# Exit status 1 only when something is missing without which nothing can be built.
# shellcheck shell=dash disable=SC2031,SC2162
cd "$(dirname "$0")/.." || exit 1
. dev/find_libraries.sh

# What a command of the table prints was found. $scratch/notes: what else there is to say.
version() { "$1" --version 2>/dev/null | head -n 1; }
compilers() { # LANGUAGE FLAG COMPILER...: those that build a program with this flag
    language=$1 flag=$2
    shift 2
    for compiler; do ! builds "$language" "$empty" "$compiler" "$flag" || printf '%s ' "$compiler"; done
}
library() { # NAME HOME
    find_library "$1" "$2" && readlink -f "$library"
    [ -z "$reasons" ] || echo "not taken:$reasons" >"$scratch/notes"
}
openmp() { # also what the Makefile finds with Homebrew
    compilers c -fopenmp gcc clang cc | grep . || ! print_openmp | grep -q OPENMP_LIBS || echo "clang, libomp"
}
mpi() { PATH=${MPI_HOME:+$MPI_HOME/bin:}$PATH && [ -n "$(print_mpi)" ] && version mpirun; }
gpu() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>&1
    else
        echo "no nvidia-smi, which comes with the driver"
    fi >"$scratch/gpu"
    grep ', [0-9.]*, ' "$scratch/gpu" | grep -v ', [1-7]\.[0-9], ' || grep -m 1 . "$scratch/gpu" >"$scratch/notes"
}

find_nvcc
list_places
lacks=" "
while IFS='|' read name needed_by command purpose get; do # without -r: \ joins lines
    [ -n "$purpose" ] || { printf '\n%s\n' "$name" && continue; }
    : >"$scratch/notes"
    found=$(eval "$command")
    printf '%-9s %-10s %s\n%20s %s: %s\n' "$name" "$([ -n "$found" ] && echo found || echo missing)" "$found" "" \
        "$needed_by" "$purpose"
    sed 's/^/                     /' "$scratch/notes"
    [ -n "$found" ] || printf '%20s %s\n' "" "$get"
    [ -n "$found" ] || lacks="$lacks$needed_by:$name "
done <<'END'
Building and running on the CPU
compiler|train_gpt2|compilers c -O0 gcc clang cc|gcc or clang builds everything|apt-get install gcc libc6-dev
make|train_gpt2|version make|GNU make 3.81 or later|apt-get install make
OpenMP|optional|openmp|all cores instead of one|\
comes with gcc; for clang: apt-get install libomp-dev, brew install libomp
Testing and comparing
clang|optional|version clang|scripts/test.sh --all; make fuzz FUZZ_SECONDS=...|apt-get install clang
python3|optional|version python3|tests that run the programs and read their files|apt-get install python3
The GPU trainer (make train_gpt2cu)
nvcc|train_gpt2cu|echo "$nvcc"|CUDA's compiler, release 12 or later; CUDA_HOME=/folder says where it is|\
https://developer.nvidia.com/cuda-downloads
cuBLASLt|train_gpt2cu|library cuBLASLt ""|matrix multiplies|comes with the CUDA toolkit
NCCL|optional|library NCCL "${NCCL_HOME:-}"|several GPUs; NCCL_HOME=/folder says where it is|\
apt-get install libnccl-dev, from NVIDIA's repository: https://developer.nvidia.com/nccl
cuDNN|optional|library cuDNN "${CUDNN_HOME:-}"|version 9: attention in bf16; CUDNN_HOME=/folder says where it is|\
apt-get install cudnn9-cuda-12 (or 13), from NVIDIA's repository: https://developer.nvidia.com/cudnn
NVRTC|optional|library NVRTC ""|of nvcc's CUDA release: cuDNN has no attention without it|comes with the CUDA toolkit
MPI|optional|mpi|starts ranks (as root: mpirun --allow-run-as-root), as TCP or a folder can; MPI_HOME=/folder|\
apt-get install openmpi-bin libopenmpi-dev
GPU|train_gpt2cu|gpu|to run it: compute capability 8.0 (Ampere) or later, and its driver|https://www.nvidia.com/drivers
sanitizer|optional|version compute-sanitizer|looks for races and bad accesses in build/cuda/test_kernels|\
comes with the CUDA toolkit
The same source on the CPU (make train_gpt2emu)
Linux|train_gpt2emu|uname -sm \| grep -E "^Linux (x86_64\|aarch64)"|the emulator of dev/emu|another machine
g++/clang|train_gpt2emu|compilers c++ -std=c++17 g++ clang++|C++17 for the emulator|apt-get install g++
addr2line|optional|version addr2line|names the source lines in the emulator's reports|apt-get install binutils
gdb|optional|version gdb|steps through kernels (CONTRIBUTING.md)|apt-get install gdb
END
echo
for program in train_gpt2 train_gpt2cu train_gpt2emu; do
    missing=""
    for word in $lacks; do case $word in "$program:"*) missing="$missing ${word#*:}" ;; esac; done
    [ -z "$missing" ] || missing="needs what is missing above:$missing"
    echo "$program: ${missing:-builds and runs here: make $program}"
done
case $lacks in *" train_gpt2:"*) exit 1 ;; esac
