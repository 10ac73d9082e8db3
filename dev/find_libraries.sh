#!/usr/bin/env bash
# Finds nvcc, the GPUs to build for, and the libraries of the GPU trainer: cuBLASLt, NCCL, cuDNN 9, NVRTC (which cuDNN
# opens by itself) and MPI.
# The Makefile and dev/doctor.sh both ask this script.
#
#   dev/find_libraries.sh make          prints words for the Makefile, each one NAME=value or NAME+=value. If something
#                                       that the build needs is not here, it prints a message and ends with status 1.
#   dev/find_libraries.sh mpi           prints such words for MPI only
#   dev/find_libraries.sh doctor        prints lines with three fields and tabs between them: a name; found, missing or
#                                       passed (this place was not taken); the version and the file, or the reason
#
# NCCL_HOME and CUDNN_HOME name the only folder where that library may be. Otherwise these places are searched, and the
# first library that fits is taken: nvcc's toolkit, CUDA_HOME, CUDA_PATH, the folders of CPATH, LIBRARY_PATH and
# LD_LIBRARY_PATH, where environment modules put theirs, CONDA_PREFIX, /usr/local/cuda, /opt/cuda, /usr, /usr/local, and
# the folders where pip puts what PyTorch needs. A library fits if it was made for nvcc's major release of CUDA, and if
# CXX builds a program with it that runs. MPI is what the mpicc of MPI_HOME or PATH says, else what pkg-config says.
#
# Environment, beside these: NVCC, CXX, CC. NCCL=0 and CUDNN=0 skip the library. NCCL=1, CUDNN=1 and MPI=1 need it.
# PRECISION=FP32 needs no cuDNN. GPU_ARCH names the GPUs to build for. With QUIET=1 the script says nothing about a
# library that the build goes without. For the tests: /usr, /usr/local and /opt are looked for in SYSTEM_ROOT.
set -u
export LC_ALL=C

mode=${1:-}
if [[ ! $mode =~ ^(make|mpi|doctor)$ ]]; then
    sed -n '2,/^set -u/ s/^# \{0,1\}//p' "$0" >&2
    exit 1
fi
cxx=${CXX:-g++} system=${SYSTEM_ROOT:-}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpt2c_find.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT

# Where headers and libraries lie in a place. Debian names folders after the machine, and CUDA's targets/ too.
machine=$(uname -m)
include_folders="include include/$machine-linux-gnu targets/$machine-linux/include"
library_folders="lib64 lib lib/$machine-linux-gnu targets/$machine-linux/lib"
if [ "$machine" = aarch64 ]; then
    include_folders="$include_folders targets/sbsa-linux/include"
    library_folders="$library_folders targets/sbsa-linux/lib"
fi

report() { [ "$mode" != doctor ] || printf '%s\t%s\t%s\n' "$@"; } # NAME found|missing|passed TEXT

# The build cannot go on without this. The doctor looks for the other libraries all the same. It prints no more than the
# reason why a place that the user named does not do.
refuse() { # NAME MESSAGE REASON
    report "$1" missing "${3:-}"
    [ "$mode" != doctor ] || return 0
    printf '%s\n' "$2" >&2
    exit 1
}

go_without() { # NAME MESSAGE
    report "$1" missing ""
    [ "$mode" = doctor ] || [ -n "${QUIET:-}" ] || printf '%s\n' "$2" >&2
}

first_file() { # PLACE FOLDERS FILES: sets `file` to the first of the files in the folders of a place, or to nothing
    local folder name
    for folder in $2; do
        for name in $3; do
            file=$1/$folder/$name
            [ ! -f "$file" ] || return 0
        done
    done
    file=""
}

