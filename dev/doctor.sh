#!/usr/bin/env bash
# Says what of the software that gpt2.c can use is on this machine: what was found, what it is for, how to get it.
# Exit status 1 only when something is missing without which nothing can be built.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
. scripts/packages.sh

missing_needed=0
missing_for_gpu=""

# row NAME NEED FOUND PURPOSE DEBIAN MACOS: one entry; an empty FOUND means it is missing.
row() {
    local mark=found
    if [ -z "$3" ]; then
        mark=missing
        [ "$2" != needed ] || missing_needed=1
    fi
    printf '%-9s %-10s %s\n' "$1" "$mark" "${3:-}"
    printf '%20s %s: %s\n' "" "$2" "$4"
    if [ -z "$3" ]; then
        case $5 in
            "") ;;
            http* | comes*) printf '%20s %s\n' "" "$5" ;;
            *) printf '%20s Debian/Ubuntu: %s\n' "" "$5" ;;
        esac
        [ -z "$6" ] || printf '%20s macOS: %s\n' "" "$6"
    fi
}

version_of() { # COMMAND [ARGUMENT]: the first line it prints about itself; nothing if there is no such command
    have "$1" || return 0
    "$1" "${2:---version}" 2>/dev/null | head -n 1
}

openmp_of() { # the compilers here that build an OpenMP program
    local compiler found="" libomp
    for compiler in gcc clang; do
        if have "$compiler" && links "$compiler" -fopenmp; then found="$found $compiler"; fi
    done
    if [ -z "$found" ] && have brew && libomp=$(brew --prefix libomp 2>/dev/null) && [ -e "$libomp/lib/libomp.dylib" ]
    then
        found=" clang with $libomp"
    fi
    [ -z "$found" ] || echo "with$found"
}

working() { # COMPILER: its version, if it links a program
    have "$1" && links "$1" && version_of "$1"
}

# What dev/find_libraries.sh says: it finds for the doctor what it finds for the Makefile.
libraries=$(CXX=${CXX:-$(have g++ && echo g++ || echo clang++)} dev/find_libraries.sh doctor)

# cuda_row NAME PURPOSE DEBIAN: a row for what dev/find_libraries.sh looks for. Below it: what it did not take, and why.
cuda_row() {
    local name state text found="" notes=""
    while IFS=$'\t' read -r name state text; do
        [ "$name" = "$1" ] || continue
        case $state in
            found) found=$text ;;
            passed) notes=$notes$(printf '%20s not taken: %s' "" "$text")$'\n' ;;
            missing) notes=$notes${text:+$(printf '%20s %s' "" "$text")$'\n'} ;;
        esac
    done <<<"$libraries"
    local need=optional
    case $1 in nvcc | cuBLASLt)
        need="needed to build it"
        [ -n "$found" ] || missing_for_gpu="${missing_for_gpu:+$missing_for_gpu, }no $1"
        ;;
    esac
    row "$1" "$need" "$found" "$2" "$3" ""
    printf '%s' "$notes"
}

mpi() { # the version, if programs can be built with it and started
    PATH=${MPI_HOME:+$MPI_HOME/bin:}$PATH
    have mpicc mpirun && links mpicc && version_of mpirun
}

gpu() {
    have nvidia-smi || return 0
    nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>/dev/null | grep , | head -n 1
}

why_no_gpu() { # why no GPU trainer can run here; nothing if one can
    local gpu
    gpu=$(gpu)
    case $gpu in
        *", "[1-7].[0-9]", "*) echo "the GPU's compute capability is below 8.0 ($gpu)" ;;
        ?*) ;;
        *)
            if have nvidia-smi; then
                echo "no GPU to run it (nvidia-smi: $(nvidia-smi 2>&1 | grep . | head -n 1))"
            else
                echo "no GPU to run it (there is no nvidia-smi, which comes with the driver)"
            fi
            ;;
    esac
}

emulator_compilers() {
    local compiler found=""
    for compiler in g++ clang++; do
        if have "$compiler" && links "$compiler" -x c++ -std=c++17; then found="$found $compiler"; fi
    done
    echo "${found# }"
}

