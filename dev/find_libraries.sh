#!/bin/sh
# Finds what the Makefile builds with, and prints it as words for make, each one NAME=value or NAME+=value. If something
# that the build needs is not here, it prints a message and ends with status 1. dev/doctor.sh uses its functions.
#
#   CC=gcc dev/find_libraries.sh arch openmp mpi     what CC needs, if it can
#   CXX=g++ dev/find_libraries.sh cxx_openmp cuda    what nvcc and CXX need
#
# The settings are those of the Makefile. With QUIET=1 it does not say what the build goes without. For the tests: /usr
# and /opt are looked for in SYSTEM_ROOT.
# shellcheck shell=dash disable=SC2086 # words: paths with blanks are refused
set -u
export LC_ALL=C
cc=${CC:-cc} cxx=${CXX:-g++} system=${SYSTEM_ROOT:-} machine=$(uname -m)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_find.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
empty='int main(void) { return 0; }'

refuse() { echo "$*" >&2 && exit 1; }
note() { [ -n "${QUIET:-}" ] || echo "$*" >&2; }

# ---- The places ----
# Sets places: the toolkit, what environment modules set, conda's, the system's, and pip's packages nvidia/*.
list_places() {
    local IFS=: folder all="$toolkit:${CUDA_HOME:-}:${CUDA_PATH:-}:${CPATH:-}:${LIBRARY_PATH:-}"
    all="$all:${LD_LIBRARY_PATH:-}:${CONDA_PREFIX:-}:$system/usr/local/cuda:$system/opt/cuda:$system/usr"
    places=""
    for folder in $all $system/usr/local $(python3 -c 'import glob, sys
print(*(name for path in sys.path if path for name in sorted(glob.glob(path + "/nvidia/*"))), sep=":")' 2>/dev/null); do
        folder=${folder%/}
        case $folder in *" "*) continue ;; */include | */lib | */lib64) folder=${folder%/*} ;; esac
        [ ! -d "$folder" ] || places="$places $folder"
    done
}

# Debian names folders after the machine, and CUDA's targets/ too, where a server's ARM is sbsa.
include_folders="include include/$machine-linux-gnu targets/$machine-linux/include targets/sbsa-linux/include"
library_folders="lib64 lib lib/$machine-linux-gnu targets/$machine-linux/lib targets/sbsa-linux/lib"

# ---- The search ----
builds() { # LANGUAGE SOURCE COMPILER FLAG...: true if it makes $scratch/program of the source, libraries included
    local language="$1" compiler="$3"
    printf '%s\n' "$2" >"$scratch/source"
    shift 3
    $compiler -x "$language" "$scratch/source" -x none -o "$scratch/program" "$@" >"$scratch/log" 2>&1
}

first_file() { # PLACE FOLDERS FILE: prints the file in the first folder of the place that has it
    local folder
    for folder in $2; do
        [ -z "$3" ] || [ ! -f "$1/$folder/$3" ] || { echo "$1/$folder/$3" && return; }
    done
}

release_of() { # LIBRARY: the major release of CUDA of an NCCL or cuDNN, if CXX builds a program with it that runs
    local source='extern "C" int ncclGetVersion(int *); int main() { int version; return ncclGetVersion(&version); }'
    [ "$name" = NCCL ] || source='extern "C" unsigned long cudnnGetCudartVersion();
extern "C" int printf(const char *, ...);
int main() { return printf("%lu", cudnnGetCudartVersion() / 1000) < 0; }'
    builds c++ "$source" "$cxx" "-L${1%/*}" "-l:${1##*/}" "-Wl,-rpath,${1%/*}" && "$scratch/program" 2>&1 || return
    [ "$name" != NCCL ] || { grep -aom 1 'NCCL version [0-9.]*+cuda[0-9]*' "$1" || echo "$major"; } | sed 's/.*cuda//'
}

fits() { # PLACE: sets library and include, its header, if the place has both and they fit; else adds to reasons
    local why="" made_for="$major"
    include=$(first_file "$1" "$include_folders" "$header") library=$(first_file "$1" "$library_folders" "$file")
    [ -n "$include$library" ] || return
    if [ -z "$library" ] || { [ -n "$header" ] && [ -z "$include" ]; }; then
        why="$header and $file are not both in this place"
    elif [ "$name" = NCCL ] || [ "$name" = cuDNN ]; then
        made_for=$(release_of "$library") || why="$cxx builds no program with it that runs"
    fi
    [ "$made_for" = "${major:-$made_for}" ] || why=${why:-made for CUDA $made_for, but nvcc is of CUDA $major}
    [ -n "$why" ] || return 0
    reasons="$reasons (${library:-$include}: $why)" library=""
    return 1
}

find_library() { # NAME HEADER FILE HOME: sets library and include, and reasons; library to nothing if none fits
    local place
    name=$1 header=$2 file=$3 reasons="" library=""
    for place in ${4:-$places}; do ! fits "${place%/}" || return 0; done
    return 1
}

find_nvcc() { # sets nvcc, its release and major, and toolkit, its folder
    local more="${CUDA_PATH:+:$CUDA_PATH/bin}${CONDA_PREFIX:+:$CONDA_PREFIX/bin}:$system/usr/local/cuda/bin"
    nvcc=${NVCC:-${CUDA_HOME:+$CUDA_HOME/bin/nvcc}} release=""
    nvcc=${nvcc:-$(PATH=$PATH$more:$system/opt/cuda/bin && command -v nvcc)}
    release=$(${nvcc:-:} --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') # NVCC may be two words
    toolkit=$(readlink -f "$(command -v "${nvcc##* }")")                                  # it may be a link
    toolkit=${toolkit%/bin/nvcc} major=${release%%.*}
    [ "${major:-0}" -lt 12 ] || return 0
    refuse "No nvcc of CUDA 12 or later that runs (${nvcc:-none here}, release ${release:-unknown}): install the CUDA \
toolkit (https://developer.nvidia.com/cuda-downloads), or say where it is with CUDA_HOME=/folder. Without it, \
\`make train_gpt2emu\` builds the same source for the CPU"
}

# ---- Words for make ----
words() { # NAME WORD...
    local name="$1"
    shift
    [ $# -eq 0 ] || printf "$name+=%s\n" "$@"
}

take() { # what was found goes into the program
    case ${include%/*} in # the compiler finds these: -isystem would change the order of the system's folders
        "" | /usr/include | "/usr/include/$machine-linux-gnu" | "$toolkit/include") ;;
        *) words CUDA_FLAGS -isystem "${include%/*}" ;;
    esac
    words CUDA_LIBS "-L${library%/*}" -Xlinker -rpath -Xlinker "${library%/*}" "-l:${library##*/}"
}