print_words() { # NAME WORD...
    local name=$1
    shift
    [ $# -eq 0 ] || printf "$name+=%s\n" "$@"
}

# --- nvcc ------------------------------------------------------------------------------------------------------------
find_nvcc() { # sets nvcc, release, major, toolkit (its folder) and cuda_include, or leaves them empty
    local why="" path places=${CUDA_PATH:+$CUDA_PATH/bin:}${CONDA_PREFIX:+$CONDA_PREFIX/bin:}
    places=$places$system/usr/local/cuda/bin:$system/opt/cuda/bin
    nvcc=${NVCC:-} release="" major="" toolkit="" cuda_include=""
    if [ -z "$nvcc" ] && [ -n "${CUDA_HOME:-}" ]; then
        nvcc=$CUDA_HOME/bin/nvcc
        if ! [ -x "$nvcc" ]; then
            nvcc=""
            refuse nvcc "No nvcc in CUDA_HOME=$CUDA_HOME: expected bin/nvcc of the CUDA toolkit, 12 or later" \
                "CUDA_HOME=$CUDA_HOME has no bin/nvcc"
        fi
    elif [ -z "$nvcc" ]; then
        nvcc=$(PATH=$PATH:$places command -v nvcc) || refuse nvcc "No nvcc, which builds the GPU programs: install the \
CUDA toolkit, 12 or later (https://developer.nvidia.com/cuda-downloads), or say where it is with CUDA_HOME=/folder. \
Without it, \`make train_gpt2emu\` builds the same source for the CPU"
    fi
    [ -n "${NVCC:-}" ] || no_odd_path "$nvcc"
    [ -z "$why" ] || refuse nvcc "$nvcc: $why" "$nvcc: $why"
    [ -n "$nvcc" ] && [ -z "$why" ] || return
    release=$($nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') # NVCC may be a wrapper and nvcc
    major=${release%%.*}
    if [ "${major:-0}" -lt 12 ]; then
        refuse nvcc "$nvcc is of CUDA release ${release:-none (it does not run)}, expected 12 or later \
(https://developer.nvidia.com/cuda-downloads); CUDA_HOME=/folder takes another" "$nvcc is of CUDA ${release:-(it does \
not run)}"
        return
    fi
    path=$(command -v "${nvcc##* }")
    for path in "$path" "$(readlink -f "$path")"; do # /usr/local/bin/nvcc may be a link into the toolkit
        toolkit=$(cd "$(dirname "$path")/.." && pwd)
        first_file "$toolkit" "$include_folders" cuda_runtime.h
        cuda_include=${file%/*}
        [ -z "$file" ] || break
    done
    report nvcc found "CUDA $release, $nvcc"
}

# --- the GPUs to build for -------------------------------------------------------------------------------------------
# Sets archs to the compute capabilities of GPU_ARCH, else to those of the GPUs that are here. On a login node or in a
# container no GPU is visible: then to the three generations of GPUs that the trainer is written for.
choose_archs() {
    local known here arch
    known=" $($nvcc --list-gpu-code | tr ' ' '\n' | sed -n 's/^sm_//p' | grep -v '^[567]' | tr '\n' ' ')"
    archs=${GPU_ARCH:-}
    for arch in $archs; do
        case $known in *" ${arch%[af]} "*) ;; *) refuse GPU "GPU_ARCH=$GPU_ARCH: expected a compute capability without \
its point, 80 or later, that CUDA $release knows:${known% }" ;; esac
    done
    if [ -z "$archs" ]; then
        here=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep -E '^[0-9]+$' |
            sort -u)
        for arch in $here; do
            case $known in
                *" $arch "*) archs="${archs:+$archs }$arch" ;;
                *)
                    if [ "$arch" -lt 80 ]; then
                        go_without GPU "A GPU here has compute capability ${arch%?}.${arch#"${arch%?}"}. gpt2.c needs \
8.0 (Ampere) or later and will not run on it"
                    else
                        go_without GPU "A GPU here has compute capability ${arch%?}.${arch#"${arch%?}"}, which CUDA \
$release does not know (it knows${known% }). Its driver translates what is built for an older GPU"
                    fi
                    ;;
            esac
        done
    fi
    if [ -z "$archs" ]; then
        for arch in 80 90 100; do [ "${known#* "$arch" }" = "$known" ] || archs="${archs:+$archs }$arch"; done
        archs=${archs:-80}
        go_without GPU "No GPU that CUDA $release knows is visible here: building for sm_${archs// / sm_}. \
GPU_ARCH=90 builds for sm_90 only, in less time"
    fi
}

# --- MPI -------------------------------------------------------------------------------------------------------------
# Takes the folders and libraries that MPI's own compiler adds (Intel's stand in quotes), if CC builds a program so.
find_mpi() {
    local mpicc words word include=() link=() name
    mpicc=${MPI_HOME:+$MPI_HOME/bin/mpicc}
    words=$("${mpicc:-mpicc}" -show 2>/dev/null) || words=${MPI_HOME:+-I$MPI_HOME/include -L$MPI_HOME/lib -lmpi}
    for name in ompi-c mpich; do [ -n "$words" ] || words=$(pkg-config --cflags --libs $name 2>/dev/null); done
    for word in ${words//\"/}; do
        case $word in
            -I/usr/include) ;;
            -I*) include+=(-isystem "${word#-I}") ;; # warnings in these headers are not ours
            -L* | -l* | *.so | *.a) link+=("$word") ;;
        esac
    done
    printf '#include <mpi.h>\nint main(void) { return MPI_Init(0, 0); }' >"$scratch/mpi.c"
    if ${CC:-cc} -DOMPI_SKIP_MPICXX "${include[@]+"${include[@]}"}" "$scratch/mpi.c" -o "$scratch/mpi" \
        "${link[@]+"${link[@]}"}" >/dev/null 2>&1; then
        print_words MPI_FLAGS -DUSE_MPI -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX "${include[@]+"${include[@]}"}"
        print_words MPI_LIBS "${link[@]+"${link[@]}"}"
    elif [ -n "${MPI:-}${MPI_HOME:-}" ]; then
        refuse MPI "No MPI ${MPI_HOME:+in MPI_HOME=$MPI_HOME }that ${CC:-cc} builds with: install OpenMPI or MPICH \
(Debian/Ubuntu: apt-get install openmpi-bin libopenmpi-dev), say where it is with MPI_HOME=/folder, or leave it out: \
MPI=0"
    fi
}

# --- the places ------------------------------------------------------------------------------------------------------
list_places() { # sets places
    local folder modules
    places=()
    IFS=: read -ra modules <<<"${CPATH:-}:${LIBRARY_PATH:-}:${LD_LIBRARY_PATH:-}"
    for folder in "$toolkit" "${CUDA_HOME:-}" "${CUDA_PATH:-}" "${modules[@]+"${modules[@]}"}" "${CONDA_PREFIX:-}" \
        "$system/usr/local/cuda" "$system/opt/cuda" "$system/usr" "$system/usr/local"; do
        folder=${folder%/}
        case $folder in */include | */lib | */lib64) folder=${folder%/*} ;; esac
        [ -z "$folder" ] || [ ! -d "$folder" ] || places+=("$folder")
    done
}

# Sets pip_places to the folders `nvidia` that python3 sees. It is asked once, and only if it must be.
pip_places=() pip_asked=no
ask_pip() {
    local folder
    [ $pip_asked = no ] || return 0
    pip_asked=yes
    while read -r folder; do pip_places+=("$folder"); done < <(python3 -c 'import os, sys
for path in sys.path:
    if path and os.path.isdir(path + "/nvidia"): print(path + "/nvidia")' 2>/dev/null)
}

# --- does a library fit? ---------------------------------------------------------------------------------------------
# Each check is given a header and a library. It sets version, and sets why to what is against the library.
version_of() { # HEADER PREFIX: from its PREFIX_MAJOR, PREFIX_MINOR, ...
    [ ! -f "$1" ] || awk -v names="^$2_(MAJOR|MINOR|PATCH|PATCHLEVEL)\$" '$1 == "#define" && $2 ~ names {
        printf "%s%s", dot, $3; dot = "." }' "$1"
}

made_for() { # MAJOR: the release of CUDA that a library was made for, if that is known
    [ -z "$1" ] || [ -z "$major" ] || [ "$1" = "$major" ] || why="made for CUDA $1, but nvcc is of CUDA $major"
}

# The compilers find some headers by themselves. Their folders are not named again, so that the order of the system's
# folders stays as it is.
include_flags() { # HEADER
    case ${1%/*} in
        /usr/include | "/usr/include/$machine-linux-gnu" | "$cuda_include") ;;
        *) echo "-isystem ${1%/*}" ;;
    esac
}

builds() { # HEADER LIBRARY SOURCE: sets output to what the program printed; otherwise sets why
    printf '#if !__has_include(<%s>)\n#error the compiler does not find %s\n#endif\n%s\n' "${1##*/}" "${1##*/}" "$3" \
        >"$scratch/probe.cpp"
    # shellcheck disable=SC2046 # words; paths have no blanks here
    if $cxx $(include_flags "$1") ${cuda_include:+-isystem "$cuda_include"} "$scratch/probe.cpp" -o "$scratch/probe" \
        "-L${2%/*}" "-l:${2##*/}" "-Wl,-rpath,${2%/*}" >"$scratch/log" 2>&1 &&
        "$scratch/probe" >"$scratch/out" 2>>"$scratch/log"; then
        output=$(cat "$scratch/out")
    else
        why="$cxx builds no program with it that runs: $(grep -m 1 -E 'error|undefined|cannot|not ' "$scratch/log")"
    fi
}

check_cuBLASLt() {
    version=$(version_of "${1%Lt.h}_api.h" CUBLAS_VER)
    made_for "${version%%.*}"
}

check_NVRTC() {
    version=${2##*/libnvrtc.so} version=${version#.}
    made_for "${version%%.*}"
}

check_NCCL() {
    local text
    version=$(version_of "$1" NCCL)
    text=$(grep -aom 1 'NCCL version [0-9.]*+cuda[0-9]*' "$2")
    made_for "${text##*+cuda}"
    [ -n "$why" ] || builds "$1" "$2" 'extern "C" int ncclGetVersion(int *);
int main() { int version; return ncclGetVersion(&version); }'
}

check_cuDNN() {
    version=$(version_of "${1%.h}_version.h" CUDNN)
    if [ "${version%%.*}" != 9 ]; then
        why="version ${version:-unknown}, expected 9"
        return
    fi
    builds "$1" "$2" '#include <stdio.h>
extern "C" size_t cudnnGetCudartVersion(void);
int main() { return printf("%d", (int)(cudnnGetCudartVersion() / 1000)) < 0; }'
    [ -n "$why" ] || made_for "$output"
}

# --- the search ------------------------------------------------------------------------------------------------------
no_odd_path() { # paths become words of make, of a shell and of two compilers
    case $1 in *[!A-Za-z0-9_./+@,:~%-]*) why="make takes no path with a blank or another special character" ;; esac
}

# consider NAME PLACE HEADER FILES: takes the library of a place if it fits and if none is taken yet. NVRTC needs no
# header. Two places may be links to one folder.
consider() {
    local header library why="" version="" other
    [ -z "$taken" ] || [ "$mode" = doctor ] || return 0
    first_file "$2" "$include_folders" "$3"
    header=$file
    first_file "$2" "$library_folders" "$4"
    library=$file
    for other in "${seen[@]+"${seen[@]}"}"; do [ ! "$other" -ef "${header:-$library}" ] || return 0; done
    seen+=("${header:-$library}")
    if [ -z "$library" ]; then
        [ -n "$header" ] || return 0
        why="$header: ${4%% *} is not in this place"
    elif [ -z "$header" ] && [ -n "$3" ]; then
        why="$3 is not in this place"
    elif [ -n "$taken" ]; then
        why="an earlier place has it"
    else
        no_odd_path "$header$library"
        [ -n "$why" ] || "check_$1" "$header" "$library"
    fi
    if [ -n "$why" ]; then
        why=${library:+$library: }$why
        report "$1" passed "$why"
        reasons="$reasons; $why"
    else
        taken=$library taken_header=$header taken_version=$version
    fi
}

# search NAME HOME HEADER FILES PIP-FOLDERS: sets taken, taken_header and taken_version, empty if nothing fits, and
# reasons.
search() {
    local place folder
    taken="" taken_header="" taken_version="" reasons="" seen=()
    if [ -n "$2" ]; then
        consider "$1" "${2%/}" "$3" "$4"
    else
        for place in "${places[@]}"; do consider "$1" "$place" "$3" "$4"; done
        if [ -z "$taken" ] || [ "$mode" = doctor ]; then
            ask_pip
            for place in "${pip_places[@]+"${pip_places[@]}"}"; do
                for folder in $5; do consider "$1" "$place/$folder" "$3" "$4"; done
            done
        fi
    fi
    reasons=${reasons:+ (${reasons#; })}
    [ -z "$taken" ] || report "$1" found "${taken_version:+$taken_version }$taken"
}

# take FLAG...: what was found goes into the program.
flags=() libraries=()
take() {
    # shellcheck disable=SC2207 # words
    flags+=("$@" $(include_flags "$taken_header"))
    libraries+=("$taken")
}

find_cublaslt() {
    search cuBLASLt "" cublasLt.h "libcublasLt.so.$major libcublasLt.so" "cublas cu$major"
    if [ -n "$taken" ]; then
        take
    else
        refuse cuBLASLt "No cuBLASLt that fits CUDA $release$reasons: expected include/cublasLt.h and libcublasLt.so \
in lib or lib64 (it comes with the CUDA toolkit; Debian/Ubuntu: apt-get install libcublas-dev-${release/./-})"
    fi
}

# settle WHAT VARIABLE EXPECTED WITHOUT: takes what was found of a library that the build can go without. If nothing was
# and the user asked for it, the build is refused.
settle() {
    local name=${1%% *} home_name=$2_HOME
    local home=${!home_name:-} wish=${!2:-}
    if [ -n "$taken" ]; then
        take "-DUSE_$2"
    elif [ -n "$home$wish" ]; then
        refuse "$name" "No $1 ${home:+in $home_name=$home }that $cxx builds with$reasons: expected $3. \
$home_name=/folder says where it is; $2=0 leaves it out" "${home:+$home_name=$home has none that fits}"
    else
        go_without "$name" "No $1 here$reasons: $4; \`make doctor\` says how to get it. $2=0 silences this"
    fi
}

find_nccl() {
    [ "${NCCL:-}" != 0 ] || return 0
    search NCCL "${NCCL_HOME:-}" nccl.h "libnccl.so.2 libnccl.so" nccl
    settle NCCL NCCL "include/nccl.h and libnccl.so in lib or lib64 (https://developer.nvidia.com/nccl; \
Debian/Ubuntu: apt-get install libnccl-dev)" "building for one GPU"
}

# cuDNN opens NVRTC by its name, and searches neither our rpath nor CUDA's folder. So the program loads both of NVRTC's
# libraries at its start, and cuDNN gets these.
find_cudnn() {
    [ "${CUDNN:-}" != 0 ] && [ "${PRECISION:-}" != FP32 ] || return 0 # it has no attention in fp32
    search cuDNN "${CUDNN_HOME:-}" cudnn.h "libcudnn.so.9 libcudnn.so" cudnn
    settle "cuDNN 9" CUDNN "include/cudnn.h of version 9 and libcudnn.so in lib or lib64 \
(https://developer.nvidia.com/cudnn; Debian/Ubuntu: apt-get install cudnn9-cuda-${major:-12})" \
        "attention by our own kernels"
    if [ -n "$taken" ] || [ "$mode" = doctor ]; then find_nvrtc; fi
}

find_nvrtc() {
    local builtins
    search NVRTC "" "" "libnvrtc.so.$major libnvrtc.so" "cuda_nvrtc cu$major"
    if [ -z "$taken" ]; then
        go_without NVRTC "No NVRTC for CUDA $major here$reasons: cuDNN needs it when the program runs, and has no \
engine for attention without it (it comes with the CUDA toolkit). CUDNN=0 leaves cuDNN out"
        return
    fi
    nvrtc=$taken
    libraries+=("$taken")
    for builtins in "${taken%/*}/libnvrtc-builtins.so.$major."*; do
        [ ! -f "$builtins" ] || { libraries+=("$builtins") && break; }
    done
}

# Sets folders to those of the libraries. The linker and the loader take a library from the first folder that has a file
# of its name. So a folder comes after those of the libraries that it has another copy of.
order_folders() {
    local pending=("${libraries[@]}") rest library other folder first
    folders=()
    while [ ${#pending[@]} -gt 0 ]; do
        first=""
        for library in "${pending[@]}"; do
            folder=${library%/*}
            for other in "${pending[@]}"; do
                [ ! -e "$folder/${other##*/}" ] || [ "$folder/${other##*/}" -ef "$other" ] || continue 2
            done
            first=$folder
            break
        done
        [ -n "$first" ] || refuse "" "$folder/${other##*/} would be linked instead of $other, which was chosen: their \
folders have copies of each other's libraries. NCCL_HOME=/folder and CUDNN_HOME=/folder can name one folder for both"
        folders+=("$first")
        rest=()
        for library in "${pending[@]}"; do [ "${library%/*}" = "$first" ] || rest+=("$library"); done
        pending=("${rest[@]+"${rest[@]}"}")
    done
}

print_for_make() {
    local item
    order_folders
    printf 'CUDA_RELEASE=%s\n' "$release"
    [ -n "${NVCC:-}" ] || printf 'NVCC=%s\n' "$nvcc"
    choose_archs
    # shellcheck disable=SC2086 # words
    print_words GPU_ARCHS $archs
    print_words CUDA_FLAGS "${flags[@]+"${flags[@]}"}"
    [ -z "$nvrtc" ] || print_words CUDA_LIBS -Xlinker --no-as-needed
    for item in "${folders[@]}"; do print_words CUDA_LIBS "-L$item" -Xlinker -rpath -Xlinker "$item"; done
    for item in "${libraries[@]}"; do print_words CUDA_LIBS "-l:${item##*/}"; done
}

if [ "$mode" = mpi ]; then
    find_mpi
    exit
fi
nvrtc=""
find_nvcc
list_places
find_cublaslt
find_nccl
find_cudnn
[ "$mode" = doctor ] || print_for_make
