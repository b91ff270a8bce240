#!/usr/bin/env python3
"""Writes sampler_cases.txt: random cases of Megatron-LM's GPTDataset order, computed by NumPy, for gpt_dataset_test.cpp.

One case a line: seq_len samples(-1: one epoch) seed begin end | epochs separate windows | FNV-1a hashes of the document index, the
window starts (document place, offset), the shuffle index and the tokens of all samples | lengths of all sequences.
Token `position` of sequence `s` is (131*s + 7*position) % 60000. Needs numpy:  make_sampler_cases.py > sampler_cases.txt
"""
import random

import numpy as np

EXTRA = 1  # neighbouring windows share one token


def fnv(values):
    """FNV-1a with a 64-bit value where the standard has a byte."""
    h = 0xCBF29CE484222325
    for v in values:
        h = ((h ^ int(v)) * 1099511628211) % 2**64
    return h


def shuffled(rng, values):
    values = np.array(values, dtype=np.int64)
    rng.shuffle(values)
    return [int(v) for v in values]


def window_starts(lengths, documents, seq_len, windows):
    """The walk of Megatron's index builder: count down a window's tokens document by document, then step back by the shared token."""
    starts, place, offset = [(0, 0)], 0, 0
    for _ in range(windows):
        remaining = seq_len + EXTRA
        while remaining > 0:
            here = lengths[documents[place]] - offset
            if here >= remaining:
                offset += remaining - EXTRA
                remaining = 0
            else:
                remaining -= here
                place, offset = place + 1, 0
        starts.append((place, offset))
    return starts


def order(lengths, begin, end, seq_len, samples, seed):
    split = list(range(begin, end))
    per_epoch = sum(lengths[s] for s in split)
    epochs = 1
    while samples is not None and epochs * per_epoch < samples * seq_len + EXTRA:
        epochs += 1
    windows = (epochs * per_epoch - EXTRA) // seq_len
    separate, joint = False, windows
    if epochs > 1:
        before_last = ((epochs - 1) * per_epoch - EXTRA) // seq_len
        separate = samples - before_last < int(0.80 * ((per_epoch - EXTRA) // seq_len))
        joint = before_last if separate else windows
    rng = np.random.RandomState(seed)
    if separate:
        documents = shuffled(rng, split * (epochs - 1)) + shuffled(rng, split)
    else:
        documents = shuffled(rng, split * epochs)
    starts = window_starts(lengths, documents, seq_len, windows)
    shuffle = shuffled(rng, range(joint)) + (shuffled(rng, range(joint, windows)) if separate else [])
    return epochs, separate, documents, starts, shuffle


def tokens(lengths, documents, starts, shuffle, seq_len):
    for window in shuffle:
        place, offset = starts[window]
        left = seq_len + EXTRA
        while left > 0:
            s = documents[place]
            for position in range(offset, min(lengths[s], offset + left)):
                yield (131 * s + 7 * position) % 60000
            left -= min(lengths[s] - offset, left)
            place, offset = place + 1, 0


def main():
    random.seed(20240607)
    made, separate_cases = 0, 0
    while made < 48:
        sequences = random.choice([1, 2, 5, 17, 60, 150])
        longest = random.choice([3, 9, 40, 200])
        lengths = [random.randint(0 if random.random() < 0.2 else 1, longest) for _ in range(sequences)]
        begin = random.randint(0, sequences // 3)
        end = random.randint(max(begin + 1, sequences * 2 // 3), sequences)
        seq_len = random.choice([1, 2, 4, 7, 16, 33])
        per_epoch = sum(lengths[begin:end])
        if per_epoch < seq_len + EXTRA:
            continue
        samples = random.choice([None, random.randint(1, 5 * per_epoch // seq_len + 1), per_epoch // seq_len, 2 * per_epoch // seq_len])
        if samples is not None and samples * seq_len > 40000:
            continue
        seed = random.choice([0, 1, 1234, 2**32 - 1, random.randrange(2**32)])
        epochs, separate, documents, starts, shuffle = order(lengths, begin, end, seq_len, samples, seed)
        hashes = [fnv(documents), fnv([x for start in starts for x in start]), fnv(shuffle)]
        hashes.append(fnv(tokens(lengths, documents, starts, shuffle, seq_len)))
        print(seq_len, -1 if samples is None else samples, seed, begin, end, "|", epochs, int(separate), len(shuffle), "|", *hashes, "|", *lengths)
        made += 1
        separate_cases += separate
    assert separate_cases >= 8, separate_cases


main()
