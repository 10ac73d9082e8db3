#!/usr/bin/env bash
# Trains SmolLM2's 135M, a small Llama (30 layers, 576 channels), from scratch on 9.4 billion tokens of FineWeb-Edu.
#
#   scripts/run_llama_smollm2_135M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_llama_smollm2_135M.sh             all of it in small, on the CPU, in about a minute
#
# Ctrl-C saves and ends. The same command goes on, whatever stopped it. --help lists the settings.
#
# To expect of 9,000 steps of 1,048,576 (9.4 billion tokens, 9.6e+18 FLOPs):
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                     24.2 hours        3.0 hours        9.1 hours        1.1 hours   predicted
#   cost                     36 dollars       36 dollars       23 dollars       23 dollars   predicted
#
#   validation loss      unknown          nothing published was found for so few tokens
#   HellaSwag            below 42.1 %     published: SmolLM2-135M's model card, after 2 trillion tokens (ours: 0.5 %)
#
# Published (SmolLM2's report, Ben Allal et al. 2025): rate 3e-3, WSD, which falls over the last fifth. From SmolLM's
# published configuration of 135M: steps of 512 x 2,048 tokens, decay 0.01, a linear fall to 0. Ours: a warm-up of 500
# steps, not 2,000, because the run is 200 times shorter; FineWeb-Edu alone, not a mixture with DCLM, code and
# mathematics; and weights that begin with a standard deviation of 0.02, not 1/sqrt(576).
#
# dev/bench/predict.py --figures predicts, for 32 sequences at once on each GPU; --auto chooses how many. Validation and
# saving come on top. The cost assumes 1.50 dollars for an hour of an A100 and 2.50 for one of an H100.
set -eu
cd "$(dirname "$0")/.."
# shellcheck disable=SC2034 # common.sh builds it
program=train_llama3
. scripts/common.sh

# ---- Settings, which the environment overrides ----
: "${OUT_DIR:=run_llama_smollm2_135M}" # the run's folder: checkpoints, logs, curves
: "${DATA_DIR:=dev/data}"              # the folder of the data (20 GB, and 30 GB more while they are made)
: "${STEPS:=9000}"                     # of 1,048,576 tokens
: "${TRAINER:=./train_llama3cu}"       # built with make; another path is taken as it is
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
TOKENIZER=$DATA_DIR/smollm2_tokenizer.bin SHARD_DIR=$DATA_DIR/smollm2_edu10B

# ---- The command: one process for each GPU. scripts/multi_node/ sets LAUNCH, for several machines ----
command=("${launch[@]}" "$TRAINER"
    --train-data "$SHARD_DIR/edu_fineweb_train_*.bin"
    --val-data "$SHARD_DIR/edu_fineweb_val_*.bin" --val-every 250 --val-sequences 5120
    --hellaswag 1 --hellaswag-data "$DATA_DIR/smollm2_hellaswag/hellaswag_val.bin"
    --tokenizer "$TOKENIZER" --sample-every 1000
    --init smollm2:135M --seq-len 2048 --total-batch 1048576 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 3e-3 --schedule wsd --warmup 500 --final-lr-frac 0 --weight-decay 0.01
    --out-dir "$OUT_DIR" --checkpoint-every 250 --keep 3 --keep-major 5000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

# ---- Build, and refuse what does not fit, before hours go into the data ----
build && plan "${command[@]}"

# ---- Data: SmolLM2's tokenizer, and shards made with it. This needs huggingface_hub and pyarrow ----
: "${SHARDS:=$((STEPS / 640 + 1))}" # files of text, of about 0.7 billion tokens each
model=HuggingFaceTB/SmolLM2-135M && mkdir -p "$SHARD_DIR"
[ "$SMOKE" = 0 ] || fetch 1 "$TOKENIZER" vocab.py
[ -e "$TOKENIZER" ] || python3 dev/hf.py import "$model" "$DATA_DIR/smollm2.bin" || stop "the tokenizer did not come"
fetch 1 "$DATA_DIR/smollm2_hellaswag/hellaswag_val.bin" \
    hellaswag.py --out "$DATA_DIR/smollm2_hellaswag" --vocab "$TOKENIZER"
fetch 2 "$SHARD_DIR/edu_fineweb_*.bin" \
    fineweb.py --type edu --source parquet --limit "$SHARDS" --out "$SHARD_DIR" --vocab "$TOKENIZER"

# ---- Train, with --resume and again after a failure; export for Hugging Face, draw the curves, say the result ----
keep_training "${command[@]}"
finish "published, after 200 times as many tokens: HellaSwag 0.421"