compiler=$(working gcc)
[ -n "$compiler" ] || compiler=$(working clang)

echo "Building and running on the CPU"
row compiler needed "$compiler" "gcc or clang builds everything" "apt-get install gcc libc6-dev" \
    "xcode-select --install"
row make needed "$(version_of make)" "GNU make 3.81 or later" "apt-get install make" "xcode-select --install"
row OpenMP optional "$(openmp_of)" "all cores instead of one" "comes with gcc; for clang: apt-get install libomp-dev" \
    "brew install libomp"
echo
echo "Testing and comparing"
row clang optional "$(working clang)" "scripts/test.sh builds with both compilers; make fuzz FUZZ_SECONDS=..." \
    "apt-get install clang" "xcode-select --install"
row python3 optional "$(version_of python3)" "tests that run the programs and read their files; needs no packages" \
    "apt-get install python3" "brew install python"
echo
echo "The GPU trainer (make train_gpt2cu)"
cuda_row nvcc "CUDA's compiler, release 12 or later; CUDA_HOME=/folder says where it is" \
    "https://developer.nvidia.com/cuda-downloads"
cuda_row cuBLASLt "matrix multiplies" "comes with the CUDA toolkit"
cuda_row NCCL "several GPUs; NCCL_HOME=/folder says where it is" \
    "apt-get install libnccl-dev, from NVIDIA's repository: https://developer.nvidia.com/nccl"
cuda_row cuDNN "version 9: attention in bf16; CUDNN_HOME=/folder says where it is" \
    "apt-get install cudnn9-cuda-12, from NVIDIA's repository: https://developer.nvidia.com/cudnn"
cuda_row NVRTC "of nvcc's CUDA release: cuDNN has no attention without it" "comes with the CUDA toolkit"
mpi=$(mpi)
row MPI optional "$mpi" "starts them with mpirun or srun (else: TCP, or a folder); MPI_HOME=/folder" \
    "apt-get install openmpi-bin libopenmpi-dev" ""
case $(id -u)$mpi in
    "0"*"Open MPI"* | "0"*OpenRTE*) printf '%20s as root, as in a container: mpirun --allow-run-as-root\n' "" ;;
esac
row GPU "needed to run it" "$(gpu)" "compute capability 8.0 (Ampere) or later, and its driver" \
    "https://www.nvidia.com/drivers" ""
row sanitizer optional "$(version_of compute-sanitizer)" "looks for races and bad accesses in build/cuda/test_kernels" \
    "comes with the CUDA toolkit" ""
echo
echo "The same source on the CPU (make train_gpt2emu)"
emulator_compilers=$(emulator_compilers)
row g++/clang optional "$emulator_compilers" "C++17 for the emulator of dev/emu; Linux on x86-64 or aarch64" \
    "apt-get install g++" ""
row addr2line optional "$(version_of addr2line)" "names the source lines in the emulator's reports" \
    "apt-get install binutils" ""
row gdb optional "$(version_of gdb)" "steps through kernels (CONTRIBUTING.md)" "apt-get install gdb" ""
echo
if [ $missing_needed -ne 0 ]; then
    echo "Something needed is missing; see above."
    exit 1
fi
echo "train_gpt2: builds and runs here: make, then ./train_gpt2 --help, or scripts/quickstart.sh"
no_gpu=$(why_no_gpu)
if [ -n "$missing_for_gpu" ]; then
    echo "train_gpt2cu: does not build here: $missing_for_gpu${no_gpu:+; $no_gpu}"
elif [ -n "$no_gpu" ]; then
    echo "train_gpt2cu: builds here; $no_gpu"
else
    echo "train_gpt2cu: builds and runs here: make train_gpt2cu"
fi
emulator="builds and runs here: make train_gpt2emu"
[ -n "$emulator_compilers" ] || emulator="does not build here: no C++ compiler"
case $(uname -sm) in
    "Linux x86_64" | "Linux aarch64") ;;
    *) emulator="does not build here: it is for Linux on x86-64 or aarch64" ;;
esac
echo "train_gpt2emu: $emulator"
