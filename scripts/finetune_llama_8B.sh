#!/usr/bin/env bash
# Fine-tunes all weights of Llama 3.1 8B on a text of yours, on one GPU of 24 GB and 128 GB of host memory.
#
#   scripts/finetune_llama_8B.sh book.txt                  a text, or shards; then options of the trainer
#   SMOKE=1 scripts/finetune_llama_8B.sh README.md         all of it in small, on the CPU, in a few seconds
#   PLAN=1 scripts/finetune_llama_8B.sh book.txt           the trainer's plan and the whole command; no run
#   STEPS=50 scripts/finetune_llama_8B.sh book.txt --lr 5e-6
#
# To expect of steps of 131,072 tokens, in micro-batches of 4,096 (doc/usage.md, "A model that is too large"):
#
#                                   PCIe 4, 25 GB/s   PCIe 5, 50 GB/s
#   on the GPU                            20.25 GiB         20.25 GiB   planned (PLAN=1)
#   on the host, pinned                   90.75 GiB         90.75 GiB   planned
#   a step of a GeForce RTX 4090             72.8 s            70.9 s   predicted (dev/bench/predict.py)
#   tokens a second                           1,801             1,849   predicted
#   the same with --fp8                       2,645             2,752   predicted
#   a checkpoint                             113 GB            113 GB
#
# The optimizer's state, the fp32 weights, the gradients and the input of each block wait on the host. The weights stay
# on the GPU. With less of its memory, put --offload all behind the text: 8 GiB are enough then, and 106 GiB pinned.
# With more of the host's memory, leave out --moments bf16: m and v take 30 GiB more.
set -eu
cd "$(dirname "$0")/.."
GPUS=${GPUS:-1}
. scripts/common.sh
[ "$GPUS" = 1 ] || stop "GPUS is '$GPUS': this script is for one"

: "${STEPS:=100}" # of 131,072 tokens. OUT_DIR takes 360 GB
[[ ${1:--} != -* ]] || stop "give a text: $name book.txt [options of the trainer]"
text=$1 && shift
compgen -G "$text" >/dev/null || stop "$text: there is no such file"
begin "$@" # refuses wrong settings, and a second start in OUT_DIR
model=meta-llama/Llama-3.1-8B file=$OUT_DIR/llama.bin # a model that is already there is taken
if [ "$SMOKE" = 1 ]; then # of a new model
    SMALL=(--init smollm2:135M --layers 1 --heads 1 --channels 16 --context 16 --seq-len 16 --total-batch 32
        --batch-size 1 --val-sequences 2 --checkpoint-every 2)
fi

# ---- The command ----
command=("$TRAINER"
    --train-data "$text" --val-every 10 --val-sequences 64 --sample-every 0
    --init "$file" --seq-len 2048 --total-batch 131072 --batch-size 2
    --steps "$STEPS" --lr 1e-5 --schedule cosine --warmup 10 --weight-decay 0.01
    --recompute 3 --offload "optimizer,master,gradients,residuals" --moments bf16
    --out-dir "$OUT_DIR" --checkpoint-every 50 --keep 1
    "${SMALL[@]}" "$@")

# ---- Build, and refuse what does not fit, before hours go into the model: its size is known without it ----
build && plan "${command[@]/#"$file"/llama:8B}"

# ---- The model, whose licence the Hub asks for, and its tokenizer ----
[ "$SMOKE" = 1 ] || [ -e "$file" ] || python3 dev/hf.py import "$model" "$file" || stop "the model did not come"

# ---- Train, with --resume and again after a failure; export the best model for Hugging Face, draw the curves ----
keep_training "${command[@]}"
best=$OUT_DIR/model_best.bin
[ -e "$best" ] || best=""
finish "for Hugging Face: $OUT_DIR/hf"
