#!/bin/sh
# SimProx's rows that need a GPU, as they are declared. Run it in the root of the repository; a run that was stopped is resumed.
#
#     python studies/fetch_minilm.py models/minilm
#     sh studies/simprox_on_gpu.sh DATA
#
# DATA holds cifar10_jpeg/cifar10_jpeg.tar.gz and banking77/. A machine without a network needs these, the repository and models/minilm; with
# another archive of packages, 'pip install .[text]' first.
set -eu
data=$1
for part in "cifar10 reduced" "cifar10 densenet reduced"; do
    coterie reproduce simprox_cifar --part "$part" --data-dir "$data" --with results/simprox_cifar.csv --page docs/results --scores results
done
for part in lora full; do
    coterie reproduce simprox_banking77 --part "$part" --data-dir "$data" --with results/simprox_banking77.csv --page docs/results --scores results
done