# optional NAME VARIABLE HEADER FILE WITHOUT SOURCE: takes a library, unless the user skips it. Refuses to go without
# what was asked for.
optional() {
    local home wish
    eval "home=\${$2_HOME:-} wish=\${$2:-}"
    library=""
    if [ "$wish" = 0 ]; then
        return
    elif find_library "$1" "$3" "$4" "$home"; then
        words CUDA_FLAGS "-DUSE_$2"
        take
    elif [ -n "$home$wish" ]; then
        refuse "No $1 ${home:+in $2_HOME=$home }that $cxx builds with$reasons: expected include/$3 and $4 in lib or \
lib64 ($6). $2=0 leaves it out"
    else
        note "No $1 here$reasons: $5. Get it at $6, or say where it is with $2_HOME=/folder. $2=0 silences this"
    fi
}

# cuDNN opens NVRTC by its name, and searches neither our rpath nor CUDA's folder. So the program loads both of NVRTC's
# libraries at its start, and cuDNN gets these.
take_nvrtc() {
    find_library NVRTC "" "libnvrtc.so.$major" "" || { note "No NVRTC of CUDA $major, which cuDNN needs" && return; }
    words CUDA_LIBS -Xlinker --no-as-needed
    for library in "$library" "${library%/*}/libnvrtc-builtins.so.$major."*; do [ ! -f "$library" ] || take; done
}

