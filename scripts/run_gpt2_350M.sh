#!/usr/bin/env bash
# Reproduces GPT-2 350M (24 layers, 1024 channels) from the first 31 billion of FineWeb's 100 billion tokens.
#
#   scripts/run_gpt2_350M.sh                on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_350M.sh        every stage in small, on the CPU, in two minutes
#
# Fetches the data, builds, trains, starts again after failures, exports for Hugging Face and draws the curves. Ctrl-C
# saves; the same command goes on. Options behind the script's name take the place of those below, as in
#     OUT_DIR=/disk/run scripts/run_gpt2_350M.sh --steps 1000 --batch-size 16
# --help lists the settings of the environment.
#
#   31.5 billion tokens: 60,000 steps of 524,288; 7.1e+19 FLOPs
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    121.6 hours       15.2 hours       42.0 hours        5.3 hours
#   sequences at once                64               64               64               64
#   memory of each             55.5 GiB         52.0 GiB         55.5 GiB         52.0 GiB
#
# The times are predicted by dev/bench/predict.py --figures, not measured, for so many sequences at once. --auto chooses
# how many it is by the free memory. Validation, HellaSwag and saving come on top.
#
# To expect: for this recipe, which is llm.c's, no final loss or HellaSwag was found that is published. OpenAI's model
# has a loss of 3.0831 on the same validation data, and 37.5 % of HellaSwag (llm.c's figures).
set -eu
NAME=gpt2_350M
TITLE="GPT-2 350M"
DATA=fineweb100B # what is fetched
EXPECT="nothing published; OpenAI's model has a loss of 3.0831 and 37.5 % of HellaSwag"
# shellcheck source=scripts/reproduce.sh
. "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"

train=(--train-data "$DATA_ROOT/$DATA/fineweb_train_*.bin" --val-data "$DATA_ROOT/$DATA/fineweb_val_*.bin"
    --tokenizer "$DATA_ROOT/gpt2_tokenizer.bin"
    --init d24 --seq-len 1024 --total-batch 524288 --steps 60000 --auto 1
    --lr 3e-4 --schedule cosine --warmup 700 --final-lr-frac 0 --weight-decay 0.1
    --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_ROOT/hellaswag/hellaswag_val.bin"
    --sample-every 5000 --stop-on-divergence 1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000
    --zero-stage 1 --start-timeout 600) # zero-stage: several GPUs share the optimizer's state
reproduce "$@"
