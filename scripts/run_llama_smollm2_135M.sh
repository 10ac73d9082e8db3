#!/usr/bin/env bash
# Trains SmolLM2's 135M, a small Llama (30 layers, 576 channels), from scratch on 9.4 billion tokens of FineWeb-Edu.
#
#   scripts/run_llama_smollm2_135M.sh                     on all GPUs of this machine
#   SMOKE=1 scripts/run_llama_smollm2_135M.sh             all of it in small, on the CPU, in about a minute
#
# To expect of 9,000 steps of 1,048,576 (9.4 billion tokens, 9.6e+18 FLOPs). The times are predicted
# for 32 sequences at once on each GPU; validation and saving come on top.
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                     24.2 hours        3.0 hours        9.1 hours        1.1 hours   predicted
#   cost                     36 dollars       36 dollars       23 dollars       23 dollars   predicted
#   validation loss      unknown          nothing published was found for so few tokens
#   HellaSwag            below 42.1 %     published: SmolLM2-135M's model card, after 2 trillion tokens (ours: 0.5 %)
#
# Published (SmolLM2's report, Ben Allal et al. 2025): rate 3e-3, WSD, which falls over the last fifth. From SmolLM's
# published configuration of 135M: steps of 512 x 2,048 tokens, decay 0.01, a linear fall to 0. Ours: a warm-up of 500
# steps, not 2,000, because the run is 200 times shorter; FineWeb-Edu alone, not a mixture with DCLM, code and
# mathematics; and weights that begin with a standard deviation of 0.02, not 1/sqrt(576).
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh

: "${STEPS:=9000}" # of 1,048,576 tokens
begin "$@" # counts the GPUs, and refuses wrong settings and a second start in OUT_DIR
: "${SHARDS:=$((STEPS / 640 + 1))}" # files of text, of about 0.7 billion tokens each (50 GB of disk)

command=("${launch[@]}" "$TRAINER" # one process for each GPU; multi_node/ sets LAUNCH for several machines
    --train-data "$DATA_DIR/smollm2_edu10B/edu_fineweb_train_*.bin"
    --val-data "$DATA_DIR/smollm2_edu10B/edu_fineweb_val_*.bin" --val-every 250 --val-sequences 5120
    --hellaswag 1 --hellaswag-data "$DATA_DIR/smollm2_hellaswag/hellaswag_val.bin"
    --tokenizer "$DATA_DIR/smollm2_tokenizer.bin" --sample-every 1000
    --init smollm2:135M --seq-len 2048 --total-batch 1048576 --auto 1 # which chooses the micro-batch
    --steps "$STEPS" --lr 3e-3 --schedule wsd --warmup 500 --final-lr-frac 0 --weight-decay 0.01
    --out-dir "$OUT_DIR" --checkpoint-every 250 --keep 3 --keep-major 5000 --patience 10
    --zero-stage 1 --start-timeout 600 # several GPUs share the optimizer's state
    "${SMALL[@]}" "$@") # SMOKE's sizes, and what stands behind this script's name. The last of two options counts

build && plan "${command[@]}" # what does not fit is refused before hours go into the data
llama_data HuggingFaceTB/SmolLM2-135M smollm2 smollm2_edu10B # by the programs of dev/data; what is there stays
keep_training "${command[@]}" # with --resume, and again after a failure
finish "published, after 200 times as many tokens: HellaSwag 0.421"