# Prints the compute capabilities of GPU_ARCH, else those of the GPUs that are here. On a login node or in a container
# no GPU is visible: then the three generations of GPUs that the trainer is written for.
choose_archs() {
    local known arch archs="${GPU_ARCH:-}"
    known=" $($nvcc --list-gpu-code | tr ' ' '\n' | sed -n 's/^sm_//p' | grep -v '^[567]' | tr '\n' ' ')"
    [ -n "$archs" ] || for arch in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
        tr -d . | sort -u); do # 9.0 is 90
        case $known in *" $arch "*) archs="$archs $arch" ;; esac
    done
    if [ -z "$archs" ]; then
        for arch in 80 90 100; do case $known in *" $arch "*) archs="$archs $arch" ;; esac; done
        note "No GPU of compute capability 8.0 or later that CUDA $release knows is visible here: building \
for$(printf ' sm_%s' $archs). GPU_ARCH=90 builds for sm_90 only, in less time"
    fi
    words GPU_ARCHS $archs
}

print_cuda() {
    find_nvcc
    list_places
    printf '%s\n' "CUDA_RELEASE=$release" "NVCC=$nvcc"
    optional NCCL NCCL nccl.h libnccl.so.2 "building for one GPU" https://developer.nvidia.com/nccl
    if [ "${PRECISION:-}" != FP32 ]; then # cuDNN has no attention in fp32
        optional cuDNN CUDNN cudnn.h libcudnn.so.9 "attention by our own kernels" https://developer.nvidia.com/cudnn
        [ -z "$library" ] || take_nvrtc
    fi
    find_library cuBLASLt cublasLt.h "libcublasLt.so.$major" "" || refuse "No cuBLASLt that fits CUDA \
$release$reasons: expected include/$header and $file in lib or lib64 (apt: libcublas-dev-${release%.*}-${release#*.})"
    take
    choose_archs
}

# Takes the folders and libraries that MPI's own compiler adds (Intel's stand in quotes), if CC builds a program so.
print_mpi() {
    local shown word flags="" link=""
    shown=$("${MPI_HOME:+$MPI_HOME/bin/}mpicc" -show 2>/dev/null) ||
        shown=${MPI_HOME:+-I$MPI_HOME/include -L$MPI_HOME/lib -lmpi}
    for word in $(echo "$shown" | tr -d '"'); do
        case $word in
            -I/usr/include) ;;
            -I*) flags="$flags -isystem ${word#-I}" ;; # warnings in these headers are not ours
            -L* | -l* | *.so | *.a) link="$link $word" ;;
        esac
    done
    if builds c '#include <mpi.h>
int main(void) { return MPI_Init(0, 0); }' "$cc" -DOMPI_SKIP_MPICXX $flags $link; then
        words MPI_FLAGS -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $flags
        words MPI_LIBS $link
    elif [ -n "${MPI:-}${MPI_HOME:-}" ]; then
        refuse "No MPI ${MPI_HOME:+in MPI_HOME=$MPI_HOME }that $cc builds with: install OpenMPI or MPICH (Debian, \
Ubuntu: openmpi-bin, libopenmpi-dev), say where it is with MPI_HOME=/folder, or leave it out with MPI=0"
    fi
}

# A flag counts if a program links with it, since a compiler can know a flag and lack its library.
print_arch() {
    local flag="-march=native"
    case $machine in arm* | aarch64) flag="-mcpu=native" ;; esac
    ! builds c "$empty" "$cc" "$flag" || words ARCH "$flag"
}

# gcc brings libgomp. clang needs libomp (Debian: libomp-dev). Apple's clang needs Homebrew's libomp, and its
# preprocessor must be told of OpenMP.
print_openmp() {
    local folder source='#include <omp.h>
int main(void) { return omp_get_max_threads() < 1; }'
    if builds c "$source" "$cc" -fopenmp; then
        words OPENMP_FLAGS -fopenmp
    elif folder=$(brew --prefix libomp 2>/dev/null) &&
        builds c "$source" "$cc" -Xpreprocessor -fopenmp "-I$folder/include" "-L$folder/lib" -lomp; then
        words OPENMP_FLAGS -Xpreprocessor -fopenmp "-I$folder/include"
        words OPENMP_LIBS "-L$folder/lib" -lomp
    fi
}

for what in "$@"; do
    case $what in
        arch | openmp | mpi | cuda) "print_$what" ;;
        cxx_openmp) ! builds c++ "$empty" "$cxx" -fopenmp || words CXX_OPENMP -fopenmp ;;
        *) refuse "find_libraries.sh: '$what': expected arch, openmp, cxx_openmp, mpi or cuda" ;;
    esac
done
